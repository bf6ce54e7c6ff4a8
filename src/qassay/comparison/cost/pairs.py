"""A float tensor and a quantized one that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from qassay.comparison.cost.hypotheses import likeness
from qassay.comparison.cost.judge import Judged, judge
from qassay.comparison.cost.limits import ABOVE
from qassay.comparison.cost.reading import Piece, Sides, read_rows, sample
from qassay.comparison.facts import Pair
from qassay.comparison.weights import Entry, Plain, Weight
from qassay.kernels.cost import Of

_PEEK = 8
"""Rows by which weights of another tensor are recognised."""
_ALIKE = 0.9


class Floats:
    """The float side's tensors, to look up whose weights a quantized tensor really holds."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._by_shape: dict[tuple[int, ...], list[tuple[str, Plain]]] = {}
        for name, entry in entries.items():
            if isinstance(entry, Plain) and is_float(entry) and len(entry.shape) > 1:
                self._by_shape.setdefault(squeezed(entry.shape), []).append((name, entry))

    def holds(self, sides: Sides, name: str) -> str:
        """Return the name of another tensor whose weights these are, or ""."""
        rows = np.arange(min(_PEEK, sides.rows), dtype=np.int64)
        new = sample(sides, rows)[1].values()
        for other, plain in self._by_shape.get(squeezed(sides.weight.shape), ()):
            if other == name:
                continue
            old = read_rows(plain, 0, rows.size, sides.width)
            if likeness(old, new) > _ALIKE and _holds(Sides(plain, sides.weight)):
                return other
        return ""


def _holds(sides: Sides) -> bool:
    """Tell whether all rows cost what they should against another tensor."""
    found = judge(sides, lambda _: "")
    return found.cost.ratio < ABOVE


def is_float(plain: Plain) -> bool:
    """Tell whether a plain tensor holds floats."""
    return plain.encoding.kind == "float"


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without axes of one."""
    return tuple(dim for dim in shape if dim != 1)


def compare_cost(
    plain: Plain,
    weight: Weight,
    pair: Pair,
    floats: Floats,
    name: str,
    heads: Sequence[int] = (),
    *,
    converted: bool = False,
    pieces: Iterator[Piece] | None = None,
) -> Judged:
    """Fill in what quantizing cost, and what went wrong if something did.

    Args:
        plain: The float side; shapes are equal.
        weight: The quantized side.
        pair: What is filled in.
        floats: All tensors of the float side.
        name: The tensor's name among them.
        heads: Numbers of attention heads where rows may be in rotary order.
        converted: Whether the two sides are of different converters, so that this is expected.
        pieces: The measures of the weight, where they are taken already.
    """
    found = judge(
        Sides(plain, weight),
        lambda sides: floats.holds(sides, name),
        heads,
        converted=converted,
        pieces=pieces,
    )
    settle(pair, found)
    return found


def settle(pair: Pair, found: Judged) -> None:
    """Put what became of a weight into its pair."""
    pair.cost, pair.undone = found.cost, found.undone
    pair.transformations = tuple(found.transformations)
    pair.faults = list(found.faults)
    pair.other = found.other
    pair.notes += found.notes
    wrong = [fault for fault in found.faults if fault.kind != "both"]
    if wrong or found.other:
        pair.relation = "different"
    elif any(told.code for told in found.transformations):
        pair.relation = "equal-up-to"
    elif found.cost.total(Of.ERR2) > 0 or found.transformations:
        pair.relation = "quantized"
    else:
        pair.notes.append("every decoded weight is equal to the float side's")
