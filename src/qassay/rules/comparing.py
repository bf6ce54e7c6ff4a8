"""What rules about two models have in common: they word the transformations with their code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qassay.core.finding import Finding, Location
from qassay.core.text import safe
from qassay.rules.base import ComparisonRule, share_of

if TYPE_CHECKING:
    from qassay.compare.facts import Comparison, Pair


class TransformationRule(ComparisonRule):
    """A rule that reports each verified transformation that carries its code."""

    def check(self, comparison: Comparison) -> Iterator[Finding]:
        """Yield one finding for each transformation of a weight."""
        for pair in comparison.pairs:
            for told in pair.transformations:
                if told.code == self.code:
                    yield self.finding(
                        f"{told.text}; with that undone the weight is equal to"
                        f" '{safe(pair.name)}' of the first model{_cost(pair)}",
                        path=pair.path,
                        tensor=pair.tensor,
                        field=", ".join(told.parts) or None,
                        count=_count(pair),
                        locations=first_place(pair),
                        data={"kind": told.kind, "parts": list(told.parts), **told.data},
                    )


def _count(pair: Pair) -> int:
    return 1 if pair.difference is None else max(1, pair.difference.weights.different)


def _cost(pair: Pair) -> str:
    """Return `; 61,440 of 65,536 weights differ, by up to 9 steps`."""
    found = pair.difference
    if found is None or not found.weights.of:
        return ""
    share = share_of(found.weights.different, found.weights.of, "weights")
    steps = f", by up to {found.largest:.4g} steps" if found.largest else ""
    return f"; as it is, {share} differ{steps}"


def first_place(pair: Pair) -> tuple[Location, ...]:
    """Return where the first difference is, with the values of both sides."""
    first: dict[str, Any] | None = None if pair.difference is None else pair.difference.first
    if first is None:
        return ()
    one, two = (f"{each:.6g}" if isinstance(each, float) else each for each in first["values"])
    place = Location(
        row=first["row"], column=first["column"], field=first["part"], value=f"{one} against {two}"
    )
    return (place,)
