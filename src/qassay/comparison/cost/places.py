"""Rows and columns that stand in other places: found by likeness, one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.cost.reading import Sides, sample
from qassay.comparison.facts import Transformation
from qassay.comparison.forms import Form
from qassay.comparison.orders import roll_of, summary
from qassay.kernels.cost import Floats

MOST = 8192
"""Rows, or columns, that are looked for; and among so many (twice as many rows)."""
_FEATURES = 512
_PIECE = 256
_ALIKE = 0.5
_BETTER = 0.2

Order = npt.NDArray[np.int64]


def rows_elsewhere(sides: Sides, bad: Order) -> tuple[Order, Transformation] | None:
    """Return which row each row of the quantized side really is, if bad ones are others' rows."""
    if not 0 < bad.size <= MOST:
        return None
    among = np.arange(sides.rows) if sides.rows <= 2 * MOST else bad
    columns = _spread(sides.width)
    source = _taken(sides, among, columns, of_source=True)
    held = _taken(sides, bad, columns, of_source=False)
    best = _best(held, source, np.searchsorted(among, bad))
    if best is None:
        return None
    order = np.arange(sides.rows, dtype=np.int64)
    order[bad] = np.where(best >= 0, among[best], bad)
    if np.array_equal(order, np.arange(sides.rows)):
        return None
    return order, _told(order, "rows", "whole rows")


def columns_elsewhere(sides: Sides, bad: Order) -> tuple[Order, Transformation] | None:
    """Return the same of columns."""
    if not 0 < bad.size <= MOST or sides.width > 2 * MOST:
        return None
    ref, form = sample(sides, _spread(sides.rows))
    with np.errstate(all="ignore"):  # no large row speaks for all
        size = np.sqrt(np.nansum(ref.astype(np.float64) ** 2, axis=1, keepdims=True))
        size = np.where((size > 0) & np.isfinite(size), size, 1.0)
        source, held = _unit((ref / size).T), _unit((form.values() / size).T[bad])
    best = _best(held, source, bad)
    if best is None:
        return None
    order = np.arange(sides.width, dtype=np.int64)
    order[bad] = np.where(best >= 0, best, bad)
    if np.array_equal(order, np.arange(sides.width)):
        return None
    return order, _told(order, "columns", "columns")


def undone_columns(sides: Sides, order: Order) -> tuple[Sides, Sides]:
    """Return both ways to undo it: columns with their scales, and codes alone."""
    back = np.argsort(order)

    def codes(one: Form) -> Form:
        return replace(one, codes=one.codes[:, back])

    return replace(sides, columns=order), replace(sides, undo=codes)


def _told(order: Order, axis: str, subject: str) -> Transformation:
    data: dict[str, Any] = summary(order)
    data["axis"] = axis
    shift = roll_of(order)
    repeated = np.unique(order).size < order.size
    moved = f"{data['moved']:,} of {data['of']:,} moved"
    how = f"permuted ({moved})"
    if repeated:
        how = f"those of other {axis}, some of them more than once ({moved})"
    elif shift is not None:
        data["rolled"] = shift
        how = f"rolled by {shift}"
    elif data["moved"] == 2:
        first, second = data["swapped"]
        how = f"swapped: {first} and {second}"
    kind = f"{axis}-repeated" if repeated else f"{axis}-permuted"
    return Transformation(kind, "Q603", (), f"{subject} are {how}", data)


def _spread(count: int) -> Order:
    """Return up to `_FEATURES` places, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, _FEATURES)).astype(np.int64))


def _taken(sides: Sides, rows: Order, columns: Order, *, of_source: bool) -> Floats:
    kept = []
    step = max(1, (1 << 21) // sides.width)
    for at in range(0, rows.size, step):
        some = rows[at : at + step]
        if of_source:
            kept.append(_rows_of_source(sides, some)[:, columns])
        else:
            kept.append(sample(sides, some)[1].values()[:, columns])
    return _unit(np.concatenate(kept))


def _rows_of_source(sides: Sides, rows: Order) -> Floats:
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    found = [sides.source(int(run[0]), int(run[-1]) + 1) for run in np.split(rows, cuts)]
    return np.concatenate(found)


def _unit(values: Floats) -> Floats:
    clean = np.nan_to_num(values.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    clean = clean - clean.mean(axis=1, keepdims=True)
    with np.errstate(all="ignore"):
        norm = np.sqrt((clean.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
        return np.asarray(np.where(norm > 0, clean / norm, 0), np.float32)


def _best(held: Floats, source: Floats, own: Order) -> Order | None:
    """Return for each the source that it is most like, -1 where that is nothing better."""
    found = np.full(held.shape[0], -1, np.int64)
    for at in range(0, held.shape[0], _PIECE):
        likeness = held[at : at + _PIECE] @ source.T
        best = likeness.argmax(axis=1)
        rows = np.arange(best.size)
        most = likeness[rows, best]
        mine = likeness[rows, own[at : at + _PIECE]]
        sure = (most > _ALIKE) & (most > mine + _BETTER)
        found[at : at + _PIECE] = np.where(sure, best, -1)
    return found if (found >= 0).any() else None
