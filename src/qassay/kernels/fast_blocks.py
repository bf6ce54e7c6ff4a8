"""Numba kernels over blocks, driven by offsets and tables: one function serves every encoding.

A chunk is walked in tiles that stay in the first-level cache; inside a tile each concern is a
loop of its own, because a tight loop with one stride is what the hardware prefetches and overlaps.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.core.stats import Histogram
from qassay.encodings.base import BlockEncoding
from qassay.kernels.jit import kernel
from qassay.kernels.loads import VECTOR, equal_mask, load_u16
from qassay.kernels.plan import ScanPlan
from qassay.kernels.reference import BlockScan

_TILE = 512
_BINS = 1 << 16


@kernel
def _count16(raw, first, n, stride, counts):  # type: ignore[no-untyped-def]
    at = first
    for _ in range(n):
        counts[load_u16(raw, at)] += np.uint32(1)
        at += stride


@kernel
def _count8(raw, first, n, stride, counts):  # type: ignore[no-untyped-def]
    at = first
    for _ in range(n):
        counts[raw[at]] += np.uint32(1)
        at += stride


@kernel
def _any_flag(raw, first, n, stride, pairs):  # type: ignore[no-untyped-def]
    found = np.uint8(0)
    at = first
    for _ in range(n):
        found |= pairs[load_u16(raw, at)]
        at += stride
    return found


@kernel
def _any_equal(raw, first, n, stride, length, byte):  # type: ignore[no-untyped-def]
    found = np.uint32(0)
    vectors = length // VECTOR
    at = first
    for _ in range(n):
        for vector in range(vectors):
            found |= equal_mask(raw, at + vector * VECTOR, byte)
        for tail in range(vectors * VECTOR, length):
            found |= np.uint32(raw[at + tail] == byte)
        at += stride
    return found != 0


@kernel
def _flags_of(raw, block, flags, offsets, lengths, tables, first, last):  # type: ignore[no-untyped-def]
    for region in range(first, last):
        for at in range(block + offsets[region], block + offsets[region] + lengths[region]):
            flags &= tables[region, raw[at]]
            if flags == 0:
                return flags
    return flags


@kernel
def _scan(  # type: ignore[no-untyped-def]
    raw, n, stride, scale_offsets, scale_widths, counts,
    offsets, lengths, tables, groups, pairs,
    bad_offsets, bad_lengths, bad_bytes, marks, candidates,
):  # fmt: skip
    found = 0
    forbidden = False
    for start in range(0, n, _TILE):
        tile = min(_TILE, n - start)
        base = start * stride
        for field in range(scale_offsets.size):
            if scale_widths[field] == 2:
                _count16(raw, base + scale_offsets[field], tile, stride, counts[field])
            else:
                _count8(raw, base + scale_offsets[field], tile, stride, counts[field])
        marked = False
        for group in range(groups.shape[0]):
            first, last = groups[group]
            pair = pairs[group]
            if _any_flag(raw, base + offsets[first], tile, stride, pair) == 0:
                continue
            for block in range(tile):
                at = base + block * stride
                flags = pair[load_u16(raw, at + offsets[first])]
                if flags:
                    flags = _flags_of(raw, at, flags, offsets, lengths, tables, first, last)
                    if flags:
                        marks[block] = 1
                        marked = True
        if marked:
            for block in range(tile):
                if marks[block]:
                    marks[block] = 0
                    candidates[found] = start + block
                    found += 1
        for bad in range(bad_offsets.size):
            at = base + bad_offsets[bad]
            forbidden |= _any_equal(raw, at, tile, stride, bad_lengths[bad], bad_bytes[bad])
    return found, forbidden


class BlockScanner:
    """Scans chunks of one encoding; holds the tables and buffers, so one a thread.

    Args:
        plan: What to look for.
        most: Largest number of blocks in a chunk.
    """

    def __init__(self, plan: ScanPlan, most: int) -> None:
        regions = plan.regions
        self._plan = plan
        self._offsets = np.array([region.offset for region in regions], np.int64)
        self._lengths = np.array([region.length for region in regions], np.int64)
        self._tables = np.stack([region.flags for region in regions])
        names = sorted({region.group for region in regions})
        members = [[i for i, r in enumerate(regions) if r.group == name] for name in names]
        self._groups = np.array([(own[0], own[-1] + 1) for own in members], np.int64)
        # Flags that both of the first two bytes of a group's first region are compatible with.
        self._pairs = np.stack(
            [np.bitwise_and.outer(*[regions[own[0]].flags] * 2).T.reshape(-1) for own in members]
        )
        bad = np.array(plan.forbidden, np.int64).reshape(-1, 3)
        self._bad = (bad[:, 0].copy(), bad[:, 1].copy(), bad[:, 2].astype(np.uint8))
        self._counts = np.zeros((plan.scale_offsets.size, _BINS), np.uint32)
        self._marks = np.zeros(_TILE, np.uint8)
        self._candidates = np.empty(most, np.int64)

    def __call__(self, blocks: Bytes) -> BlockScan:
        """Scan blocks `[n, block_bytes]`; the same result as `reference.scan_blocks`."""
        plan = self._plan
        self._counts[:] = 0
        found, forbidden = _scan(
            blocks.reshape(-1), blocks.shape[0], plan.block_bytes,
            plan.scale_offsets, plan.scale_widths, self._counts,
            self._offsets, self._lengths, self._tables, self._groups, self._pairs,
            *self._bad, self._marks, self._candidates,
        )  # fmt: skip
        scales = [Histogram.of_dense(counts) for counts in self._counts]
        return BlockScan(scales, self._candidates[:found].copy(), bool(forbidden))


@kernel
def _count_bytes(raw, n, stride, offset, length, counts):  # type: ignore[no-untyped-def]
    # Four tables, so that equal neighbours do not wait for one another's store.
    even = length - length % 4
    for block in range(n):
        at = block * stride + offset
        for byte in range(0, even, 4):
            counts[0, raw[at + byte]] += np.uint32(1)
            counts[1, raw[at + byte + 1]] += np.uint32(1)
            counts[2, raw[at + byte + 2]] += np.uint32(1)
            counts[3, raw[at + byte + 3]] += np.uint32(1)
        for byte in range(even, length):
            counts[0, raw[at + byte]] += np.uint32(1)


@kernel
def _code_at(raw, block, byte, shift, mask, up, element):  # type: ignore[no-untyped-def]
    code = np.int64(0)
    for plane in range(byte.shape[0]):
        piece = (np.int64(raw[block + byte[plane, element]]) >> shift[plane, element])
        code |= (piece & mask[plane, element]) << up[plane, element]
    return code


@kernel
def _count_codes(raw, n, stride, byte, shift, mask, up, counts):  # type: ignore[no-untyped-def]
    for block in range(n):
        for element in range(byte.shape[1]):
            code = _code_at(raw, block * stride, byte, shift, mask, up, element)
            counts[element & 3, code] += np.uint32(1)


def count_codes(blocks: Bytes, encoding: type[BlockEncoding]) -> npt.NDArray[np.int64]:
    """Count stored codes; the same result as `reference.count_codes`."""
    bits = encoding.code_bits()
    low, high = encoding.codes.range(bits)
    total = np.zeros(high - low + 1, np.int64)
    flat, n, stride = blocks.reshape(-1), blocks.shape[0], encoding.block_bytes
    if len(encoding.codes.runs) > 1:
        counts = np.zeros((4, total.size), np.uint32)
        _count_codes(flat, n, stride, *plane_arrays(encoding.code_bits()), counts)
        return total + counts.sum(axis=0, dtype=np.int64)
    field = next(f for f in encoding.bits_fields.values() if encoding.codes.runs[0] in f.runs)
    counts = np.zeros((4, 256), np.uint32)
    _count_bytes(flat, n, stride, field.offset, field.nbytes, counts)
    per_byte = counts.sum(axis=0, dtype=np.int64)
    if bits.signed:
        return np.roll(per_byte, 128)
    for shift in range(0, 8, bits.width):
        np.add.at(total, (np.arange(256) >> shift) & high, per_byte)
    return total


def plane_arrays(bits: object) -> tuple[npt.NDArray[np.int64], ...]:
    """Return byte, shift, mask and up of a run's planes, each int64 `[planes, count]`."""
    planes = bits.planes  # type: ignore[attr-defined]
    return tuple(
        np.stack([getattr(plane, part) for plane in planes]).astype(np.int64)
        for part in ("byte", "shift", "mask", "up")
    )
