"""What there is to say of an error that nothing known explains: lost, clipped, too large."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.cost.facts import Cost
from qassay.comparison.cost.limits import (
    ABOVE,
    ABOVE_COLUMN,
    ABOVE_GROUP,
    ABOVE_ROW,
    FEW,
    LOOK_GROUP,
    LOOK_ROW,
    NEAREST,
    SEVERE,
)
from qassay.comparison.cost.reading import Sides, grid_of, sample
from qassay.comparison.cost.secondlook import Looked, look_again, spread_rows
from qassay.comparison.facts import Fault
from qassay.kernels import cost as kernels
from qassay.kernels.cost import Doubles, Grid, Of

_SAMPLED = 512
_ROOM = 1 << 21
"""Weights that are looked at together, at most: each takes some 100 bytes."""
_LIVE = 4
"""Weights of a column whose nearest codes are not zero, in rows that differ, from which it can be
called lost."""
Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The error of each column, over the rows looked at.

    Attributes:
        ratios: RMSE in steps as multiples of what the nearest codes would cost, `[K]`, which is at
            least what rounding costs on average.
        own: Squared error in steps, `[K]`.
        least: That of the nearest codes.
        rows: Rows that were looked at.
        lost: Columns that decode to zeros, and would not with the nearest codes.
    """

    ratios: Doubles
    own: Doubles
    least: Doubles
    rows: int
    lost: list[int]

    def bad(self, limit: float) -> Order:
        """Return the columns above a limit, ascending; none where codes are chosen together.

        GPTQ makes up for the error of some columns in others, which can then be many steps off, and
        AutoRound moves codes of all: that shows in the columns below the limit. Single columns
        cannot be judged there, from weights alone, nor where rows are few.
        """
        near = self.ratios <= limit
        own, least = float(self.own[near].sum()), float(self.least[near].sum())
        if self.rows < FEW or own > NEAREST**2 * least:
            return np.zeros(0, np.int64)
        return np.flatnonzero(~near).astype(np.int64)


def columns_of(sides: Sides) -> Columns:
    """Return the error of each column, in evenly spread rows."""
    rows = spread_rows(sides.rows, max(1, min(_SAMPLED, _ROOM // max(1, sides.width))))
    ref, form = sample(sides, rows)
    new = form.values()
    grid, order = grid_of(form, sides.weight.bits)
    if order is None:
        order = np.arange(sides.width, dtype=np.int64)
    with np.errstate(all="ignore"):
        old = np.nan_to_num(ref[:, order].astype(np.float64), nan=0, posinf=0, neginf=0)
        error = np.nan_to_num(new[:, order].astype(np.float64) - old, nan=0, posinf=0, neginf=0)
        best = np.nan_to_num(kernels.nearest_error(old, grid), nan=0, posinf=0, neginf=0)
        step = np.nan_to_num(_steps(old + best, grid), nan=0, posinf=0, neginf=0)
        # In steps, so that no large row speaks for all.
        own, least = (
            (np.where(step > 0, part / step, 0.0) ** 2).sum(axis=0) for part in (error, best)
        )
        usual = np.maximum((step > 0).sum(axis=0) / 12, 1e-300)
        ratios = np.sqrt(own / np.maximum(least, usual))
        live = ((old + best) != 0).sum(axis=0) >= min(_LIVE, rows.size)
        live &= np.unique(old, axis=0).shape[0] >= min(_LIVE, rows.size)
        live &= rows.size >= min(FEW, sides.rows)  # of a wide weight, few rows say nothing
    back = np.argsort(order)
    ratios, own, least = np.where(own > 0, ratios, 0)[back], own[back], least[back]
    gone = np.zeros(sides.width, bool)
    gone[order] = live & ~new[:, order].any(axis=0)
    return Columns(ratios, own, least, rows.size, [int(at) for at in np.flatnonzero(gone)])


def _steps(nearest: Doubles, grid: Grid) -> Doubles:
    """Return the step at the nearest value of each weight's grid."""
    steps = np.abs(np.repeat(grid.steps.astype(np.float64), np.diff(grid.bounds), axis=1))
    if not grid.table.size:
        return steps
    middles = (grid.table[1:] + grid.table[:-1]) / 2
    signed = np.repeat(grid.steps, np.diff(grid.bounds), axis=1)
    at = np.searchsorted(middles, np.nan_to_num(nearest / signed))
    return np.asarray(kernels.gaps_of(grid.table)[at] * steps)


def remainder(cost: Cost, sides: Sides, bad: Order) -> list[Fault]:
    """Return what is wrong where nothing that is known explains it.

    Args:
        cost: What was measured.
        sides: The weight.
        bad: Rows that cost much more than they should.
    """
    columns = columns_of(sides)
    lost = [at for at in columns.lost if columns.ratios[at] > ABOVE_COLUMN]
    if lost:
        text = f"{_lost(len(lost), 'column')} to zeros, and not so in the source"
        return [
            Fault("Q601", "columns-lost", text, len(lost), 0, lost[0], severe=True,
                  data={"kind": "columns-lost", "columns": lost[:64]})
        ]  # fmt: skip
    rows = cost.row_ratios()
    empty = _empty_rows(sides, bad[rows[bad] > LOOK_ROW]) if bad.size else []
    if empty:
        text = f"{_lost(len(empty), 'row')} to zeros, and not so in the source"
        return [
            Fault("Q601", "rows-lost", text, len(empty), empty[0], severe=True,
                  data={"kind": "rows-lost", "rows": empty[:64]})
        ]  # fmt: skip
    suspects = np.flatnonzero((rows > ABOVE_ROW) | (cost.group_ratios() > LOOK_GROUP))
    looked = look_again(sides, suspects.astype(np.int64), cost.floor) if suspects.size else None
    if looked is not None:
        found = _out_of_range(cost, sides, looked)
        if found is not None:
            return [found]
    return _above(cost, sides, columns, looked)


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _lost(count: int, noun: str) -> str:
    return f"{_many(count, noun)} {'decodes' if count == 1 else 'decode'}"


def _empty_rows(sides: Sides, rows: Order) -> list[int]:
    some = rows[:4096]
    found: list[int] = []
    step = max(1, min(256, _ROOM // max(1, sides.width)))
    for at in range(0, some.size, step):
        piece = some[at : at + step]
        form = sample(sides, piece)[1]
        zero = ~form.values().any(axis=1)
        found += [int(row) for row in piece[zero]]
    return found


def _worst_group(looked: Looked) -> tuple[float, int, int]:
    """Return how far above what is allowed the worst group is, and its row and first column."""
    ratios = looked.group_ratios()
    row, group = np.unravel_index(int(ratios.argmax()), ratios.shape)
    return float(ratios[row, group]), int(looked.rows[row]), int(looked.starts[group])


def _out_of_range(cost: Cost, sides: Sides, looked: Looked) -> Fault | None:
    """Report weights that no code of their group reaches, where those make the error."""
    worst, row, place = _worst_group(looked)
    if worst <= LOOK_GROUP or not cost.count(Of.CLIPPED):
        return None
    form = sample(sides, np.array([row], np.int64))[1]
    grid, order = grid_of(form, sides.weight.bits)
    column = place if order is None else int(order[place])
    group = int(form.groups[column])
    step = abs(float(form.scales[0, group]))
    if not step > 0:
        return None
    ref = sides.source(row, row + 1)[0]
    inside = np.flatnonzero(form.groups == group)
    old, new = ref[inside].astype(np.float64), form.values()[0, inside].astype(np.float64)
    best = kernels.nearest_error(ref[None] if order is None else ref[None, order], grid)[0]
    at = inside if order is None else np.flatnonzero(np.isin(order, inside))
    with np.errstate(all="ignore"):
        if not float((best[at] ** 2).sum()) >= 0.5 * float(((new - old) ** 2).sum()):
            return None
    zero = None if form.zeros is None or form.minimums is not None else int(form.zeros[0, group])
    one_sided = bool((old > 0).all() and zero == 0) or bool(
        (old < 0).all() and zero == (1 << sides.weight.bits) - 1
    )
    if not one_sided and worst <= ABOVE_GROUP:
        return None
    most = float(np.abs(new - old).max()) / step
    seen = cost.count(Of.CLIPPED)
    kind = "one-sided-group" if one_sided else "out-of-range"
    why = (
        ": all weights of the group have one sign, and the zero point was cut off at the end of"
        " its range instead of extending the range to zero"
        if one_sided
        else ""
    )
    text = (
        f"{seen:,} weights lie beyond all codes of their group: codes are saturated at one end, and"
        f" the worst group is off by up to {most:.3g} steps{why}. It is the quantizer's"
        " arithmetic, not the order of codes: no other code would be nearer"
    )
    data = {"kind": kind, "largest_steps": most, "layout": False}
    return Fault("Q601", kind, text, seen, row, column, severe=most > 2, data=data)


def _above(cost: Cost, sides: Sides, columns: Columns, looked: Looked | None) -> list[Fault]:
    """Report a tensor, rows, columns or a group that cost more than a sound quantizer leaves."""
    label = sides.weight.label
    bad = columns.bad(ABOVE_COLUMN)
    ratio = cost.ratio
    if ratio > ABOVE:
        some = look_again(sides, spread_rows(sides.rows), cost.floor)
        ratio *= min(1.0, _less(some.ratio(), cost, some.rows))
    rows = np.zeros(0) if looked is None else looked.row_ratios()
    row: int | None
    column: int | None
    if ratio > ABOVE:
        text = f"the error is {cost.ratio:.3g} times what {label} should cost here"
        count, row, column = 1, int(cost.row_ratios().argmax()), None
        most = ratio
    elif looked is not None and (rows > ABOVE_ROW).any():
        count, worst = int((rows > ABOVE_ROW).sum()), int(rows.argmax())
        row, column, most = int(looked.rows[worst]), None, float(rows[worst])
        text = (
            f"{_many(count, 'row')} of {sides.rows:,} cost up to {rows[worst]:.3g} times what"
            f" {label} should cost"
        )
    elif bad.size:
        count, row, column = int(bad.size), None, int(bad[columns.ratios[bad].argmax()])
        most = 0.0  # nearest codes can cost next to nothing
        text = (
            f"{_many(count, 'column')} of {sides.width:,} cost up to {columns.ratios[column]:.3g}"
            " times what the nearest codes would"
        )
    elif looked is not None and _worst_group(looked)[0] > ABOVE_GROUP:
        times, row, column = _worst_group(looked)
        count, most = 1, 0.0
        text = f"one group costs {times:.3g} times what {label} should cost"
    else:
        return []
    text += (
        f" (codes: {cost.code_ratio:.3g} times what the nearest would cost; scales:"
        f" {cost.scale_ratio:.3g} times), and nothing known explains it"
    )
    data: dict[str, Any] = {"kind": "unexplained", "ratio": cost.ratio,
                            "code_ratio": cost.code_ratio,
                            "scale_ratio": cost.scale_ratio}  # fmt: skip
    severe = most > SEVERE
    return [Fault("Q601", "unexplained", text, count, row, column, severe=severe, data=data)]


def _less(again: float, cost: Cost, rows: Order) -> float:
    """Return what a second look makes of an error in some rows, as a share of the first."""
    error, par = (float(cost.each(name)[rows].sum()) for name in (Of.ERR2, Of.PAR2))
    return again / float(np.sqrt(error / par)) if error > 0 and par > 0 else 1.0
