"""One weight so large that its block has no codes left for the others."""

from __future__ import annotations

import numpy as np

from qassay.encodings.base import BlockEncoding, Floats
from qassay.kernels.geometry import Index
from qassay.runtimes.arithmetic import Doubles
from qassay.runtimes.preflight_settle import Bools, decoded, written

RATIO = 2.0**14
"""How far above its neighbours an outlier is: beyond what 8-bit codes with 8-bit sub-scales span.

In healthy models the largest weight of a row is some hundred times a typical one at most.
"""

_SPAN = 8
"""Runs that are neighbours: 256 weights."""

_SHARE = 0.9
"""Share of a block's weights that must be gone for the block to count as flattened."""


def outlier_runs(amax: Floats, runs: int) -> Index:
    """Return the runs whose largest magnitude is `RATIO` times that of most of their neighbours.

    Args:
        amax: Largest magnitude of each run.
        runs: Runs a row; neighbours are those in the same eight of a row, counted from its start.
    """
    rows = amax.reshape(-1, runs)
    short = -runs % _SPAN
    if short:
        rows = np.pad(rows, ((0, 0), (0, short)))
    spans = rows.reshape(-1, _SPAN)
    top = spans.max(axis=1)
    # Few spans hold anything of that size: look at the others only if they could.
    with np.errstate(all="ignore"):
        some = np.flatnonzero(np.isfinite(spans).all(axis=1) & (top > 0))
        least = np.where(spans[some] > 0, spans[some], np.float32(np.inf)).min(axis=1)
        some = some[top[some].astype(np.float64) >= RATIO * least.astype(np.float64)]
    found = []
    width = rows.shape[1]
    for span in some.tolist():
        sizes = spans[span].astype(np.float64)
        live = np.sort(sizes[sizes > 0])
        middle = float(live[(live.size - 1) // 2])
        for run in np.flatnonzero(sizes >= RATIO * middle).tolist():
            row, place = divmod(span * _SPAN + run, width)
            found.append(row * runs + place)
    return np.array(found, np.int64)


@np.errstate(all="ignore")
def flattened(blocks: Floats, encoding: type[BlockEncoding]) -> tuple[Bools, Doubles, Doubles]:
    """Tell which finite blocks keep nothing but an outlier.

    Returns:
        Whether a block is flattened; its largest weight beside the outliers; how many weights
        come out no better than zero would be.
    """
    got = decoded(written(blocks, encoding), encoding)
    weights = blocks.astype(np.float64)
    size = np.abs(weights)
    ordinary = (size > 0) & (size * RATIO <= size.max(axis=1, keepdims=True))
    wrong = ordinary & ~(np.abs(got - weights) < size)
    others, gone = ordinary.sum(axis=1), wrong.sum(axis=1)
    rest = np.where(ordinary, size, 0.0).max(axis=1)
    # Most of the block is ordinary, and next to all of that is gone.
    hit = (others * 2 > blocks.shape[1]) & (gone >= _SHARE * others)
    return hit, rest, gone.astype(np.float64)
