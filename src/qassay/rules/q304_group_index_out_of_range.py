"""Q304."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule, share_of


class GroupIndexOutOfRange(TensorRule, code="Q304", name="group-index-out-of-range"):
    """An index assigns input features to a group that does not exist.

    ## What it does
    Looks at every entry of `g_idx` and `weight_g_idx` (GPTQ and compressed-tensors, act-order)
    for numbers below 0, or not below the number of groups that the scales have. A
    `weight_g_idx` of -1 throughout was never set and means that columns are in order.

    ## Why it is bad
    A reader takes the scale of such a column from another place: some wrap around, some read
    past the end, some stop. Every output channel is wrong.

    ## How to fix it
    Quantize the layer again, or take its index from an intact copy. If all entries are too large
    by the same factor, the scales belong to another group size.

    ## Example
    `model.layers.0.mlp.down_proj.qweight` column 300 field g_idx: 1 of 512 entries of g_idx names
    no group (the first is 4); expected 0 to 3
    """

    severity = Severity.ERROR
    help = "take the index from an intact copy, or quantize this layer again"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield a finding if an index names groups that are not there."""
        layer = tensor.layer
        if layer is None:
            return
        for field, expert, tally in tensor.stats.offences(Offence.GROUP_OUT_OF_RANGE):
            first = tally.locations[0].value
            share = share_of(tally.count, layer.columns, "entries")
            verb = "names" if tally.count == 1 else "name"
            yield self.finding(
                f"{share} of {field} {verb} no group (the first is {first});"
                f" expected 0 to {layer.groups - 1}",
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                field=field,
                tally=tally,
                data={
                    "entries": layer.columns,
                    "out_of_range": tally.count,
                    "negative": tally.parts["negative"],
                    "groups": layer.groups,
                },
            )
