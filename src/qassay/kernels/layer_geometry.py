"""From a group of a layer to the place a user can look at, in the part that holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.finding import MAX_LOCATIONS, Location
from qassay.core.stats import Offence, Tally, TallyKey
from qassay.encodings.layers.base import Layer
from qassay.kernels.geometry import MOST_EXPERTS, runs

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Some groups of rows, or scales, of a layer, in the order of the file.

    Attributes:
        keys: Ascending numbers by which places are ordered.
        rows: The row of each (or its first), counted over all experts.
        groups: The group of each.
        offsets: The byte of each in the file of its part; None where it has no byte of its own.
    """

    keys: Index
    rows: Index
    groups: Index
    offsets: Index | None = None

    def __getitem__(self, chosen: Any) -> Entries:
        offsets = None if self.offsets is None else self.offsets[chosen]
        return Entries(self.keys[chosen], self.rows[chosen], self.groups[chosen], offsets)

    @property
    def size(self) -> int:
        """How many."""
        return int(self.keys.size)


@dataclass(frozen=True, slots=True, eq=False)
class LayerGeometry:
    """How the groups of a layer lie.

    Attributes:
        layer: The layer.
        first: The first column of each group where an index deals columns out, -1 for a group
            without any; None where groups are runs of columns.
    """

    layer: Layer
    first: Index | None = None

    @property
    def rows_per_expert(self) -> int | None:
        """Rows of an expert; None where there are none, or too many to tell apart."""
        experts = self.layer.experts
        return self.layer.rows if experts is not None and experts <= MOST_EXPERTS else None

    @property
    def by_group(self) -> bool:
        """Whether groups are the slow axis of what is stored once a group."""
        return self.layer.encoding.scales_by_group

    @property
    def units(self) -> int:
        """Groups of all rows."""
        return self.layer.total_rows * self.layer.groups

    def columns(self, groups: Index) -> Index:
        """Return the first column of each group, -1 where it has none."""
        if self.first is not None:
            return self.first[groups]
        return groups * self.layer.group

    def keys(self, rows: Index, groups: Index) -> Index:
        """Return numbers that put groups of rows in the order of the file."""
        if self.by_group:
            return groups * self.layer.total_rows + rows
        return rows * self.layer.groups + groups

    def by_expert(self, rows: Index) -> Iterator[tuple[int | None, Index]]:
        """Yield each expert with the positions in `rows` that belong to it."""
        if rows.size == 0:
            return
        if self.rows_per_expert is None:
            yield None, np.arange(rows.size)
            return
        numbers, counts = runs(rows // self.rows_per_expert)
        ends = np.cumsum(counts)
        for expert, count, end in zip(numbers.tolist(), counts, ends, strict=True):
            yield expert, np.arange(end - count, end)

    def tally(
        self,
        kind: Offence,
        entries: Entries,
        *,
        field: str | None = None,
        read: Callable[[Index], npt.NDArray[Any]] | None = None,
        whole_rows: bool = False,
        whole_tensor: bool = False,
    ) -> list[tuple[TallyKey, Tally]]:
        """Return the tallies, one an expert, of offences.

        Args:
            kind: The offence.
            entries: Where, ascending by key.
            field: The part concerned.
            read: Gives what was read at some of the entries, told by position.
            whole_rows: Whether places are rows, not groups.
            whole_tensor: Whether places are of the whole matrix, without row and column.
        """
        tallies: list[tuple[TallyKey, Tally]] = []
        for expert, members in self.by_expert(entries.rows):
            shown = members[:MAX_LOCATIONS]
            values = [None] * shown.size if read is None else read(shown).tolist()
            some = entries[shown]
            columns = self.columns(some.groups).tolist()
            tally = Tally(count=int(members.size))
            for at, (key, row, column, value) in enumerate(
                zip(some.keys.tolist(), some.rows.tolist(), columns, values, strict=True)
            ):
                inside = row % self.rows_per_expert if self.rows_per_expert else row
                offset = None if some.offsets is None else int(some.offsets[at])
                place = Location(
                    row=None if whole_tensor else inside,
                    column=None if whole_rows or whole_tensor or column < 0 else column,
                    block=None if whole_rows or whole_tensor else int(some.groups[at]),
                    field=field,
                    byte_offset=offset,
                    value=value,
                )
                tally.places.append((key, place))
            tallies.append(((kind, field, expert), tally))
        return tallies
