"""The kernels in NumPy. These are the specification; the fast ones must give the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.core.stats import Histogram
from qassay.encodings.base import BlockEncoding, Floats
from qassay.kernels.plan import MAY_BE_SATURATED, MAY_BE_ZERO, ScanPlan

Index = npt.NDArray[np.int64]

PIECE = 1 << 16
"""Offending values that are looked at together: bounds memory when every value offends."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockScan:
    """What one pass over blocks found.

    Attributes:
        scales: Histogram of each scale field, in order of declaration.
        candidates: Ascending indices of blocks that have to be looked at exactly.
        forbidden: Whether a forbidden byte occurs anywhere.
    """

    scales: list[Histogram]
    candidates: Index
    forbidden: bool


@dataclass(frozen=True, slots=True, eq=False)
class ValueScan:
    """What one pass over rows of plain floats found, in bit patterns without the sign.

    Attributes:
        largest: Largest pattern, infinities and NaN included.
        smallest: Smallest non-zero pattern, 0 when all are zero.
        zero: Number of zeros.
        subnormal: Number of non-zero patterns below the smallest normal.
        small: Number of non-zero patterns at or below the `small` limit asked for.
        dead_rows: Ascending indices of rows of zeros.
        marks: Where `locate_small` need not look; what it means is the kernels' own affair.
    """

    largest: int
    smallest: int
    zero: int
    subnormal: int
    small: int
    dead_rows: Index
    marks: npt.NDArray[np.uint8]


def scan_blocks(blocks: Bytes, plan: ScanPlan) -> BlockScan:
    """Scan blocks `[n, block_bytes]` as `plan` says."""
    scales = []
    for offset, width in zip(plan.scale_offsets, plan.scale_widths, strict=True):
        scales.append(_histogram(_patterns(blocks, int(offset), int(width))))
    hit = np.zeros(blocks.shape[0], bool)
    for group in {region.group for region in plan.regions}:
        flags = np.full(blocks.shape[0], MAY_BE_ZERO | MAY_BE_SATURATED, np.uint8)
        for region in plan.regions:
            if region.group == group:
                # Nearly every block is ruled out by its first two bytes.
                left = np.flatnonzero(flags)
                for cut in (2, region.length):
                    bytes_left = blocks[left, region.offset : region.offset + cut]
                    flags[left] &= np.bitwise_and.reduce(region.flags[bytes_left], axis=1)
                    left = np.flatnonzero(flags)
        hit |= flags != 0
    forbidden = any(
        bool((blocks[:, offset : offset + length] == byte).any())
        for offset, length, byte in plan.forbidden
    )
    return BlockScan(scales, np.flatnonzero(hit), forbidden)


def _histogram(patterns: npt.NDArray[np.unsignedinteger]) -> Histogram:
    if patterns.size < 1 << 14:  # sorting a few beats clearing 65,536 bins
        return Histogram.of_values(patterns)
    return Histogram.of_dense(np.bincount(patterns, minlength=1 << (8 * patterns.itemsize)))


def scan_values(
    bits: npt.NDArray[np.unsignedinteger], columns: int, least_normal: int, small: int
) -> ValueScan:
    """Scan float bit patterns `[rows * columns]`, unsigned integers of the float's width."""
    kind = bits.dtype.type
    sign = kind(1 << (8 * bits.itemsize - 1))
    magnitude = bits & ~sign
    nonzero = magnitude[magnitude != 0]
    rows = magnitude.reshape(-1, columns).any(axis=1)
    return ValueScan(
        largest=int(magnitude.max(initial=kind(0))),
        smallest=int(nonzero.min()) if nonzero.size else 0,
        zero=magnitude.size - nonzero.size,
        subnormal=int((nonzero < kind(least_normal)).sum()),
        small=int((nonzero <= kind(small)).sum()),
        dead_rows=np.flatnonzero(~rows),
        marks=np.zeros(0, np.uint8),
    )


def locate_small(
    bits: npt.NDArray[np.unsignedinteger], columns: int, small: int, scan: ValueScan
) -> Iterator[Index]:
    """Yield the ascending indices of small values, at most `PIECE` at a time."""
    del columns, scan
    mask = bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
    for start in range(0, bits.size, PIECE):
        magnitude = bits[start : start + PIECE] & mask
        yield np.flatnonzero((magnitude <= small) & (magnitude != 0)) + start


def locate(
    blocks: Bytes, offset: int, width: int, chosen: npt.NDArray[np.bool_], count: int
) -> Index:
    """Return the ascending indices of the `count` blocks whose field's pattern is `chosen`."""
    found = np.flatnonzero(chosen[_patterns(blocks, offset, width)])
    if found.size != count:
        raise ValueError(f"{found.size} blocks, not {count}: the bytes changed while being read")
    return found


def _patterns(blocks: Bytes, offset: int, width: int) -> npt.NDArray[np.unsignedinteger]:
    """Return a field's bit patterns `[n]` as a view with the stride of a block."""
    return np.ndarray(
        (blocks.shape[0],), f"<u{width}", blocks.reshape(-1), offset, (blocks.shape[1],)
    )


def count_codes(blocks: Bytes, encoding: type[BlockEncoding]) -> npt.NDArray[np.int64]:
    """Return how often each stored code occurs, from the smallest on, int64 `[codes]`."""
    bits = encoding.code_bits()
    low, high = encoding.codes.range(bits)
    codes = bits.unpack(blocks).reshape(-1)
    return np.bincount(codes - np.int16(low), minlength=high - low + 1)


def unpack_codes(blocks: Bytes, encoding: type[BlockEncoding]) -> npt.NDArray[np.int16]:
    """Return the stored codes `[n, block]` of blocks `[n, block_bytes]`."""
    return encoding.code_bits().unpack(blocks)


def dequantize(raw: Bytes, encoding: type[BlockEncoding]) -> Floats:
    """Return the values of stored blocks `[n * block_bytes]` as float32 `[n * block]`."""
    return encoding.dequantize(raw)
