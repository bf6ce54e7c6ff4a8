"""What quantizing cost, row by row: the NumPy reference.

For each weight w of the source, w' is what the quantized side decodes to, e = w' - w, and e* is
the error that the nearest value of the stored grid would have: the *attainable* error, under the
scale and zero point as stored. So e* judges scales, and what e has beyond e* judges codes::

    grid of a group   start + code * step, code = 0 .. levels - 1     uniform codes
                      table[code] * step                              codes with a table

`PAR2` judges scales from the source alone: what rounding each group to a grid of its own range
costs (see `par_of_group`). Sums are float64, one row at a time, so that neither chunks nor threads
show in them. Pairs with a value that is not finite are counted and left out of every sum.

The fast kernel adds float32 numbers, over eight groups of 16 or 32 weights in an order that
`cost_lanes` tells, and inside other groups in one that the compiler chooses: sums agree with these
to a few parts in a million, counts and maxima of finite numbers exactly but for weights that lie on
a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

ASTRAY = 0.25
"""Steps by which an error may exceed the attainable one: f16 scales move a code's place by less."""

FLOOR = 2.0**-12
"""Of a group's largest weight: what a scale rounded to 11 bits moves it by."""


class Of(IntEnum):
    """Columns of what a kernel returns for each row."""

    COMPARED = 0
    HIDDEN = 1  # not finite in the source, finite when quantized
    BORN = 2  # the reverse
    BOTH = 3  # not finite on both sides
    ERR2 = 4
    REF2 = 5
    CROSS = 6  # sum of w * e
    ERR = 7
    REF = 8
    BEST2 = 9  # sum of squares of e*
    PAR2 = 10
    NEGATIVE = 11  # weights below zero, in groups that have a step
    NEGATIVE_BIAS = 12  # sum of e / step over them
    NEGATIVE_EXCESS = 13  # sum of (e - e*) / step over them
    POSITIVE = 14
    POSITIVE_BIAS = 15
    POSITIVE_EXCESS = 16
    LARGEST = 17  # |e|
    LARGEST_AT = 18
    STEPS = 19  # |e| / step
    STEPS_AT = 20
    ASTRAY = 21  # weights that a nearer code is there for
    CLIPPED = 22  # weights more than a step beyond the grid's ends
    GROUP = 23  # mean of e^2 of the worst group, as multiples of what it should cost
    GROUP_AT = 24


WIDTH = len(Of)


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """What the codes of some rows can stand for.

    Attributes:
        steps: Signed scales, float32 `[n, G]`.
        starts: What code 0 stands for, float32 `[n, G]`; not used with a table.
        bounds: First column of each group and the end, int64 `[G + 1]`; columns are in the order
            of their groups.
        levels: Number of codes.
        symmetric: Whether zero is a code in the middle, uint8 `[n, G]`.
        table: Ascending values, float32, or of length 0 where codes are uniform.
        none: Whether there is no grid at all (float against float).
    """

    steps: Floats
    starts: Floats
    bounds: npt.NDArray[np.int64]
    levels: int
    symmetric: npt.NDArray[np.uint8]
    table: Floats
    none: bool = False


def measure_rows(ref: npt.NDArray[Any], new: npt.NDArray[Any], grid: Grid) -> Doubles:
    """Return what `Of` names for each row, float64 `[n, WIDTH]`.

    Args:
        ref: The source, float32 or float64 `[n, K]`.
        new: What the quantized side decodes to, float32 `[n, K]`.
        grid: The values that it could have decoded to.
    """
    out = np.zeros((ref.shape[0], WIDTH))
    with np.errstate(all="ignore"):
        _finite(out, ref, new)
        old, now = ref.astype(np.float64), new.astype(np.float64)
        both = np.isfinite(old) & np.isfinite(now)
        old[~both] = 0
        error = np.where(both, now - old, 0.0)
        out[:, Of.ERR2] = (error * error).sum(axis=1)
        out[:, Of.REF2] = (old * old).sum(axis=1)
        out[:, Of.CROSS] = (old * error).sum(axis=1)
        out[:, Of.ERR] = error.sum(axis=1)
        out[:, Of.REF] = old.sum(axis=1)
        size = np.abs(error)
        _extreme(out, size, Of.LARGEST)
        if not grid.none:
            _on_grid(out, old, error, both, grid)
    return out


def _finite(out: Doubles, ref: npt.NDArray[Any], new: npt.NDArray[Any]) -> None:
    one, two = np.isfinite(ref), np.isfinite(new)
    out[:, Of.COMPARED] = (one & two).sum(axis=1)
    out[:, Of.HIDDEN] = (~one & two).sum(axis=1)
    out[:, Of.BORN] = (one & ~two).sum(axis=1)
    out[:, Of.BOTH] = (~one & ~two).sum(axis=1)


def _extreme(out: Doubles, size: Doubles, column: Of) -> None:
    if not size.shape[1]:
        return
    at = size.argmax(axis=1)
    out[:, column] = size[np.arange(at.size), at]
    out[:, column + 1] = at


def _on_grid(
    out: Doubles, old: Doubles, error: Doubles, both: npt.NDArray[np.bool_], grid: Grid
) -> None:
    lengths = np.diff(grid.bounds)
    group = np.repeat(np.arange(lengths.size), lengths)
    scale = grid.steps.astype(np.float64)
    usable = (scale != 0) & np.isfinite(scale) & np.isfinite(grid.starts)
    held = usable[:, group] & both
    nearest, step, beyond = _nearest(old, scale, grid, group)
    best = np.where(held, nearest - old, error)
    step = np.where(held, step, np.inf)
    out[:, Of.BEST2] = (best * best).sum(axis=1)
    _extreme(out, np.where(held, np.abs(error) / step, 0.0), Of.STEPS)
    out[:, Of.ASTRAY] = ((np.abs(error) - np.abs(best)) > ASTRAY * step).sum(axis=1)
    out[:, Of.CLIPPED] = (held & beyond).sum(axis=1)
    for sign, first in ((old < 0, Of.NEGATIVE), (old > 0, Of.POSITIVE)):
        taken = sign & held
        out[:, first] = taken.sum(axis=1)
        out[:, first + 1] = np.where(taken, error / step, 0.0).sum(axis=1)
        out[:, first + 2] = np.where(taken, (error - best) / step, 0.0).sum(axis=1)
    costs = np.add.reduceat(error * error, grid.bounds[:-1], axis=1)
    pars = par_of_group(old, grid, group, both)
    out[:, Of.PAR2] = pars.sum(axis=1)
    usual = np.maximum(pars / lengths, (pars.sum(axis=1) / lengths.sum())[:, None])
    ratio = np.where(costs > 0, costs / lengths / usual, 0.0)
    at = ratio.argmax(axis=1)
    out[:, Of.GROUP] = ratio[np.arange(at.size), at]
    out[:, Of.GROUP_AT] = grid.bounds[at]


def _nearest(
    old: Doubles, scale: Doubles, grid: Grid, group: npt.NDArray[np.int64]
) -> tuple[Doubles, Doubles, npt.NDArray[np.bool_]]:
    """Return the nearest value of the grid, the step there, and what lies beyond its ends."""
    wide = np.where(scale == 0, 1.0, scale)[:, group]
    if grid.table.size:
        values = grid.table.astype(np.float64)
        x = old / wide
        code = np.searchsorted((values[1:] + values[:-1]) / 2, x)
        step = np.abs(wide) * gaps_of(grid.table)[code]
        beyond = (x < values[0]) | (x > values[-1])
        return values[code] * wide, step, beyond & (np.abs(values[code] * wide - old) > step)
    start = grid.starts.astype(np.float64)[:, group]
    x = (old - start) / wide
    code = np.clip(np.rint(x), 0, grid.levels - 1)
    return start + code * wide, np.abs(wide), (x < -1) | (x > grid.levels)


def nearest_error(ref: npt.NDArray[Any], grid: Grid) -> Doubles:
    """Return e*, the error of the nearest value of each weight's grid, float64 `[n, K]`."""
    old = ref.astype(np.float64)
    lengths = np.diff(grid.bounds)
    group = np.repeat(np.arange(lengths.size), lengths)
    scale = grid.steps.astype(np.float64)
    with np.errstate(all="ignore"):
        nearest, _, _ = _nearest(np.nan_to_num(old), scale, grid, group)
        return np.where(np.isfinite(scale)[:, group], nearest - old, -old)


def gaps_of(table: Floats) -> Doubles:
    """Return how far each value of an ascending table is from the nearer neighbour."""
    gaps = np.diff(table.astype(np.float64))
    return np.minimum(np.append(gaps, np.inf), np.insert(gaps, 0, np.inf))


def par_of_group(
    old: Doubles, grid: Grid, group: npt.NDArray[np.int64], sound: npt.NDArray[np.bool_]
) -> Doubles:
    """Return what each group should cost: the sum of squared errors, float64 `[n, G]`.

    A uniform grid over the group's own range has steps D = amax / (levels / 2 - 1) where zero is
    in the middle, and (max - min) / (levels - 1) elsewhere, the range taken to hold zero; rounding
    to it costs D^2 / 12 a weight (W. R. Bennett, Spectra of Quantized Signals, 1948). With a table
    the group is rounded to the table scaled to the group's largest weight; that one weight, which
    such a scale would meet exactly and a real scale does not, costs the square of the last gap over
    12. Either way a scale of 11 bits adds `FLOOR`.
    """
    first = grid.bounds[:-1]
    low = np.minimum(np.minimum.reduceat(old, first, axis=1), 0)
    high = np.maximum(np.maximum.reduceat(old, first, axis=1), 0)
    amax = np.maximum(-low, high)
    lengths = np.diff(grid.bounds)
    floor = lengths * (amax * FLOOR) ** 2
    if grid.table.size:
        values = grid.table.astype(np.float64)
        most = np.abs(values).max()
        unit = np.where(amax > 0, amax / most, 1.0)[:, group]
        code = np.searchsorted((values[1:] + values[:-1]) / 2, old / unit)
        away = np.where(sound & (amax > 0)[:, group], values[code] * unit - old, 0.0)
        last = (amax / most * (values[-1] - values[-2])) ** 2 / 12
        return np.asarray(np.add.reduceat(away * away, first, axis=1) + floor + last)
    wide = np.where(
        grid.symmetric != 0, amax / max(1, grid.levels // 2 - 1), (high - low) / (grid.levels - 1)
    )
    return np.asarray(lengths * wide * wide / 12 + floor)


def none_grid(rows: int, columns: int) -> Grid:
    """Return the grid of two float sides: none."""
    empty: Any = np.zeros((rows, 1), np.float32)
    return Grid(empty, empty, np.array([0, columns], np.int64), 2, empty.astype(np.uint8),
                np.zeros(0, np.float32), none=True)  # fmt: skip
