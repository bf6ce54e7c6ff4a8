"""What rules about two models have in common: they word the transformations with their code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qassay.core.finding import Finding, Location, Severity
from qassay.core.text import safe
from qassay.rules.base import ComparisonRule, share_of

if TYPE_CHECKING:
    from qassay.comparison.facts import Comparison, Fault, Pair


class TransformationRule(ComparisonRule):
    """A rule that reports each verified transformation that carries its code."""

    def check(self, comparison: Comparison) -> Iterator[Finding]:
        """Yield one finding for each transformation of a weight."""
        for pair in comparison.pairs:
            for told in pair.transformations:
                if told.code == self.code:
                    yield self.finding(
                        f"{told.text}; {_undone(pair)}",
                        path=pair.path,
                        tensor=pair.tensor,
                        field=", ".join(told.parts) or None,
                        count=_count(pair),
                        locations=first_place(pair),
                        data={"kind": told.kind, "parts": list(told.parts), **told.data},
                    )


class FaultRule(ComparisonRule):
    """A rule that reports each fault of a quantized weight that carries its code."""

    def check(self, comparison: Comparison) -> Iterator[Finding]:
        """Yield one finding for each fault of a weight."""
        for pair in comparison.pairs:
            for fault in pair.faults:
                if fault.code == self.code:
                    yield self.finding(
                        fault.text,
                        path=pair.path,
                        tensor=pair.tensor,
                        severity=Severity.ERROR if fault.severe else None,
                        count=max(1, fault.count),
                        locations=_placed(fault),
                        data={"kind": fault.kind, "source": pair.name, **fault.data},
                    )


def _placed(fault: Fault) -> tuple[Location, ...]:
    if fault.row is None and fault.column is None:
        return ()
    return (Location(row=fault.row, column=fault.column),)


def _undone(pair: Pair) -> str:
    name = safe(pair.name)
    if pair.cost is None or pair.undone is None:
        return f"with that undone the weight is equal to '{name}' of the first model{_cost(pair)}"
    before, after = pair.cost, pair.undone
    if not before.gridded:
        return (
            f"the RMSE against '{name}' of the first model is {before.rmse:.3g}, with that undone"
            f" {after.rmse:.3g}"
        )
    return (
        f"the error against '{name}' of the first model is {before.ratio:.3g} times what the scheme"
        f" should cost, and {after.ratio:.2g} times once that is undone"
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
