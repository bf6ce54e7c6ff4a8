"""Q301."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule, share_of


class DeadBlocks(TensorRule, code="Q301", name="dead-blocks"):
    """Blocks decode to zeros only, as their writer meant them to.

    ## What it does
    Counts blocks whose every weight is zero, and how many of them lie in rows that are zero as a
    whole (Q402), and how many have a scale that is not zero, which the reference quantizers never
    leave over codes of zeros: somebody's padding, or codes that were cleared afterwards. Blocks
    whose scale is zero over live codes are Q202 and not counted here.

    ## Why it is bad
    Usually it is not: padding, vocabulary rows that were never trained, pruned channels and
    experts that were never routed to look like this. Many dead blocks in a tensor that ought to
    be dense mean that weights underflowed before they were quantized, or were never written.

    ## How to fix it
    Nothing, when the source has zeros there. Otherwise convert the tensor again.

    ## Example
    `token_embd.weight`: 1024 of 9216 blocks (11.1 %) hold zeros only; 1024 of them lie in rows
    that are zero as a whole
    """

    severity = Severity.INFO
    help = "nothing, if the source has zeros there; otherwise convert this tensor again"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each expert with such blocks."""
        stats, shape = tensor.stats, tensor.shape
        columns = shape[-1] if shape else 1
        per_row = max(1, -(-columns // tensor.unit))
        dead_rows = {expert: tally.count for _, expert, tally in stats.offences(Offence.DEAD_ROW)}
        for _, expert, tally in stats.offences(Offence.DEAD_BLOCK):
            units = stats.units
            if expert is not None:
                units //= max(1, shape[0])
            in_rows = min(tally.count, dead_rows.get(expert, 0) * per_row)
            share = share_of(tally.count, units, tensor.noun)
            scaled = tally.parts["scaled"]
            verb = "holds" if tally.count == 1 else "hold"
            yield self.finding(
                f"{share} ({tally.count / units:.1%}) {verb} zeros"
                f" only, {in_rows:,} of them in rows that are zero as a whole"
                + (
                    f"; {scaled:,} under a scale that is not zero: cleared codes?" if scaled else ""
                ),
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                tally=tally,
                data={
                    tensor.noun: units,
                    "dead": tally.count,
                    "share": tally.count / units,
                    "in_dead_rows": in_rows,
                    "scaled": scaled,
                },
            )
