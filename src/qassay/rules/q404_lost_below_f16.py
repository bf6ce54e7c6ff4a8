"""Q404."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule

LEAST_SHARE = 0.01


class LostBelowF16(TensorRule, code="Q404", name="lost-below-f16"):
    """A good part of a float tensor's values would become zero in f16.

    ## What it does
    Counts non-zero values that round to zero in f16 (2^-25 = 3e-8 and below) and reports tensors
    in which they are at least 1 % of the non-zero values. Single ones are normal: in
    all-MiniLM-L6-v2 five tensors hold some, 0.78 % at most (a layer norm with values of 1e-33).

    ## Why it is bad
    It is not, as long as the tensor stays as it is. A runtime that loads weights as f16, or a
    conversion to F16, loses these values; if they are most of a tensor, the tensor is gone.

    ## How to fix it
    Keep the tensor in BF16 or F32, or multiply it into the layer beside it before converting.

    ## Example
    `model.layers.3.gate.weight`: 4096 of 8192 non-zero values are below the range of f16
    """

    severity = Severity.INFO
    help = "keep this tensor in BF16 or F32, or scale it before converting to F16"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each expert with such values, if the tensor has enough of them."""
        values = tensor.stats.values
        if values is None:
            return
        nonzero = values.values - values.zero
        if not nonzero or values.lost_below_f16 < LEAST_SHARE * nonzero:
            return
        for _, expert, tally in tensor.stats.offences(Offence.LOST_BELOW_F16):
            share = values.lost_below_f16 / nonzero
            yield self.finding(
                f"{values.lost_below_f16} of {nonzero} non-zero values ({share:.1%}) become zero"
                f" in f16; expected less than {LEAST_SHARE:.0%} of 2^-25 and below"
                + (f" (the largest in the tensor is {values.max:.3g})" if values.max else ""),
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                tally=tally,
                data={
                    "nonzero": nonzero,
                    "lost": values.lost_below_f16,
                    "share": share,
                    "largest": values.max,
                },
            )
