"""Two float tensors that differ: how much, and whether it is the order, a rounding, or a loss."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.cost.facts import Cost
from qassay.comparison.cost.inferred import inferred
from qassay.comparison.cost.judge import judge
from qassay.comparison.cost.reading import Sides
from qassay.comparison.facts import Fault, Pair, Transformation
from qassay.comparison.forms import plain_zero
from qassay.comparison.orders import matching, roll_of, summary
from qassay.comparison.sketches import ColumnHashes, digests, mixed, patterns
from qassay.comparison.weights import SLAB, Plain
from qassay.core.errors import InputError
from qassay.kernels.cost import Doubles, measure_rows, none_grid

Order = npt.NDArray[np.int64]


def explain_floats(a: Plain, b: Plain, pair: Pair) -> None:
    """Fill in how far two float tensors of one size are apart, and why if that is known."""
    pair.cost = _measured(a, b)
    told = _moved(a, b)
    if told is not None:
        pair.transformations = (told,)
        pair.relation = "equal-up-to"
        return
    pair.faults += _lost(a, b)
    if not pair.faults:
        _rounded(a, b, pair)


def _pieces(a: Plain, b: Plain) -> Iterator[tuple[int, Doubles, Doubles]]:
    columns = max(1, a.shape[-1] if a.shape else 1)
    step = max(1, SLAB // columns) * columns
    for start in range(0, a.size, step):
        stop = min(start + step, a.size)
        with np.errstate(invalid="ignore"):
            one, two = (side.read(start, stop).astype(np.float64) for side in (a, b))
        yield start // columns, one.reshape(-1, columns), two.reshape(-1, columns)


def _measured(a: Plain, b: Plain) -> Cost:
    cost = Cost(gridded=False)
    for start, one, two in _pieces(a, b):
        cost.add(start, measure_rows(one, two, none_grid(*one.shape)))
    return cost


def _moved(a: Plain, b: Plain) -> Transformation | None:
    """Return the order of rows or columns, or that values are the same in other places."""
    if a.size < 2:
        return None
    rows: tuple[list[Any], list[Any]] = ([], [])
    columns = (ColumnHashes(), ColumnHashes())
    bags = [np.zeros(2, np.uint64), np.zeros(2, np.uint64)]
    for start, *both in _pieces(a, b):
        for at, values in enumerate(both):
            clean = plain_zero(values)
            rows[at].append(digests(clean))
            columns[at].add(clean, start)
            words = patterns(clean).ravel()
            # `mixed` doubles its input: the sign would be lost without the upper half.
            each = (mixed(words, lane) ^ mixed(words >> np.uint64(32), lane) for lane in (0, 1))
            bags[at] += np.array([one.sum() for one in each], np.uint64)
    if not np.array_equal(bags[0], bags[1]):
        return None
    one, two = (np.concatenate(side) for side in rows)
    order = matching(one, two)
    if order is not None:
        return _told(order, "rows")
    order = matching(columns[0].keys(), columns[1].keys())
    if order is not None:
        return _told(order, "columns")
    text = "all values are there, each as often, in other places, and no order of rows or columns"
    if _is_turned(a, b):
        text = "the matrix is transposed"
    return Transformation("values-moved", "Q603", ("values",), text, {"of": a.size})


def _is_turned(a: Plain, b: Plain) -> bool:
    if len(a.shape) != 2 or a.size > SLAB:
        return False
    one, two = a.read(0, a.size).reshape(a.shape), b.read(0, b.size)
    return bool(np.array_equal(one.T.reshape(-1), two))


def _told(order: Order, axis: str) -> Transformation:
    data = {**summary(order), "axis": axis}
    shift = roll_of(order)
    how = f"permuted ({data['moved']:,} of {data['of']:,} moved)"
    if data["moved"] == 2:
        first, second = np.flatnonzero(order != np.arange(order.size)).tolist()
        how = f"swapped: {first} and {second}"
    elif shift is not None:
        data["rolled"] = shift
        how = f"rolled by {shift}"
    return Transformation(f"{axis}-permuted", "Q603", ("values",), f"{axis} are {how}", data)


def _lost(a: Plain, b: Plain) -> list[Fault]:
    """Return rows and columns that are zeros on the second side alone."""
    if len(a.shape) < 2 or a.shape[-1] < 2:
        return []
    width = a.shape[-1]
    seen = [np.zeros(width, bool), np.zeros(width, bool)]
    rows: list[int] = []
    for start, one, two in _pieces(a, b):
        live = [(each != 0) for each in (one, two)]
        for at in (0, 1):
            seen[at] |= live[at].any(axis=0)
        rows += (np.flatnonzero(live[0].any(axis=1) & ~live[1].any(axis=1)) + start).tolist()
    found = []
    columns = np.flatnonzero(seen[0] & ~seen[1]).tolist()
    for noun, lost in (("column", columns), ("row", rows)):
        if lost:
            many = noun if len(lost) == 1 else f"{noun}s"
            verb = "is" if len(lost) == 1 else "are"
            text = f"{len(lost):,} {many} {verb} zeros and not so in the first model"
            row, column = (None, lost[0]) if noun == "column" else (lost[0], None)
            data = {"kind": f"{noun}s-lost", f"{noun}s": lost[:64]}
            found.append(
                Fault("Q601", f"{noun}s-lost", text, len(lost), row, column, severe=True, data=data)
            )
    return found


def _rounded(a: Plain, b: Plain, pair: Pair) -> None:
    """See whether the second side is the first, rounded to few values a group."""
    weight = inferred(b)
    if weight is None:
        return
    try:
        found = judge(Sides(a, weight), lambda _: "")
    except InputError:
        return
    if not math.isfinite(found.cost.ratio):
        return  # of a weight that has no range nothing is rounded
    if any(fault.code != "Q617" for fault in found.faults) or found.transformations:
        pair.faults += found.faults
        pair.transformations = tuple(found.transformations)
        pair.cost, pair.undone = found.cost, found.undone
        if found.transformations:
            pair.relation = "equal-up-to"
        return
    if found.cost.ratio > 2:
        return
    pair.cost = found.cost
    pair.relation = "quantized"
    pair.notes.append(f"values are rounded to {weight.label}, and cost what that should")
