"""Q402."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence, Tally
from qassay.rules.base import TensorFacts, TensorRule, share_of


class DeadRows(TensorRule, code="Q402", name="dead-rows"):
    """Whole rows of a matrix are zero.

    ## What it does
    Counts the rows (output channels) of tensors with at least two axes and two rows whose every
    weight decodes to zero, in any encoding.

    ## Why it is bad
    The channel always puts out zero. One such row is normal in an embedding (the padding token);
    many mean that channels were pruned, that an expert was never trained, or that a part of the
    tensor was never written. A tensor of zeros only is hardly ever meant.

    ## How to fix it
    Nothing, when the source has zeros there. Otherwise convert the tensor again.

    ## Example
    `token_embd.weight` row 0: 1 of 32000 rows holds zeros only
    """

    severity = Severity.INFO
    help = "nothing, if the source has zeros there; otherwise convert this tensor again"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each expert with such rows, or one for a tensor of zeros."""
        stats, shape = tensor.stats, tensor.shape
        if len(shape) < 2 or stats.rows < 2:
            return
        tallies = list(stats.offences(Offence.DEAD_ROW))
        if sum(tally.count for _, _, tally in tallies) == stats.rows:
            yield self._dead_tensor(tensor, tallies[0][2])
            return
        for _, expert, tally in tallies:
            rows = stats.rows if expert is None else stats.rows // shape[0]
            share = share_of(tally.count, rows, "rows")
            verb = "holds" if tally.count == 1 else "hold"
            message = f"{share} {verb} zeros only"
            if tally.count == rows:
                message = f"the whole expert is zero: all of its {rows:,} rows are"
            yield self.finding(
                message,
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                tally=tally,
                data={"rows": rows, "dead": tally.count},
            )

    def _dead_tensor(self, tensor: TensorFacts, first: Tally) -> Finding:
        rows = tensor.stats.rows
        return self.finding(
            f"the whole tensor is zero: all of its {rows:,} rows are",
            path=tensor.stored.path,
            tensor=tensor.stored.name,
            tally=first,
            count=rows,
            data={"rows": rows, "dead": rows},
        )
