"""From what `run.compare` found to the document, and the tables that go with it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

from qassay.comparison.facts import Comparison, Pair
from qassay.core.text import safe
from qassay.report.deferred import Deferred
from qassay.report.document import Coverage, NotChecked, Report
from qassay.report.inputs import input_of
from qassay.report.of_compare_cost import cost_tables
from qassay.report.page import Column, Lines, Section, Table
from qassay.report.strict import strict
from qassay.report.words import count, number, plain
from qassay.run.compare import CompareResult

_ROWS = 40
"""Weights that the table lists."""
_KEYS = 20

_RELATIONS = {
    "equal": "equal: the same codes, zero points and scales, whatever the packing",
    "quantized": "what quantizing should cost, and no more",
    "equal-up-to": "equal up to what is named below",
    "different": "different",
    "not-compared": "not compared, or not all of it",
}


def report_of(done: CompareResult) -> Report:
    """Return the report of one comparison."""
    comparison = done.comparison
    compared = [pair for pair in comparison.pairs if pair.relation != "not-compared"]
    crashed = sorted(rule.code for rule, _ in done.crashed)
    skipped = [NotChecked(skip.name, path, skip.reason) for skip, path in done.unread]
    for rule, error in done.crashed:
        reason = f"the rule failed: {type(error).__name__}"
        skipped.append(NotChecked(f"rule {rule.code} {rule.name}", comparison.paths[1], reason))
    return Report(
        command="compare",
        inputs=tuple(input_of(container) for container in done.containers),
        coverage=Coverage(
            tensors=len(comparison.pairs) + len(comparison.alone),
            checked=len(compared) + len(comparison.alone),
            skipped=tuple(skipped),
            bytes=sum(pair.nbytes for pair in compared),
        ),
        findings=tuple(done.findings),
        result=Deferred(partial(_result, comparison, done.rules, crashed)),
        sections=tuple(_sections(comparison)),
        fault=bool(crashed),
    )


def _result(comparison: Comparison, rules: list[str], crashed: list[str]) -> dict[str, Any]:
    kinds: dict[str, dict[str, Any]] = {}
    for pair in comparison.pairs:
        for told in pair.transformations:
            each = kinds.setdefault(
                told.kind, {"kind": told.kind, "rule": told.code or None, "layers": 0}
            )
            each["rule"] = each["rule"] or told.code or None
            each["layers"] += 1
    return {
        "relation": comparison.relation,
        "transformations": list(kinds.values()),
        "layers": [pair.to_dict() for pair in comparison.pairs],
        "alone": [
            {"name": one.name, "side": "first" if one.side == 0 else "second",
             "encoding": one.encoding}
            for one in comparison.alone
        ],
        "computed": comparison.computed,
        "metadata": comparison.metadata,
        "rules": rules,
        "crashed": crashed,
    }  # fmt: skip


def _sections(comparison: Comparison) -> Iterator[Section]:
    yield Lines("Relation", tuple(_relation(comparison)))
    yield from cost_tables(comparison)
    rows = [
        pair
        for pair in comparison.pairs
        if pair.relation in ("equal-up-to", "different")
        and (pair.cost is None or not pair.cost.gridded)
    ]
    if rows:
        yield _table(rows)
    if comparison.metadata:
        yield _metadata(comparison.metadata)


def _headline(comparison: Comparison) -> str:
    measured = any(pair.cost is not None and pair.cost.gridded for pair in comparison.pairs)
    if comparison.relation == "equal-up-to" and measured:
        return "what quantizing should cost, and no more, but for what is named below"
    return _RELATIONS[comparison.relation]


def _strangers(comparison: Comparison) -> bool:
    """Tell whether names or shapes of most tensors are of another model."""
    shapes = sum(
        any(note.startswith("shapes differ") for note in pair.notes) for pair in comparison.pairs
    )
    odd = len(comparison.alone) + shapes
    return odd > 1 and odd >= 0.9 * (len(comparison.pairs) + len(comparison.alone))


def _relation(comparison: Comparison) -> Iterator[str]:
    yield _headline(comparison)
    if _strangers(comparison):
        yield "hardly a tensor has its like on the other side: are these the same model?"
    seen = Counter(pair.relation for pair in comparison.pairs)
    for word in ("equal", "quantized", "equal-up-to", "different", "not-compared"):
        if seen[word]:
            yield f"{count(seen[word], 'tensor')} {word}"
    if comparison.alone:
        yield f"{count(len(comparison.alone), 'tensor')} on one side only"
    if comparison.computed:
        yield f"{count(len(comparison.computed), 'table')} left out: the configuration gives them"
    kinds = Counter(told.text for pair in comparison.pairs for told in pair.transformations)
    for text, layers in kinds.most_common(8):
        yield f"{count(layers, 'tensor')}: {plain(text)}"
    for note, pairs in Counter(note for pair in comparison.pairs for note in pair.notes).items():
        yield f"{count(pairs, 'tensor')}: {plain(note)}"


def _table(pairs: list[Pair]) -> Table:
    titles = ("codes", "zero points", "scales", "weights", "max steps", "rows")
    columns = (
        Column("tensor"),
        Column("encodings"),
        Column("relation"),
        *(Column(title, right=True) for title in titles),
    )
    rest = len(pairs) - _ROWS
    note = f"and {rest:,} more, in the JSON report" if rest > 0 else ""
    return Table("Differences", columns, tuple(_row(pair) for pair in pairs[:_ROWS]), note)


def _row(pair: Pair) -> tuple[str, ...]:
    one, two = pair.encodings
    kinds = one if one == two else f"{one}, {two}"
    head = (safe(pair.name), kinds, pair.relation)
    found = pair.difference
    if found is None:
        return (*head, "-", "-", "-", "-", "-", "-")
    cells = []
    for name in ("codes", "zeros", "scales"):
        part = found.parts.get(name)
        cells.append("-" if part is None else number(part.different))
    share = found.rows.different / found.rows.of if found.rows.of else None
    steps = "-" if "values" in found.parts else number(found.largest)
    return (
        *head,
        *cells,
        number(found.weights.different),
        steps,
        "-" if share is None else f"{share:.1%}",
    )


def _metadata(differences: dict[str, list[Any]]) -> Table:
    rows = tuple(
        (safe(key), *(_value(value) for value in pair))
        for key, pair in list(differences.items())[:_KEYS]
    )
    rest = len(differences) - len(rows)
    note = "no findings by themselves" + (f"; and {rest:,} more" if rest > 0 else "")
    columns = (Column("metadata"), Column("first"), Column("second"))
    return Table("Metadata that differs", columns, rows, note)


def _value(value: Any) -> str:
    if value is None:
        return "-"
    text = value if isinstance(value, str) else json.dumps(strict(value))
    return safe(text, 48)
