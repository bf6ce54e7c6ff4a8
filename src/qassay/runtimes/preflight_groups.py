"""Groups coded from their smallest to their largest weight with a zero point that is clipped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.stats import Offence, Tally
from qassay.encodings.base import PlainEncoding
from qassay.kernels.geometry import Geometry
from qassay.runtimes.preflight import COARSE_STEPS
from qassay.runtimes.preflight_stats import Extent, Harm, PreflightStats
from qassay.runtimes.targets import GroupFormat

LEAST_RANGE = 1e-5
"""What the compiler takes for the range of a group whose weights are closer together."""


@np.errstate(all="ignore")
def judge_groups(
    source: type[PlainEncoding],
    own: Geometry,
    bits: npt.NDArray[Any],
    start: int,
    form: GroupFormat,
) -> PreflightStats:
    """Return what becomes of the groups of a chunk, of which the first value is `start`.

    A group whose weights all have one sign gets the zero point 0 (or the largest code), which
    leaves `min / s` steps out of reach: every weight comes out wrong by about that much.
    """
    columns = min(own.columns, bits.size)
    if columns % form.size:
        return PreflightStats()
    geometry = replace(own, block=form.size, block_bytes=form.size * own.block_bytes)
    values = source.to_float32(bits.view(source.dtype)).reshape(-1, form.size)
    least, most = values.min(axis=1), values.max(axis=1)
    width = np.maximum(most - least, np.float32(LEAST_RANGE)) / np.float32(form.levels)
    missed = np.maximum(np.maximum(least, -most) / width, 0).astype(np.float64)
    amax = np.maximum(np.abs(least), np.abs(most)).astype(np.float64)
    finite = np.isfinite(amax)
    stats = PreflightStats(units=amax.size, live={None: int((amax != 0).sum())})
    stats.amax = float(amax[finite].max()) if finite.any() else 0.0
    at = np.flatnonzero((missed > COARSE_STEPS) & finite)
    if at.size == 0:
        return stats
    units = at + start // form.size
    for (_, _, expert), tally in geometry.tally(
        Offence.DEAD_BLOCK, units, read=lambda some: amax[at[some]]
    ):
        stats.tallies.setdefault((Harm.ONE_SIDED, 0, expert), Tally()).merge(tally)
    for expert, members in geometry.by_expert(units // geometry.per_row):
        worst = int(at[members[np.argmax(missed[at[members]])]])
        data = {
            "least": float(least[worst]),
            "most": float(most[worst]),
            "steps": float(missed[worst]),
        }
        sizes = amax[at[members]]
        unit = worst + start // form.size
        extent = Extent(float(sizes.min()), float(sizes.max()), data["steps"], unit, data)
        stats.extend((Harm.ONE_SIDED, expert), extent)
    return stats
