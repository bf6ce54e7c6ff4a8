"""How errors are spread over a step, from a few rows of a weight."""

from __future__ import annotations

import numpy as np

from qassay.comparison.cost.reading import Sides, grid_of, sample
from qassay.comparison.profile import Histogram, histogram
from qassay.comparison.weights import Plain, Weight
from qassay.kernels.cost import gaps_of

_PLACES = 4
_ROWS = 32
_WEIGHTS = 1 << 15
"""Most weights that are looked at, one row at least: sums over all rows are the kernels' business,
this is for a picture."""


def steps_of(plain: Plain, weight: Weight) -> Histogram | None:
    """Return how often `(w' - w) / step` has each size.

    In a few rows at each of a few places, evenly spread over the weight.

    The step is the weight's own: its scale, or with a table the distance of the value that it
    decodes to from the nearer neighbour, times the scale. Groups without a step that is finite and
    not zero are left out. None where there are no rows.
    """
    sides = Sides(plain, weight)
    if not sides.rows or not sides.width:
        return None
    wanted = min(sides.rows, _ROWS, max(1, _WEIGHTS // sides.width))
    run = -(-wanted // _PLACES)  # rows that follow each other are read at once
    places = np.linspace(0, sides.rows - run, -(-wanted // run)).astype(np.int64)
    rows = np.unique(places[:, None] + np.arange(run))
    ref, form = sample(sides, rows)
    new = form.values()
    grid, order = grid_of(form, weight.bits)
    if order is not None:
        ref, new = ref[:, order], new[:, order]
    lengths = np.diff(grid.bounds)
    with np.errstate(all="ignore"):
        scale = grid.steps.astype(np.float64)
        step = np.repeat(np.abs(scale), lengths, axis=1)
        if grid.table.size:
            at = np.nan_to_num(new / np.repeat(scale, lengths, axis=1)).astype(np.float32)
            middles = (grid.table[1:] + grid.table[:-1]) / 2
            step = step * gaps_of(grid.table)[np.searchsorted(middles, at)]
        known = np.isfinite(step) & (step > 0) & np.isfinite(ref) & np.isfinite(new)
        error = new.astype(np.float64) - ref
        return histogram(error[known] / step[known], "step", rows.size)
