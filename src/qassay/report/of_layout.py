"""From what `run.layout` did to the document, and its table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qassay.core.finding import Certainty
from qassay.core.text import safe
from qassay.report.document import Coverage, Input, Report
from qassay.report.page import Column, Lines, Section, Table
from qassay.report.words import plain, shape
from qassay.run.layout import LayoutResult, Moved

_ROWS = 40


def report_of(done: LayoutResult) -> Report:
    """Return the report of one move."""
    refused = sum(one.count for one in done.findings)
    return Report(
        "layout",
        inputs=(Input(done.path, "arrays", done.nbytes),),
        coverage=Coverage(tensors=len(done.moved) + refused, checked=len(done.moved) + refused),
        findings=tuple(done.findings),
        result=_result(done),
        sections=tuple(_sections(done)),
        judged=False,
    )


def _result(done: LayoutResult) -> dict[str, Any]:
    aimed = done.asked.aimed
    return {
        "written": bool(done.destination),
        "destination": done.destination or None,
        "on": str(aimed),
        "lanes": aimed.chip.lanes,
        "inverse": done.asked.inverse,
        "moved": [_moved(one) for one in done.moved],
        "proven": bool(done.destination),
    }


def _moved(one: Moved) -> dict[str, Any]:
    return {
        "layer": one.pair.layer,
        "scale": one.pair.first,
        "zero_point": None if one.pair.alone else one.pair.zeros,
        "layout": one.acts.branch.value,
        "before": list(one.shapes[0]),
        "after": list(one.shapes[1]),
        "half": one.pair.half,
        "certainty": one.acts.certainty.value,
        "note": one.acts.note if _doubtful(one) else "",
    }


def _doubtful(one: Moved) -> bool:
    return one.acts.certainty is not Certainty.PROVEN


def _sections(done: LayoutResult) -> Iterator[Section]:
    if not done.destination:
        yield Lines("", ("nothing was written",))
        return
    rows = tuple(
        (
            safe(one.pair.first),
            "-" if one.pair.alone else safe(one.pair.zeros),
            one.acts.branch.value,
            shape(one.shapes[0]),
            shape(one.shapes[1]),
        )
        for one in done.moved[:_ROWS]
    )
    rest = len(done.moved) - len(rows)
    columns = (
        Column("scale"),
        Column("zero point"),
        Column("layout"),
        Column("before"),
        Column("after"),
    )
    way = "Out of" if done.asked.inverse else "Into"
    note = f"and {rest:,} more, in the JSON report" if rest > 0 else ""
    yield Table(f"{way} the order of {done.asked.aimed}", columns, rows, note)
    lines = [f"written to {safe(done.destination)}; the way back restores every value"]
    doubts = dict.fromkeys(one.acts.note for one in done.moved if _doubtful(one))
    lines.extend(f"likely, not proven: {plain(doubt)}" for doubt in doubts)
    if done.moved[0].acts.weight_may_move:
        lines.append("with four cores and one row of input this chip moves the weight as well")
    yield Lines("", tuple(lines))
