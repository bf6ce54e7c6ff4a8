"""From what `run.budget` found to the document, and its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from qassay.core.text import safe
from qassay.report.document import Coverage, Input, NotChecked, Report
from qassay.report.page import Column, Lines, Section, Table
from qassay.report.words import count, number, plain, shape, size
from qassay.run.budget import Budget, Cost, Shape
from qassay.run.budget_measure import Measured
from qassay.runtimes.budgets import HALF

_ROWS = 40


def report_of(budget: Budget, measured: Sequence[Measured] = ()) -> Report:
    """Return the report of one account."""
    path = budget.path
    linears = sum(one.count for one in budget.shapes)
    return Report(
        "budget",
        inputs=(Input(path, budget.format, budget.nbytes),) if path else (),
        coverage=Coverage(
            tensors=linears,
            checked=linears,
            skipped=tuple(NotChecked(one.name, path, one.reason) for one in budget.skipped),
        ),
        result=_result(budget, measured),
        sections=tuple(_sections(budget, measured)),
        judged=False,
    )


def _result(budget: Budget, measured: Sequence[Measured]) -> dict[str, Any]:
    return {
        "on": None if budget.aimed is None else str(budget.aimed),
        "lanes": None if budget.aimed is None else budget.aimed.chip.lanes,
        "weights": budget.costs[0].weights if budget.costs else 0,
        "bf16_bytes": _bytes(HALF * budget.costs[0].weights) if budget.costs else 0,
        "encodings": [_cost(one) for one in budget.costs],
        "shapes": [_shape(one, budget) for one in budget.shapes],
        "measured": [_measured(one) for one in measured],
    }


def _bytes(bits: float) -> int:
    return -(-round(bits) // 8)


def _cost(one: Cost) -> dict[str, Any]:
    scheme = one.plan.scheme
    return {
        "encoding": scheme.id,
        "group_size": one.plan.group if scheme.chosen else scheme.group,
        "formula": scheme.formula(),
        "bits_per_weight": one.plan.bits,
        "ratio": one.plan.ratio,
        "bytes": _bytes(one.size),
        "as_compiled": None if one.fallen is None else _bytes(one.fallen),
        "padded": None if one.padded is None else _bytes(one.padded),
        "kept_weights": one.kept,
        "misfit_weights": one.misfits,
        "aborts": one.aborts,
        "notes": list(one.notes),
    }


def _shape(one: Shape, budget: Budget) -> dict[str, Any]:
    return {
        "n": one.n,
        "k": one.k,
        "count": one.count,
        "names": one.names,
        "kept": one.kept,
        "padded": one.padded,
        "more": one.more,
        "scales": [
            {"group_size": group, "shape": [one.n, one.k // group] if one.k % group == 0 else None}
            for group in _groups(budget)
        ],
    }


def _measured(one: Measured) -> dict[str, Any]:
    error = one.error
    done = not one.reason
    return {
        "encoding": one.plan.scheme.id,
        "group_size": one.plan.group if one.plan.scheme.chosen else one.plan.scheme.group,
        "rmse": error.rmse if done else None,
        "snr_db": error.snr_db if done else None,
        "max_error": error.max_error if done and error.compared else None,
        "weights": error.compared,
        "left_out": one.left_out,
        "clipped_groups": one.clipped,
        "reason": one.reason or None,
    }


def _groups(budget: Budget) -> list[int]:
    return list(dict.fromkeys(one.plan.group for one in budget.costs if one.plan.group))


def _sections(budget: Budget, measured: Sequence[Measured]) -> Iterator[Section]:
    yield _costs(budget)
    if budget.shapes:
        yield _shapes(budget)
    if measured:
        yield _errors(measured)
    notes = dict.fromkeys(note for one in budget.costs for note in one.notes)
    if notes:
        yield Lines("", tuple(f"likely, not proven: {plain(note)}" for note in notes))


def _costs(budget: Budget) -> Table:
    on = budget.aimed
    titles = ["group", "bits/weight", "ratio", "size"]
    if on is not None:
        titles += ["as compiled", "padded"]
    columns = (
        Column("encoding"),
        Column("formula"),
        *(Column(title, right=True) for title in titles),
        Column("a group keeps"),
    )
    rows = tuple(_cost_row(one, on is not None) for one in budget.costs)
    weights = budget.costs[0].weights
    of = " of Linears" if budget.shapes else ""
    note = f"{number(weights)} weights{of}; BF16: {size(_bytes(HALF * weights))}"
    kept = budget.costs[0].kept
    if kept:
        note += f"; {number(kept)} of them (output, vision, routers) are kept at 16 bits"
    title = "Budget" if on is None else f"Budget on {on}"
    return Table(title, columns, rows, note)


def _cost_row(one: Cost, on: bool) -> tuple[str, ...]:
    scheme = one.plan.scheme
    group = one.plan.group or scheme.group
    cells = [
        scheme.id,
        scheme.formula(),
        str(group) if group else "-",
        f"{one.plan.bits:.6g}",
        f"{one.plan.ratio:.2f}",
        size(_bytes(one.size)),
    ]
    if on:
        fallen = "-" if one.fallen is None else size(_bytes(one.fallen))
        cells += ["aborts" if one.aborts else fallen]
        cells += ["-" if one.padded is None else size(_bytes(one.padded))]
    return (*cells, scheme.what)


def _shapes(budget: Budget) -> Table:
    groups = _groups(budget)
    on = budget.aimed is not None
    columns = [Column("Linears", right=True), Column("[N, K]")]
    columns += [Column(f"scales, g {group}") for group in groups]
    if on:
        columns += [Column("padded to", right=True), Column("channels", right=True)]
    columns += [Column("the first")]
    rows = []
    for one in budget.shapes[:_ROWS]:
        cells = [number(one.count), shape((one.n, one.k))]
        cells += [
            "kept at 16 bits"
            if one.kept
            else shape((one.n, one.k // group))
            if one.k % group == 0
            else "no whole groups"
            for group in groups
        ]
        if on:
            padded = one.padded is not None and one.padded != one.n
            cells += [str(one.padded) if padded else "-", f"+{one.more:.1%}" if padded else "-"]
        rows.append((*cells, safe(one.names[0]) if one.names else ""))
    rest = len(budget.shapes) - len(rows)
    note = f"and {count(rest, 'more shape')}, in the JSON report" if rest > 0 else ""
    return Table("Shapes", tuple(columns), tuple(rows), note)


def _errors(measured: Sequence[Measured]) -> Table:
    titles = ("group", "RMSE", "SNR (dB)", "max error", "weights", "at 16 bits")
    columns = (Column("encoding"), *(Column(title, right=True) for title in titles), Column(""))
    rows = []
    for one in measured:
        group = one.plan.group or one.plan.scheme.group
        head = (one.plan.scheme.id, str(group) if group else "-")
        if one.reason:
            rows.append((*head, "-", "-", "-", "-", "-", f"not measured: {one.reason}"))
            continue
        note = f"{count(one.clipped, 'one-sided group')} clipped" if one.clipped else ""
        error = one.error
        cells = (number(error.rmse), number(error.snr_db), number(error.max_error))
        rows.append((*head, *cells, number(error.compared), number(one.left_out), note))
    return Table("Measured on these weights", columns, tuple(rows))
