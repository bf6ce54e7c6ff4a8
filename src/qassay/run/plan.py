"""Cutting tensors into chunks: whole rows, or a part of one row that is too long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from qassay.kernels.geometry import Geometry

MOST_ROWS = 1 << 18
"""Rows in a chunk: what is kept for each row must stay small however short the rows are."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of units (blocks or values) of one tensor.

    Attributes:
        tensor: Index of the tensor among those that are read.
        start: Flat index of the first unit.
        units: How many.
    """

    tensor: int
    start: int
    units: int


def chunks_of(
    tensor: int, geometry: Geometry, chunk_bytes: int, alignment: int = 1
) -> Iterator[Chunk]:
    """Yield the chunks of one tensor, in file order, of about `chunk_bytes` each.

    Args:
        tensor: Its index.
        geometry: How its units lie.
        chunk_bytes: Bytes a chunk.
        alignment: A part of a row begins at a multiple of so many units.
    """
    per_chunk = max(1, chunk_bytes // geometry.block_bytes)
    per_chunk = max(alignment, per_chunk // alignment * alignment)
    per_row = geometry.per_row
    if per_chunk >= per_row:
        step = min(per_chunk // per_row, MOST_ROWS) * per_row
        for start in range(0, geometry.units, step):
            yield Chunk(tensor, start, min(step, geometry.units - start))
        return
    for row in range(geometry.rows):
        for within in range(0, per_row, per_chunk):
            yield Chunk(tensor, row * per_row + within, min(per_chunk, per_row - within))
