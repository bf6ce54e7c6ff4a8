"""What quantizing a tensor would do to it: counts, extremes and places that add up in any order."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from qassay.core.stats import Tally
from qassay.kernels.geometry import Geometry

NEGLIGIBLE = 30
"""A block whose largest weight is this many powers of two below the tensor's hardly matters."""


class Harm(enum.Enum):
    """What quantizing does to a block (or a row) that ought not to happen."""

    OVERFLOW = "overflow"
    LOST_BLOCK = "lost-block"
    LOST_ROW = "lost-row"
    COARSE = "coarse"
    FLATTENED = "flattened"
    NOT_FINITE = "not-finite"
    ONE_SIDED = "one-sided"


@dataclass(slots=True)
class Extent:
    """How large the concerned blocks' weights are, and the one concerned most.

    Attributes:
        least, most: Smallest and largest of the blocks' largest magnitudes.
        worst: How badly the worst block is hit; the greater the worse.
        unit: Its number in the tensor.
        data: Numbers about it.
    """

    least: float
    most: float
    worst: float = 0.0
    unit: int = -1
    data: dict[str, Any] = field(default_factory=dict)

    def merge(self, other: Extent) -> None:
        """Add `other`; of equals the first in the file stays."""
        self.least = min(self.least, other.least)
        self.most = max(self.most, other.most)
        if (other.worst, -other.unit) > (self.worst, -self.unit):
            self.worst, self.unit, self.data = other.worst, other.unit, other.data


HarmKey = tuple[Harm, int, "int | None"]
"""Kind, binary exponent of the block's largest magnitude, expert."""


@dataclass(slots=True)
class Row:
    """A row of which only a part was seen: live and lost blocks, exponent, largest magnitude."""

    live: int = 0
    lost: int = 0
    exponent: int = -10_000
    amax: float = 0.0

    def merge(self, other: Row) -> None:
        """Add another part."""
        self.live += other.live
        self.lost += other.lost
        self.exponent = max(self.exponent, other.exponent)
        self.amax = max(self.amax, other.amax)


@dataclass(slots=True)
class PreflightStats:
    """What one target would do to one tensor.

    Attributes:
        units: Blocks.
        live: Blocks that hold something other than zeros, by expert (None for all).
        exponent: Binary exponent of the largest finite magnitude, by expert.
        amax: The largest finite magnitude.
        tallies: Harms by kind, exponent and expert.
        extents: By kind and expert.
        open_rows: Rows of which the end has not been seen.
        estimated: Whether scales were estimated, no engine here writing the target.
    """

    units: int = 0
    live: dict[int | None, int] = field(default_factory=dict)
    exponent: int = -10_000
    amax: float = 0.0
    tallies: dict[HarmKey, Tally] = field(default_factory=dict)
    extents: dict[tuple[Harm, int | None], Extent] = field(default_factory=dict)
    open_rows: dict[int, Row] = field(default_factory=dict)
    estimated: bool = False

    def merge(self, other: PreflightStats) -> None:
        """Add `other`; the outcome does not depend on the order of merging."""
        self.units += other.units
        for expert, live in other.live.items():
            self.live[expert] = self.live.get(expert, 0) + live
        self.exponent = max(self.exponent, other.exponent)
        self.amax = max(self.amax, other.amax)
        for key, tally in other.tallies.items():
            self.tallies.setdefault(key, Tally()).merge(tally)
        for place, extent in other.extents.items():
            self.extend(place, extent)
        for row, part in other.open_rows.items():
            self.open_rows.setdefault(row, Row()).merge(part)
        self.estimated = self.estimated or other.estimated

    def extend(self, place: tuple[Harm, int | None], extent: Extent) -> None:
        """Add an extent."""
        known = self.extents.get(place)
        if known is None:
            self.extents[place] = extent
        else:
            known.merge(extent)

    def close_rows(self, geometry: Geometry) -> None:
        """Turn rows of which every live block is lost into harms."""
        for number in sorted(self.open_rows):
            row = self.open_rows[number]
            if row.live and row.lost == row.live:
                each = geometry.rows_per_expert
                expert = None if each is None else number // each
                tally = Tally(1, [(number, geometry.row_place(number))])
                key = (Harm.LOST_ROW, row.exponent, expert)
                self.tallies.setdefault(key, Tally()).merge(tally)
                self.extend((Harm.LOST_ROW, expert), Extent(row.amax, row.amax))
        self.open_rows = {}

    def experts(self, *kinds: Harm) -> list[int | None]:
        """Return the experts (None where there are none) with harms of these kinds."""
        found = {key[2] for key in self.tallies if key[0] in kinds}
        return sorted(found, key=lambda expert: -1 if expert is None else expert)

    def harms(self, kind: Harm, expert: int | None, *, least: int = -10_000) -> Tally:
        """Return the harms of one kind whose blocks' exponent is at least `least`."""
        total = Tally()
        for (known, exponent, owner), tally in self.tallies.items():
            if known is kind and owner == expert and exponent >= least:
                total.merge(tally)
        return total

    def matters(self) -> int:
        """Return the exponent from which on a block matters beside the tensor's largest weight."""
        return self.exponent - NEGLIGIBLE

    def worst(self, kind: Harm, expert: int | None) -> Extent | None:
        """Return how large the harmed blocks are, and the one harmed most."""
        return self.extents.get((kind, expert))

    def total(self, kind: Harm) -> int:
        """Return the number of harms of a kind."""
        return sum(tally.count for key, tally in self.tallies.items() if key[0] is kind)


def by_word(stats: dict[str, PreflightStats]) -> Iterator[tuple[str, PreflightStats]]:
    """Yield targets' ids and what they would do, in order of id."""
    for name in sorted(stats):
        yield name, stats[name]
