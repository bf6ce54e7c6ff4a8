"""Q403."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule, share_of


class ExceedsF16(TensorRule, code="Q403", name="exceeds-f16"):
    """A float tensor holds finite values that are infinite in f16.

    ## What it does
    Counts finite values of a magnitude of 65520 or more, the smallest that rounds to infinity in
    f16, in tensors of a wider range (F64, F32, BF16).

    ## Why it is bad
    It is not, as long as the tensor stays as it is. A runtime that loads weights as f16, or a
    conversion to F16, makes these values infinite.

    ## How to fix it
    Keep the tensor in BF16 or F32, and choose a runtime that does not go through f16.

    ## Example
    `model.norm.weight`: 2 of 4096 values are 65520 or more (the largest is 98304)
    """

    severity = Severity.INFO
    help = "keep this tensor in BF16 or F32; do not convert it to F16"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each expert with such values."""
        values = tensor.stats.values
        for _, expert, tally in tensor.stats.offences(Offence.EXCEEDS_F16):
            largest = values.max if values else None
            share = share_of(tally.count, tensor.stats.units, "values")
            verb = "is" if tally.count == 1 else "are"
            yield self.finding(
                f"{share} {verb} beyond the range of f16;"
                " expected magnitudes below 65520"
                + (f" (the largest in the tensor is {largest:.6g})" if largest else ""),
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                tally=tally,
                data={"values": tensor.stats.units, "exceeds": tally.count, "largest": largest},
            )
