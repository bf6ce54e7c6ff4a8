"""What collecting one slab of a layer gives; slabs add up in any order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qassay.core.stats import Histogram, LayerMoments, Tally, TallyKey, merge_tallies

_MOST_WAITING = 64
"""Histograms that are kept apart before they are added up: adding each at once costs more."""


@dataclass(slots=True)
class LayerChunk:
    """The yield of one slab.

    Attributes:
        units: Groups of rows that were judged.
        histograms: Of each part that holds scales.
        extremes: Of parts of 32-bit scales, the smallest and largest finite magnitude but 0.
        tallies: Offences.
        dead: The first row of the slab, and of each row how many groups decode to zeros.
        wiped: Tallies of zero scales of whole matrices: live codes under them are looked for
            once all of the matrix has been seen.
        codes: How often each stored code occurs.
        scalars: Of parts that hold few numbers, their first values.
        moments: How the codes are distributed, and the counts of codes and groups behind it.
    """

    units: int = 0
    histograms: dict[str, Histogram] = field(default_factory=dict)
    extremes: dict[str, tuple[float, float]] = field(default_factory=dict)
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)
    dead: tuple[int, npt.NDArray[np.int64]] | None = None
    wiped: dict[TallyKey, Tally] = field(default_factory=dict)
    codes: npt.NDArray[np.int64] | None = None
    scalars: dict[str, tuple[float, ...]] = field(default_factory=dict)
    moments: tuple[LayerMoments, npt.NDArray[np.int64]] | None = None


@dataclass(slots=True)
class LayerTotal:
    """Adds up the slabs of one layer.

    Attributes:
        rows: Rows of the layer.
        total: Everything but histograms and dead rows.
        dead: Of each row how many groups decode to zeros; None as long as none does.
    """

    rows: int
    total: LayerChunk = field(default_factory=LayerChunk)
    waiting: dict[str, list[Histogram]] = field(default_factory=dict)
    dead: npt.NDArray[np.int32] | None = None

    def add(self, chunk: LayerChunk) -> None:
        """Add one slab; the order does not matter."""
        total = self.total
        total.units += chunk.units
        for name, histogram in chunk.histograms.items():
            waiting = self.waiting.setdefault(name, [])
            waiting.append(histogram)
            if len(waiting) >= _MOST_WAITING:
                self.waiting[name] = [Histogram.sum(waiting)]
        for name, (least, most) in chunk.extremes.items():
            known = total.extremes.get(name, (least, most))
            total.extremes[name] = min(least, known[0]), max(most, known[1])
        merge_tallies(total.tallies, chunk.tallies.items())
        merge_tallies(total.wiped, chunk.wiped.items())
        if chunk.dead is not None:
            if self.dead is None:
                self.dead = np.zeros(self.rows, np.int32)
            first, counts = chunk.dead
            self.dead[first : first + counts.size] += counts.astype(np.int32)
        if chunk.codes is not None:
            total.codes = chunk.codes if total.codes is None else total.codes + chunk.codes
        total.scalars.update(chunk.scalars)
        total.moments = chunk.moments or total.moments

    def histograms(self) -> dict[str, Histogram]:
        """Return the histogram of each part that holds scales."""
        return {name: Histogram.sum(parts) for name, parts in self.waiting.items()}
