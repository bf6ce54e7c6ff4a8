"""What collecting one chunk of a tensor gives; chunks add up in any order."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qassay.core.stats import (
    CodeStats,
    Histogram,
    Tally,
    TallyKey,
    TensorStats,
    ValueStats,
    merge_tallies,
)
from qassay.kernels.geometry import Geometry

_MOST_WAITING = 64
"""Histograms that are kept apart before they are added up: adding each at once costs more."""

CODE_SAMPLE = 1024
"""Blocks whose codes are counted at the start of every tensor when not all are."""


@dataclass(slots=True)
class ChunkStats:
    """The yield of one chunk.

    Attributes:
        units: Blocks or values collected.
        histograms: Of each scale field.
        values: For plain floats.
        tallies: Offences.
        dead: For a row of which the chunk holds a part, how many units of it are zero.
        codes: Counts of stored codes, from the smallest on, and the blocks counted.
        largest: By scale field, (magnitude pattern, flat index of its first block, bit pattern).
    """

    units: int = 0
    histograms: dict[str, Histogram] = field(default_factory=dict)
    values: ValueStats | None = None
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)
    dead: dict[int, int] = field(default_factory=dict)
    codes: tuple[npt.NDArray[np.int64], int] | None = None
    largest: dict[str, tuple[int, int, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Front:
    """The largest scale seen so far in a tensor, shared by the threads that read it.

    Only a chunk that could move the front has to look for the place of its own largest scale.
    A chunk is passed over only when another one holds a larger scale, or an equal one earlier
    in the file; so the place found at the end does not depend on which chunk came first.
    """

    best: dict[str, tuple[int, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def advances(self, name: str, magnitude: int, start: int) -> bool:
        """Tell whether a chunk from block `start` with this largest magnitude must be searched."""
        with self.lock:
            known = self.best.get(name)
            if known is not None and (known[0], -known[1]) >= (magnitude, -start):
                return False
            self.best[name] = (magnitude, start)
            return True


@dataclass(slots=True)
class Accumulator:
    """Adds up the chunks of one tensor."""

    geometry: Geometry
    total: ChunkStats = field(default_factory=ChunkStats)
    waiting: dict[str, list[Histogram]] = field(default_factory=dict)

    def add(self, chunk: ChunkStats) -> None:
        """Add one chunk; the order does not matter."""
        total = self.total
        total.units += chunk.units
        for name, histogram in chunk.histograms.items():
            waiting = self.waiting.setdefault(name, [])
            waiting.append(histogram)
            if len(waiting) >= _MOST_WAITING:
                self.waiting[name] = [Histogram.sum(waiting)]
        if chunk.values is not None:
            total.values = total.values or ValueStats()
            total.values.merge(chunk.values)
        merge_tallies(total.tallies, chunk.tallies.items())
        self._add_dead(chunk.dead)
        if chunk.codes is not None:
            known_codes = total.codes
            total.codes = (
                chunk.codes
                if known_codes is None
                else (
                    known_codes[0] + chunk.codes[0],
                    known_codes[1] + chunk.codes[1],
                )
            )
        for name, found in chunk.largest.items():
            best = total.largest.get(name)
            if best is None or (found[0], -found[1]) > (best[0], -best[1]):
                total.largest[name] = found

    def _add_dead(self, dead: dict[int, int]) -> None:
        """Add zero units of rows that are read in parts; a row is dead once all of it is zero."""
        for row, units in dead.items():
            known = self.total.dead.pop(row, 0) + units
            if known < self.geometry.per_row:
                self.total.dead[row] = known
            else:
                tallies = self.geometry.tally_dead_rows(np.array([row], np.int64))
                merge_tallies(self.total.tallies, tallies)

    def finish(self) -> TensorStats:
        """Return the summary of the tensor."""
        total = self.total
        stats = TensorStats(
            units=total.units,
            rows=self.geometry.rows,
            histograms={name: Histogram.sum(parts) for name, parts in self.waiting.items()},
            values=total.values,
            tallies=dict(total.tallies),
        )
        if total.codes is not None:
            counts, blocks = total.codes
            stats.codes = CodeStats(Histogram.of_dense(counts), blocks, blocks == total.units)
        return stats
