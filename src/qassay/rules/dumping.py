"""How rules word what two dumps of a whole model show: the first bad tensor of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qassay.core.finding import Certainty, Finding, Location
from qassay.core.text import safe
from qassay.rules.base import Rule

if TYPE_CHECKING:
    from qassay.comparison.dumps import DumpComparison, TensorPair

CODES = ("Q603", "Q608", "Q612", "Q616", "Q801")
"""Rules that word them."""

_LISTED = 6


def findings_of(rule: Rule, done: DumpComparison) -> Iterator[Finding]:
    """Yield at most one finding: behind the first bad tensor, others are bad because it is."""
    if rule.code == "Q612":
        yield from _missing(rule, done)
        return
    bad = done.bad
    here = [pair for pair in bad if pair.code == rule.code]
    if not here:
        return
    first = here[0]
    place = first.not_finite.first
    yield rule.finding(
        f"{first.why}; {_standing(first, done)}{_before(first, done)}",
        path=done.paths[1],
        tensor=first.other,
        count=len(here),
        locations=() if place is None else (Location(row=place[0], column=place[1]),),
        certainty=_certainty(first, done),
        data=_data(first, done),
        help=_HELP,
    )


_HELP = (
    "diagnose the operation that computes this tensor, alone, with the inputs it had: what comes"
    " behind it can be wrong because of it"
)


def _certainty(pair: TensorPair, done: DumpComparison) -> Certainty:
    if pair.code != "Q616" or done.chosen or "shape" in pair.why:
        return Certainty.PROVEN
    return Certainty.LIKELY


def _standing(pair: TensorPair, done: DumpComparison) -> str:
    """Return `the first of 12 bad tensors in graph order`."""
    where = "in graph order" if done.order == "graph" else "in the order of the dump"
    bad = done.bad
    if pair is bad[0]:
        return f"the first of {len(bad)} bad tensors, {where}" if bad[1:] else "the only bad tensor"
    return f"the first bad tensor, {where}, is '{safe(bad[0].name, 80)}'"


def _before(pair: TensorPair, done: DumpComparison) -> str:
    earlier = [one for one in done.pairs[: pair.order] if one.difference is not None]
    if not earlier or pair is not done.bad[0]:
        return ""
    last = earlier[-1]
    assert last.difference is not None  # noqa: S101 - filtered
    return (
        f"; the tensor before it, '{safe(last.name, 80)}', is off by {last.difference.relative:.2%}"
    )


def _data(pair: TensorPair, done: DumpComparison) -> dict[str, Any]:
    found, odd = pair.difference, pair.not_finite
    data: dict[str, Any] = {"reference": pair.name, "order": pair.order, "bad": len(done.bad)}
    if found is not None:
        data |= {"relative": found.relative, "cosine": found.cosine, "max": found.largest}
    if odd.reference or odd.device:
        data |= {"born": odd.born, "hidden": odd.hidden, "both": odd.both}
    return data


def _missing(rule: Rule, done: DumpComparison) -> Iterator[Finding]:
    if not done.missing:
        return
    listed = ", ".join(safe(name, 60) for name in done.missing[:_LISTED])
    more = ", ..." if len(done.missing) > _LISTED else ""
    known = done.order == "graph"
    whole = len(done.pairs) + len(done.missing) + len(done.fused)
    yield rule.finding(
        f"{len(done.missing):,} of {whole:,} tensors of the reference are not in the device's dump"
        f" and were not compared: {listed}{more}",
        path=done.paths[1],
        count=len(done.missing),
        certainty=Certainty.PROVEN if known else Certainty.LIKELY,
        data={"missing": done.missing[:64], "in_graph": known},
        help=(
            "dump these tensors, too"
            if known
            else "dump these tensors, too; if the compiler fused them, name its graph with --mlir"
        ),
    )
