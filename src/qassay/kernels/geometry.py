"""From the flat index of a block or value to the place a user can look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.container import StoredTensor
from qassay.core.finding import MAX_LOCATIONS, Location
from qassay.core.stats import Offence, Tally, TallyKey
from qassay.encodings.base import Encoding

Index = npt.NDArray[np.int64]


def runs(ascending: Index) -> tuple[Index, Index]:
    """Return the different values of an ascending array that is not empty, and how often each."""
    starts = np.flatnonzero(np.diff(ascending, prepend=ascending[0] - 1))
    return ascending[starts], np.diff(starts, append=ascending.size)


MOST_EXPERTS = 4096
"""A first axis longer than this counts no experts: each would get findings of its own."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How the units (blocks, or single values) of a tensor lie.

    Attributes:
        columns: K, weights a row.
        rows: Rows, all experts together.
        rows_per_expert: N of a tensor `[experts, N, K]`, None for any other.
        block: Weights a unit.
        block_bytes: Bytes a unit.
        offset: Byte offset of the tensor in its file.
    """

    columns: int
    rows: int
    rows_per_expert: int | None
    block: int
    block_bytes: int
    offset: int

    @property
    def per_row(self) -> int:
        """Units a row."""
        return max(1, self.columns // self.block)

    @property
    def units(self) -> int:
        """Units of the tensor."""
        return self.rows * self.columns // self.block

    def place(
        self, unit: int, *, field: str | None, into: int, value: float | int | str | None
    ) -> Location:
        """Return the location of byte `into` of unit number `unit`."""
        row, position = divmod(unit, self.per_row)
        return Location(
            row=row % self.rows_per_expert if self.rows_per_expert else row,
            column=position * self.block,
            block=unit if self.block > 1 else None,
            field=field,
            byte_offset=self.offset + unit * self.block_bytes + into,
            value=value,
        )

    def row_place(self, row: int) -> Location:
        """Return the location of row number `row` (counted over all experts)."""
        return Location(
            row=row % self.rows_per_expert if self.rows_per_expert else row,
            byte_offset=self.offset + row * self.per_row * self.block_bytes,
        )

    def tally_dead_rows(self, rows: Index) -> list[tuple[TallyKey, Tally]]:
        """Return the tallies, one an expert, of dead rows (ascending numbers over all experts)."""
        if rows.size == 0 or self.rows < 2:  # a vector is no row among others
            return []
        tallies: list[tuple[TallyKey, Tally]] = []
        for expert, members in self.by_expert(rows):
            tally = Tally(count=int(members.size))
            shown = rows[members[:MAX_LOCATIONS]].tolist()
            tally.places = [(row, self.row_place(row)) for row in shown]
            tallies.append(((Offence.DEAD_ROW, None, expert), tally))
        return tallies

    def by_expert(self, rows: Index) -> list[tuple[int | None, Index]]:
        """Return the positions in `rows` (ascending row numbers) that fall on each expert."""
        if self.rows_per_expert is None:
            return [(None, np.arange(rows.size))]
        if rows.size == 0:
            return []
        experts, counts = runs(rows // self.rows_per_expert)
        ends = np.cumsum(counts)
        return [
            (int(expert), np.arange(end - count, end))
            for expert, count, end in zip(experts, counts, ends, strict=True)
        ]

    def tally(
        self,
        kind: Offence,
        units: Index,
        *,
        field: str | None = None,
        into: int = 0,
        read: Callable[[Index], npt.NDArray[Any]] | None = None,
    ) -> list[tuple[TallyKey, Tally]]:
        """Return the tallies, one an expert, of offences at `units` (ascending flat indices).

        Args:
            kind: The offence.
            units: Flat indices of blocks or values.
            field: The stored field concerned.
            into: Its byte offset in the unit.
            read: Gives what was read at some of the units, told by position in `units`.
        """
        tallies: list[tuple[TallyKey, Tally]] = []
        if units.size == 0:
            return tallies
        for expert, members in self.by_expert(units // self.per_row):
            tally = Tally(count=int(members.size))
            shown = members[:MAX_LOCATIONS]
            values = [None] * shown.size if read is None else read(shown).tolist()
            for unit, value in zip(units[shown].tolist(), values, strict=True):
                tally.places.append((unit, self.place(unit, field=field, into=into, value=value)))
            tallies.append(((kind, field, expert), tally))
        return tallies


def geometry_of(tensor: StoredTensor, encoding: type[Encoding]) -> Geometry:
    """Return how a tensor's units lie.

    A three-dimensional tensor counts as `[experts, N, K]` when it is block-quantized or its name
    says so; other tensors of three and more axes (convolution kernels) are `[rows, K]`, all but
    the last axis taken together.
    """
    shape = tensor.shape
    columns = shape[-1] if shape else 1
    rows = tensor.size // columns if columns else 0
    named = "exps" in tensor.name or "expert" in tensor.name
    experts = len(shape) == 3 and shape[0] <= MOST_EXPERTS and (encoding.kind == "block" or named)
    return Geometry(
        columns=columns,
        rows=rows,
        rows_per_expert=shape[1] if experts else None,
        block=encoding.block,
        block_bytes=encoding.block_bytes,
        offset=tensor.offset,
    )
