"""Pictures of an error in few numbers: along the channels, and how often each size occurs.

Bounded whatever the weight: a report of hundreds of tensors stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

BINS = 96
"""Numbers along the channels: with more channels each stands for several."""
REACH = {"step": 1.5, "rms": 4.0}
"""A histogram goes from minus this to this; what is beyond is counted on either side."""
BARS = 48


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """How often errors of each size occur.

    Attributes:
        unit: What 1 is: `step`, or `rms` of the error itself.
        counts: int64 `[BARS]`; a bar holds its left end and not its right one.
        below: Errors under minus `REACH[unit]`.
        above: Errors of `REACH[unit]` or more.
        rows: How many rows were looked at.
    """

    unit: str
    counts: npt.NDArray[np.int64]
    below: int
    above: int
    rows: int

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "unit": self.unit,
            "from": -REACH[self.unit],
            "width": 2 * REACH[self.unit] / BARS,
            "counts": self.counts.tolist(),
            "below": self.below,
            "above": self.above,
            "rows": self.rows,
        }


def histogram(values: npt.NDArray[Any], unit: str, rows: int) -> Histogram:
    """Count errors that are in units already, of any shape; those that are no number are left out.

    `rows` is how many rows they are of.
    """
    finite = values[~np.isnan(values)]
    reach = REACH[unit]
    inside = finite[(finite >= -reach) & (finite < reach)].astype(np.float64)
    place = np.floor((inside + reach) * (BARS / (2 * reach))).astype(np.int64)
    return Histogram(
        unit,
        np.bincount(np.minimum(place, BARS - 1), minlength=BARS).astype(np.int64),
        int(np.count_nonzero(finite < -reach)),
        int(np.count_nonzero(finite >= reach)),
        rows,
    )


def along(values: Doubles) -> dict[str, Any]:
    """Return one number a channel as at most `BINS`: how many channels each stands for, mean, most.

    Infinities count in what is most, and are left out of the mean.
    """
    size = values.size
    per = max(1, -(-size // BINS))
    starts = np.arange(0, size, per)
    finite = np.isfinite(values)
    known = np.where(finite, values, 0.0)
    told: dict[str, Any] = {"channels": size, "per": per, "mean": [], "most": []}
    if size:
        seen = np.maximum(np.add.reduceat(finite.astype(np.int64), starts), 1)
        most = np.maximum.reduceat(np.where(np.isnan(values), 0.0, values), starts)
        told["mean"] = [_short(each) for each in np.add.reduceat(known, starts) / seen]
        told["most"] = [_short(each) for each in most]
    return told


def _short(value: float) -> float:
    return float(f"{value:.3g}")
