"""Q610."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qassay.core.finding import Finding, Severity
from qassay.core.text import safe
from qassay.rules.base import ComparisonRule
from qassay.rules.comparing import first_place

if TYPE_CHECKING:
    from qassay.comparison.facts import Comparison


class WeightsOfAnotherTensor(ComparisonRule, code="Q610", name="weights-of-another-tensor"):
    """A weight is equal to another tensor of the other model, not to its own.

    ## What it does
    Where two weights of one name differ, `qassay compare` looks for a weight of the same shape in
    the first model that is equal to the second model's, in every row.

    ## Why it is bad
    A layer runs with the weights of another one.

    ## How to fix it
    Repeat the conversion with the right names; look for a loop that is off by one layer, and for
    up and gate, or Q and K, that changed places.

    ## Example
    `blk.1.ffn_up.weight` holds the weights of 'blk.1.ffn_gate.weight' of the first model
    """

    severity = Severity.ERROR
    help = "repeat the conversion with the right names"
    since = "0.1"

    def check(self, comparison: Comparison) -> Iterator[Finding]:
        """Yield one finding for each weight that is another one's."""
        for pair in comparison.pairs:
            if pair.relation == "different" and pair.other:
                yield self.finding(
                    f"holds the weights of '{safe(pair.other)}' of the first model, not those of"
                    f" '{safe(pair.name)}'",
                    path=pair.path,
                    tensor=pair.tensor,
                    locations=first_place(pair),
                    data={"weights_of": pair.other, "name": pair.name},
                )
