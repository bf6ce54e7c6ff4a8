"""A second look at rows that cost too much: a sound quantizer may have left them so.

The first measure is made for every weight and has to be cheap. Where it finds too much, three
things that sound quantizers do are looked for, from the source and from the error itself:

- Weights of few distinct values (rows of one number, ternary weights) can all lie in the middle
  between two codes, or all on one: D^2/12 is an average that they do not follow. So a group may
  also cost what rounding it to the plainest grid of its own range costs, with whole zero points.
  Codes that are floats have scales that are powers of two, or those of a whole tensor: there it may
  cost what the nearest codes do, as far as half of the widest gap's share of each weight.
- Importance (ggml's imatrix) makes a quantizer fit a group's scale to one or two columns, and give
  up the others, by less than their size. Then, over all rows, the error of these columns is far
  smaller than rounding can be. Such groups are left out.
- Rows whose error is 1/100 of what the usual row should cost cannot matter, whatever they should
  cost by themselves: their scales are at the end of their float type's range.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.comparison.cost.reading import Sides, grid_of, sample
from qassay.kernels import cost as kernels
from qassay.kernels.cost import Doubles, Grid

_SAMPLED = 256
_SERVED = 0.55
"""Share of a column's squared error that is left to it where others' are given up for it."""
_FEWEST = 8
_GIVEN_UP = 0.95
"""Error of a group, relative to its weights, that one column's importance can explain: codes stay
those of the group's own range, and the fitted scale is between none and twice its own. A scale and
a minimum that are fitted to two columns can be anything."""
_PIECE = 1 << 20

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Looked:
    """Groups of some rows, seen again.

    Attributes:
        rows: Which rows, `[n]`.
        costs: Squared error by group, 0 where importance explains it, `[n, G]`.
        allowed: What a sound quantizer may leave, `[n, G]`.
        starts: First column of each group, `[G]`; the last of them ends at `width`.
        width: Columns.
        floor: What any row may cost, squared.
    """

    rows: Order
    costs: Doubles
    allowed: Doubles
    starts: Order
    width: int
    floor: float

    def row_ratios(self) -> Doubles:
        """Return the RMSE of each row as multiples of what is allowed."""
        return _root(self.costs.sum(axis=1), np.maximum(self.allowed.sum(axis=1), self.floor))

    def group_ratios(self) -> Doubles:
        """Return the same of each group; the mean of its row is allowed to every group."""
        lengths = np.diff(np.append(self.starts, self.width))
        usual = np.maximum(self.allowed.sum(axis=1), self.floor)[:, None] / self.width
        return _root(self.costs / lengths, np.maximum(self.allowed / lengths, usual))

    def ratio(self) -> float:
        """Return the RMSE of all these rows as multiples of what is allowed."""
        allowed = max(float(self.allowed.sum()), self.floor * self.rows.size)
        return float(_root(np.array(self.costs.sum()), np.array(allowed)))


def spread_rows(count: int, most: int = _SAMPLED) -> Order:
    """Return up to `most` rows, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def look_again(sides: Sides, rows: Order, floor: float) -> Looked:
    """Return what is left to explain of chosen rows (ascending).

    Args:
        sides: The weight.
        rows: Which rows.
        floor: What any row may cost, squared.
    """
    some = spread_rows(sides.rows, min(_SAMPLED, max(8, _PIECE // max(1, sides.width))))
    served = _Groups.of(sides, some).served()
    costs, allowed = [], []
    step = max(1, _PIECE // max(1, sides.width))
    starts = np.zeros(1, np.int64)
    for at in range(0, rows.size, step):
        seen = _Groups.of(sides, rows[at : at + step])
        starts = seen.grid.bounds[:-1]
        kept = seen.costs <= _GIVEN_UP**2 * seen.energy
        excused = (served > 1) | ((served == 1) & kept)
        costs.append(np.where(excused, 0.0, seen.costs))
        allowed.append(seen.allowed)
    return Looked(rows, np.concatenate(costs), np.concatenate(allowed), starts, sides.width, floor)


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Some rows, columns in the order of their groups.

    Attributes:
        error: Squared error of each weight, `[n, K]`.
        own: Those of rounding to two grids of the group's own range.
        costs: `error` by group, `[n, G]`.
        energy: Squared weights by group.
        allowed: What a sound quantizer may leave, by group.
        grid: The grid.
    """

    error: Doubles
    own: tuple[Doubles, Doubles]
    costs: Doubles
    energy: Doubles
    allowed: Doubles
    grid: Grid

    @classmethod
    def of(cls, sides: Sides, rows: Order) -> _Groups:
        ref, form = sample(sides, rows)
        grid, order = grid_of(form, sides.weight.bits)
        new = form.values()
        if order is not None:
            ref, new = ref[:, order], new[:, order]
        lengths = np.diff(grid.bounds)
        group = np.repeat(np.arange(lengths.size), lengths)
        with np.errstate(all="ignore"):
            old = ref.astype(np.float64)
            sound = np.isfinite(old) & np.isfinite(new)
            old = np.where(sound, old, 0.0)
            error = np.where(sound, new.astype(np.float64) - old, 0.0) ** 2
            own = own_rounding(old, grid, group)
            either = np.maximum(np.maximum(*own), table_rounding(old, grid))
            parts = [_by_group(each, grid) for each in (error, old * old, either)]
            par = kernels.par_of_group(old, grid, group, sound)
        costs, energy, rounding = parts
        return cls(error, own, costs, energy, np.maximum(par, rounding), grid)

    def served(self) -> npt.NDArray[np.int64]:
        """Return how many columns of each group are far nearer than rounding makes them, `[G]`.

        The chance of that by accident falls with the rows: the mean of n squared rounding errors is
        spread by 0.9 / sqrt(n) of itself. Of very few rows nothing is said.
        """
        lengths = np.diff(self.grid.bounds)
        unit = np.repeat(self.allowed / lengths, lengths, axis=1)
        with np.errstate(all="ignore"):
            live = unit > 0
            mine = np.where(live, self.error / unit, 0.0).sum(axis=0)
            each = [np.where(live, own / unit, 0.0).sum(axis=0) for own in self.own]
            usual = np.minimum(*each)  # weights that lie on one of the grids cost nothing
            share = np.where(usual > 0, mine / usual, 1.0)
        rows = self.error.shape[0]
        limit = min(_SERVED, float(np.exp(-4.4 / np.sqrt(rows)))) if rows >= _FEWEST else 0.0
        return np.add.reduceat((share < limit).astype(np.int64), self.grid.bounds[:-1])


def own_rounding(old: Doubles, grid: Grid, group: npt.NDArray[np.int64]) -> tuple[Doubles, Doubles]:
    """Return squared errors of rounding each group to grids of its own range, `[n, K]` twice.

    There are two grids that are usual where zero is in the middle, elsewhere one.

    Args:
        old: The source, finite, columns in the order of groups.
        grid: The kind of grid.
        group: The group of each column.
    """
    first = grid.bounds[:-1]
    low = np.minimum(np.minimum.reduceat(old, first, axis=1), 0)
    high = np.maximum(np.maximum.reduceat(old, first, axis=1), 0)
    amax = np.maximum(-low, high)
    if grid.table.size:
        values = grid.table.astype(np.float64)
        unit = np.where(amax > 0, amax / np.abs(values).max(), 1.0)[:, group]
        code = np.searchsorted((values[1:] + values[:-1]) / 2, old / unit)
        error = np.asarray((values[code] * unit - old) ** 2)
        return error, error
    # A minimum is a float, and begins the grid; a zero point is a code.
    fraction = (grid.starts / np.where(grid.steps == 0, 1, grid.steps)) % 1
    whole = bool((np.minimum(fraction, 1 - fraction) < 1e-3).all())
    # Where zero is in the middle, quantizers let either of the outer codes meet the largest weight,
    # or stretch all codes over the range: those differ by half a step at the ends.
    even = grid.symmetric != 0
    span = np.where(even, 2 * amax, high - low) / (grid.levels - 1)
    found = []
    for wide in (span, np.where(even, amax / max(1, grid.levels // 2 - 1), span)):
        step = np.where(wide > 0, wide, 1.0)
        begin = (np.rint(low / step) * step if whole else low)[:, group]
        step = step[:, group]
        found.append((np.rint((old - begin) / step) * step + begin - old) ** 2)
    return found[0], found[1]


def table_rounding(old: Doubles, grid: Grid) -> Doubles:
    """Return the squared error of the nearest codes of a table, bounded by each weight, `[n, K]`.

    The bound is half of the widest gap among the upper half of the table, as a share of the value
    below it: a quarter of the weight for E2M1, a sixteenth for E4M3. Zeros without a table.
    """
    if not grid.table.size:
        return np.zeros_like(old)
    values = grid.table.astype(np.float64)
    below, above = values[:-1], values[1:]
    upper = below >= values[-1] / 2
    share = float(((above - below)[upper] / below[upper] / 2).max()) if upper.any() else 0.0
    error = np.nan_to_num(kernels.nearest_error(old, grid))
    return np.asarray(np.minimum(error**2, (share * old) ** 2))


def _by_group(values: Doubles, grid: Grid) -> Doubles:
    return np.asarray(np.add.reduceat(values, grid.bounds[:-1], axis=1))


def _root(cost: Doubles, allowed: Doubles) -> Doubles:
    with np.errstate(all="ignore"):
        return np.where(cost > 0, np.sqrt(cost / allowed), 0.0)
