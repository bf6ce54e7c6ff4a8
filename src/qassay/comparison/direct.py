"""Two weights as they are, place by place: equal, or different where and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.facts import PARTS, Difference, PartCount
from qassay.comparison.forms import Form, ranks_of, same, steps_of
from qassay.comparison.weights import Weight, row_factors, slabs


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Two weights of one shape, read in step.

    Attributes:
        a: The first.
        b: The second.
        local: Whether both keep the scale of the whole tensor apart, so that it is left out.
        factor: What the scales of `b` are multiplied by because its table is that much smaller
            (ggml doubles the table of E2M1 and halves the scale).
        comparable: Whether codes of both sides stand for the same multiples of the scale.
    """

    a: Weight
    b: Weight
    local: bool
    factor: float
    comparable: bool

    @classmethod
    def of(cls, a: Weight, b: Weight) -> Sides:
        """Look at the first row of both."""
        local = a.whole is not None and b.whole is not None
        factor = _table_factor(a.form(0, 1, local=local), b.form(0, 1, local=local))
        alike = factor is not None and a.bits == b.bits
        return cls(a, b, local, factor or 1.0, alike)

    def forms(self, start: int, stop: int) -> tuple[Form, Form]:
        """Return rows of both sides, with parts that can be set side by side."""
        one = self.a.form(start, stop, local=self.local)
        two = self.b.form(start, stop, local=self.local)
        if self.factor != 1.0:
            with np.errstate(over="ignore"):
                scales = two.scales * np.float32(self.factor)
            two = replace(two, scales=scales, table=one.table)
        if (one.minimums is None) != (two.minimums is None):
            one, two = _with_minimum(one), _with_minimum(two)
        return one, two

    def pieces(self) -> Iterator[tuple[int, Form, Form]]:
        """Yield first row and rows of both sides, from the first to the last."""
        for start, stop in slabs(self.a):
            yield (start, *self.forms(start, stop))


def _table_factor(one: Form, two: Form) -> float | None:
    """Return what the second table has to be multiplied by, None where no factor does it."""
    if one.table is None or two.table is None:
        return 1.0 if one.table is None and two.table is None else None
    if one.table.size != two.table.size:
        return None
    if same(one.table, two.table).all():
        return 1.0
    for factor in (2.0, 0.5):
        if same(one.table, two.table * np.float32(factor)).all():
            return 1 / factor
    return None


def _with_minimum(form: Form) -> Form:
    """Return a form whose zero points are written as minimums, as Q4_1 has them."""
    if form.minimums is not None:
        return form
    zeros = np.zeros_like(form.scales) if form.zeros is None else form.zeros
    with np.errstate(invalid="ignore", over="ignore"):
        # 0 - x, so that a zero point of zero gives 0 and not -0.
        minimums = np.float32(0) - zeros.astype(np.float32) * form.scales
    return replace(form, zeros=np.zeros_like(form.scales, np.int16), minimums=minimums)


def differ(sides: Sides) -> Difference:
    """Return how two weights of one shape differ as they are, over every row."""
    found = Difference(comparable=sides.comparable)
    if not sides.comparable:
        found.note = (
            f"codes of {sides.a.label} and {sides.b.label} do not count the same steps;"
            " only decoded weights are set side by side"
        )
    factors = _whole_differs(sides, found)
    for start, one, two in sides.pieces():
        _add(found, sides, start, one, two, factors)
    return found


def _whole_differs(sides: Sides, found: Difference) -> bool:
    if not sides.local:
        return False
    assert sides.a.whole is not None  # noqa: S101 - `local` says so
    assert sides.b.whole is not None  # noqa: S101
    one, two = sides.a.whole, sides.b.whole
    spread: list[npt.NDArray[Any]]
    if one.values.size != two.values.size:
        count = max(one.values.size, two.values.size)
        spread = [np.broadcast_to(each.factors(), count) for each in (one, two)]
    elif one.divides == two.divides:
        spread = [one.values, two.values]
    else:
        spread = [one.factors(), two.factors()]
    off = ~same(*spread)
    if one.divides != two.divides:
        off &= ~is_reciprocal(spread[0], spread[1])
    found.parts["whole"] = PartCount(int(off.sum()), off.size)
    return bool(off.any())


def is_reciprocal(one: npt.NDArray[Any], two: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Tell where two factors are equal up to one unit in the last place of float32.

    A divisor that was inverted to a multiplier is rounded once; writers that divide in another
    order may be one unit off.
    """
    a, b = one.astype(np.float32), two.astype(np.float32)
    finite = np.isfinite(a) & np.isfinite(b)
    with np.errstate(all="ignore"):
        near: npt.NDArray[np.bool_] = np.abs(a - b) <= np.spacing(np.minimum(np.abs(a), np.abs(b)))
    return finite & near


def _add(found: Difference, sides: Sides, start: int, one: Form, two: Form, factors: bool) -> None:
    narrow = np.array_equal(one.groups, two.groups)
    clean = not factors
    if sides.comparable:
        if not narrow and one.scales.shape[1] == two.scales.shape[1]:
            count = found.parts.setdefault("groups", PartCount(0, one.groups.size))
            count.different = max(count.different, int((one.groups != two.groups).sum()))
        clean &= _add_parts(found, start, one, two, narrow=narrow)
    else:
        clean = False
    found.weights.of += one.codes.size
    found.rows.of += one.codes.shape[0]
    if not clean:
        _add_values(found, sides, start, one, two, factors=factors)


def _add_parts(found: Difference, start: int, one: Form, two: Form, *, narrow: bool) -> bool:
    """Count what differs in each part; tell whether nothing does."""
    a, b = (one, two) if narrow else (one.spread(), two.spread())
    clean = True
    for name in PARTS:
        left, right = a.part(name), b.part(name)
        if left is None or right is None:
            continue
        count = found.parts.setdefault(name, PartCount())
        count.of += left.size
        off = ~same(left, right)
        places = np.flatnonzero(off)
        if not places.size:
            continue
        clean = False
        count.different += places.size
        if name == "codes":
            _drift(found, left, right)
        if name in ("codes", "zeros"):
            ranks = name == "codes" and one.table is not None
            _add_steps(count, left, right, places.size, one.table if ranks else None)
        row, column = divmod(int(places[0]), left.shape[1])
        if found.first is None or (start + row, PARTS.index(name)) < (
            found.first["row"],
            PARTS.index(found.first["part"]),
        ):
            wide = name == "codes" or not narrow
            at = column if wide else int(np.argmax(one.groups == column))
            found.first = {
                "row": start + row,
                "column": at,
                "part": name,
                "values": [left[row, column].item(), right[row, column].item()],
            }
    return clean


def _add_steps(
    count: PartCount,
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    different: int,
    table: npt.NDArray[np.float32] | None,
) -> None:
    if table is not None:
        ranks = ranks_of(table)
        left, right = ranks[left], ranks[right]
    away = np.abs(left - right)
    two, more = int(np.count_nonzero(away == 2)), int(np.count_nonzero(away > 2))
    # Two codes of one value (0 and -0) are as near as can be.
    for at, seen in enumerate((different - two - more, two, more)):
        count.steps[at] += seen


def _drift(found: Difference, left: npt.NDArray[Any], right: npt.NDArray[Any]) -> None:
    away = left - right
    both = left + right
    first = int(away.sum(dtype=np.int64))
    second = int(np.einsum("ij,ij->", away, both, dtype=np.int64))
    found.drift = (found.drift[0] + first, found.drift[1] + second)


def _add_values(
    found: Difference, sides: Sides, start: int, one: Form, two: Form, *, factors: bool
) -> None:
    """Count decoded weights that differ, and find the largest difference in steps."""
    left, right = one.values(), two.values()
    step = np.abs(one.scales)[:, one.groups]
    if factors:
        stop = start + left.shape[0]
        with np.errstate(over="ignore", invalid="ignore"):
            own = row_factors(sides.a, start, stop)[:, None]
            left, step = left * own, step * np.abs(own)
            right = right * row_factors(sides.b, start, stop)[:, None]
    off = ~same(left, right)
    if not off.any():
        return
    found.weights.different += int(off.sum())
    rows = off.any(axis=1)
    found.rows.different += int(rows.sum())
    if found.first is None:
        row, column = divmod(int(np.flatnonzero(off)[0]), off.shape[1])
        found.first = {
            "row": start + row,
            "column": column,
            "part": "weights",
            "values": [left[row, column].item(), right[row, column].item()],
        }
    finite = np.isfinite(left) & np.isfinite(right)
    found.one_sided += int((off & ~finite).sum())
    with np.errstate(all="ignore"):
        if one.table is not None:
            step = step * steps_of(one.table)[one.codes]
        away = np.abs(left - right) / step
    away[~(finite & off & (step > 0))] = 0
    at = int(np.argmax(away))
    row, column = divmod(at, off.shape[1])
    if away[row, column] > 0:
        exact = abs(float(left[row, column]) - float(right[row, column])) / float(step[row, column])
        if exact > found.largest:
            found.largest, found.largest_at = exact, (start + row, column)
