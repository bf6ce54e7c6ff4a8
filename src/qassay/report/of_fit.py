"""From what `run.fit` found to the document, and the tables that go with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from qassay.core.finding import Severity
from qassay.core.text import safe
from qassay.report.document import Coverage, Input, NotChecked, Report
from qassay.report.inputs import input_of
from qassay.report.page import Column, Pairs, Section, Table
from qassay.report.words import count, number, size
from qassay.run.fit import FitResult
from qassay.runtimes.fit import Fit, Outcome

_WORDS = {Severity.ERROR: "fails", Severity.WARNING: "is changed", Severity.INFO: "is told of"}


def report_of(results: Iterable[FitResult]) -> Report:
    """Return the report of one model or several."""
    every = list(results)
    crashed = sorted({rule.code for result in every for rule, _ in result.crashed})
    fits = [result.fit for result in every if result.fit is not None]
    return Report(
        command="fit",
        inputs=tuple(_input(result) for result in every),
        coverage=Coverage(
            tensors=sum(len(fit.shapes.linears) for fit in fits),
            checked=sum(not outcome.unknown for fit in fits for outcome in fit.outcomes),
            skipped=tuple(skip for result in every for skip in _skipped(result)),
        ),
        findings=tuple(finding for result in every for finding in result.findings),
        result={
            "fits": [fit_of(fit) for fit in fits],
            "rules": sorted({code for result in every for code in result.rules}),
            "crashed": crashed,
        },
        sections=tuple(section for fit in fits for section in sections(fit, len(fits) > 1)),
        fault=bool(crashed),
    )


def _input(result: FitResult) -> Input:
    container = result.container
    if container.sources:
        return input_of(container)
    linears = 0 if result.fit is None else len(result.fit.shapes.linears)
    held = int(container.extra.get("text_bytes", 0))
    return Input(container.path, container.format, held, count(linears, "Linear"))


def _skipped(result: FitResult) -> list[NotChecked]:
    path = result.container.path
    skipped = [NotChecked(skip.name, path, skip.reason) for skip in result.unread]
    for rule, error in result.crashed:
        reason = f"the rule failed: {type(error).__name__}"
        skipped.append(NotChecked(f"rule {rule.code} {rule.name}", path, reason))
    return skipped


def fit_of(fit: Fit) -> dict[str, Any]:
    """Return what the document says of a model on a runtime."""
    asked, shapes = fit.asked, fit.shapes
    return {
        "path": fit.path,
        "on": str(asked.place),
        "runtime": asked.place.runtime,
        "variant": asked.place.variant,
        "version": asked.place.version,
        "to": asked.to,
        "group_size": asked.group_size,
        "tp": asked.tp,
        "notes": [*asked.notes, *([asked.place.note] if asked.place.note else [])],
        "shapes_from": shapes.source,
        "model_type": shapes.model_type,
        "method": shapes.method,
        "bytes_read": shapes.bytes_read,
        "linears": len(shapes.linears),
        "weights": shapes.weights,
        "layers": [
            {**row, "becomes": becomes(asked.to, outcome), "outcome": _verdict(outcome)}
            for row, outcome in _kinds(fit)
        ],
    }  # fmt: skip


def _kinds(fit: Fit) -> list[tuple[dict[str, Any], Outcome]]:
    """Return the Linears with one role, shape and outcome as one row, in the order of the first."""
    rows: dict[tuple[object, ...], tuple[dict[str, Any], Outcome]] = {}
    for linear, outcome in zip(fit.shapes.linears, fit.outcomes, strict=True):
        name = linear.pattern
        key = (name, linear.n, linear.k, id(outcome))
        if key not in rows:
            row = {"name": name, "role": linear.role, "n": linear.n, "k": linear.k, "count": 0,
                   "layer_numbers": [], "quantized": linear.quantized,
                   "fused_as": linear.fused_as or None}  # fmt: skip
            rows[key] = (row, outcome)
        rows[key][0]["count"] += linear.experts or 1
        numbers = rows[key][0]["layer_numbers"]
        if linear.layers and linear.layers[0] not in numbers[-1:]:  # experts come in a row
            numbers.append(linear.layers[0])
    return list(rows.values())


def _verdict(outcome: Outcome) -> dict[str, Any]:
    return {
        "weights": outcome.how,
        "rules": [failure.rule.id for failure in outcome.failures],
        "severity": None if outcome.worst is None else outcome.worst.label,
        "unknown": outcome.unknown,
    }


def sections(fit: Fit, several: bool = False) -> tuple[Section, ...]:
    """Return what a text report shows of a model on a runtime, by its name if there are several."""
    asked, shapes = fit.asked, fit.shapes
    tp = f", {asked.tp} ranks" if asked.tp > 1 else ""
    group = "one scale a row" if asked.group_size <= 0 else f"groups of {asked.group_size}"
    mode = (asked.to or "-") if asked.bits == 16 else f"{asked.to}, {group}"
    pairs = [
        ("runtime", f"{asked.place}{tp}"),
        ("to", mode),
        ("read", f"{size(shapes.bytes_read)} of {_SOURCES.get(shapes.source, shapes.source)}"),
        *(("note", safe(note)) for note in (*asked.notes, asked.place.note) if note),
    ]
    title = f"Fit of {safe(fit.path, 80)}" if several else "Fit"
    return (Pairs(title, tuple(pairs)), _table(fit))


_SOURCES = {"headers": "headers", "config": "configuration", "table": "table"}


def _table(fit: Fit) -> Table:
    rows = tuple(
        (
            safe(row["name"], 80),
            number(row["count"]),
            number(row["n"]),
            number(row["k"]),
            becomes(fit.asked.to, outcome),
        )
        for row, outcome in _kinds(fit)
    )
    columns = (
        Column("Linear"),
        *(Column(title, right=True) for title in ("count", "N", "K")),
        Column("becomes"),
    )
    return Table("Linears", columns, rows, listed=True)


def becomes(to: str, outcome: Outcome) -> str:
    """Return what a runtime makes of a Linear, in a word or two: `w4bf16`, `fails: ...`."""
    if outcome.unknown:
        return "not checked"
    if outcome.failures:
        worst = max(outcome.failures, key=lambda failure: failure.severity)
        return f"{_WORDS[worst.severity]}: {worst.rule.id}"
    if outcome.how == "codes":
        return "as the checkpoint has it"
    return to if outcome.how in ("floats", "again") else f"16 bits: {outcome.how}"
