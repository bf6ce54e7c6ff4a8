"""Q401."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule, share_of


class ValueNotFinite(TensorRule, code="Q401", name="value-not-finite"):
    """A float tensor holds NaN or infinity.

    ## What it does
    Looks at the bits of every value of the float types (F64 to F8) for NaN and infinity.

    ## Why it is bad
    A NaN in a weight makes its output channel NaN for every input, and the next normalisation
    spreads it. A quantizer may hide it: most turn a NaN into an ordinary code, and some forget
    the block's other weights on the way.

    ## How to fix it
    Take the tensor from an earlier checkpoint; training or a merge diverged there. Do not
    quantize this one.

    ## Example
    `blk.0.ffn_norm.weight` row 0 column 17: 1 of 4096 values is not finite (1 NaN, 0 infinite)
    """

    severity = Severity.ERROR
    help = "take this tensor from a sound checkpoint; do not quantize or use it"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each expert with such values."""
        for _, expert, tally in tensor.stats.offences(Offence.VALUE_NOT_FINITE):
            nan, inf = tally.parts["nan"], tally.parts["inf"]
            share = share_of(tally.count, tensor.stats.units, "values")
            verb = "is" if tally.count == 1 else "are"
            yield self.finding(
                f"{share} {verb} not finite ({nan} NaN, {inf} infinite); expected finite numbers",
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                tally=tally,
                data={"values": tensor.stats.units, "nan": nan, "inf": inf},
            )
