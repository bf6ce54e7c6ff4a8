"""What `--to` would make of the tensors, counted: for the document, and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from qassay.report.page import Column, Table
from qassay.report.words import number
from qassay.rules.base import TensorFacts


def targets(read: Iterable[TensorFacts]) -> dict[str, Any]:
    """Return by word of `--to` how many tensors become what, and how many stay float, and why."""
    found: dict[str, tuple[Counter[str], Counter[str], Counter[str]]] = {}
    for tensor in read:
        for choice in tensor.choices:
            tensors, weights, kept = found.setdefault(
                choice.word, (Counter(), Counter(), Counter())
            )
            if choice.id:
                tensors[choice.id] += 1
                weights[choice.id] += tensor.stored.size
            else:
                kept[choice.reason] += 1
    return {
        word: {
            "becomes": {
                name: {"tensors": tensors[name], "weights": weights[name]}
                for name in sorted(tensors)
            },
            "stays": dict(sorted(kept.items())),
        }
        for word, (tensors, weights, kept) in found.items()
    }


def table(found: dict[str, Any]) -> Table:
    """Return the same as a table."""
    rows = []
    for word, each in found.items():
        lines = [
            (name, number(counts["tensors"]), number(counts["weights"]))
            for name, counts in each["becomes"].items()
        ]
        kept = sum(each["stays"].values())
        if kept:
            why = ", ".join(each["stays"])
            lines.append((f"stays as it is ({why})", number(kept), ""))
        rows += [(word if at == 0 else "", *line) for at, line in enumerate(lines)]
    columns = (Column("to"), Column("becomes"), Column("tensors", True), Column("weights", True))
    return Table("Targets", columns, tuple(rows))
