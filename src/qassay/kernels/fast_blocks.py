"""Numba kernels over blocks, driven by offsets and tables: one function serves every encoding.

A chunk is walked in tiles that stay in the first-level cache; inside a tile each concern is a
loop of its own, because a tight loop with one stride is what the hardware prefetches and overlaps.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.core.stats import Histogram
from qassay.kernels.jit import helper, kernel
from qassay.kernels.loads import VECTOR, equal_mask, load_u16
from qassay.kernels.plan import ScanPlan
from qassay.kernels.reference import BlockScan

_TILE = 256
_BINS = 1 << 16
_LINE = 2 * VECTOR
"""Length of the one forbidden run that the fused loop looks through (the codes of Q8_0)."""


@helper
def _count16(raw, first, n, stride, counts):
    at = first
    for _ in range(n):
        counts[load_u16(raw, at)] += np.uint32(1)
        at += stride


@helper
def _count8(raw, first, n, stride, counts):
    at = first
    for _ in range(n):
        counts[raw[at]] += np.uint32(1)
        at += stride


@helper
def _any_flag(raw, first, n, stride, table):
    found = np.uint8(0)
    at = first
    for _ in range(n):
        found |= table[raw[at]] & table[raw[at + 1]]
        at += stride
    return found


@helper
def _any_equal(raw, first, n, stride, length, byte):
    found = np.uint32(0)
    at = first
    for _ in range(n):
        for offset in range(0, length - VECTOR + 1, VECTOR):
            found |= equal_mask(raw, at + offset, byte)
        for offset in range(length // VECTOR * VECTOR, length):
            found |= np.uint32(raw[at + offset] == byte)
        at += stride
    return found != 0


@helper
def _count_and_flag(raw, at, n, stride, scale, counts, codes, table):
    found = np.uint8(0)
    for _ in range(n):
        counts[load_u16(raw, at + scale)] += np.uint32(1)
        found |= table[raw[at + codes]] & table[raw[at + codes + 1]]
        at += stride
    return found


@helper
def _count_flag_and_find(raw, at, n, stride, scale, counts, codes, table, bad, byte):
    found = np.uint8(0)
    equal = np.uint32(0)
    for _ in range(n):
        counts[load_u16(raw, at + scale)] += np.uint32(1)
        found |= table[raw[at + codes]] & table[raw[at + codes + 1]]
        equal |= equal_mask(raw, at + bad, byte) | equal_mask(raw, at + bad + VECTOR, byte)
        at += stride
    return found, equal != 0


@helper
def _mark(raw, at, n, stride, offsets, lengths, tables, first, last, marks):  # fmt: skip
    """Mark the blocks whose bytes in all regions first..last agree on some flag."""
    marked = False
    for block in range(n):
        flags = (
            tables[first, raw[at + offsets[first]]] & tables[first, raw[at + offsets[first] + 1]]
        )
        for region in range(first, last):
            if flags == 0:
                break
            for byte in range(at + offsets[region], at + offsets[region] + lengths[region]):
                flags &= tables[region, raw[byte]]
                if flags == 0:
                    break
        if flags:
            marks[block] = 1
            marked = True
        at += stride
    return marked


@helper
def _collect_marks(marks, n, start, found, candidates):
    for block in range(n):
        if marks[block]:
            marks[block] = 0
            candidates[found] = start + block
            found += 1
    return found


@helper
def _drain(counts, patterns):
    """Move the bins that are not empty to the front, their patterns beside; empty the rest."""
    used = 0
    for pattern in range(counts.size):
        count = counts[pattern]
        if count:
            counts[pattern] = 0
            counts[used] = count
            patterns[used] = pattern
            used += 1
    return used


@kernel
def _scan(
    raw, n, stride, scale_offsets, scale_widths, counts, offsets, lengths, tables, groups,
    bad_offsets, bad_lengths, bad_bytes, marks, candidates, patterns, sizes,
):  # fmt: skip
    found = 0
    forbidden = False
    fused = scale_offsets.size > 0 and scale_widths[0] == 2
    line = fused and bad_offsets.size > 0 and bad_lengths[0] == _LINE
    for start in range(0, n, _TILE):
        tile = min(_TILE, n - start)
        base = start * stride
        codes = offsets[groups[0, 0]]
        table = tables[groups[0, 0]]
        flags = np.uint8(0)
        if line:
            flags, equal = _count_flag_and_find(
                raw, base, tile, stride, scale_offsets[0], counts[0],
                codes, table, bad_offsets[0], bad_bytes[0],
            )  # fmt: skip
            forbidden |= equal
        elif fused:
            flags = _count_and_flag(
                raw, base, tile, stride, scale_offsets[0], counts[0], codes, table
            )
        else:
            flags = _any_flag(raw, base + codes, tile, stride, table)
        for field in range(1 if fused else 0, scale_offsets.size):
            if scale_widths[field] == 2:
                _count16(raw, base + scale_offsets[field], tile, stride, counts[field])
            else:
                _count8(raw, base + scale_offsets[field], tile, stride, counts[field])
        for bad in range(1 if line else 0, bad_offsets.size):
            at = base + bad_offsets[bad]
            forbidden |= _any_equal(raw, at, tile, stride, bad_lengths[bad], bad_bytes[bad])
        marked = False
        for group in range(groups.shape[0]):
            first, last = groups[group]
            if group > 0:
                flags = _any_flag(raw, base + offsets[first], tile, stride, tables[first])
            if flags:
                marked |= _mark(
                    raw, base, tile, stride, offsets, lengths, tables, first, last, marks
                )
        if marked:
            found = _collect_marks(marks, tile, start, found, candidates)
    for field in range(scale_offsets.size):
        sizes[field] = _drain(counts[field], patterns[field])
    return found, forbidden


class _Scanner:
    """Tables and buffers for scanning blocks of one encoding; one a thread."""

    def __init__(self, plan: ScanPlan) -> None:
        regions = plan.regions
        offsets = np.array([region.offset for region in regions], np.int64)
        lengths = np.array([region.length for region in regions], np.int64)
        tables = np.stack([region.flags for region in regions])
        names = sorted({region.group for region in regions})
        members = [[i for i, r in enumerate(regions) if r.group == name] for name in names]
        groups = np.array([(own[0], own[-1] + 1) for own in members], np.int64)
        bad = np.array(plan.forbidden, np.int64).reshape(-1, 3)
        self._plan = plan
        self._tables = (offsets, lengths, tables, groups)
        self._bad = (bad[:, 0].copy(), bad[:, 1].copy(), bad[:, 2].astype(np.uint8))
        self._counts = np.zeros((plan.scale_offsets.size, _BINS), np.uint32)
        self._patterns = np.empty(self._counts.shape, np.uint32)
        self._sizes = np.zeros(plan.scale_offsets.size, np.int64)
        self._marks = np.zeros(_TILE, np.uint8)
        self._candidates = np.empty(0, np.int64)

    def scan(self, blocks: Bytes) -> BlockScan:
        plan = self._plan
        if self._candidates.size < blocks.shape[0]:
            self._candidates = np.empty(blocks.shape[0], np.int64)
        found, forbidden = _scan(
            blocks.reshape(-1), blocks.shape[0], plan.block_bytes,
            plan.scale_offsets, plan.scale_widths, self._counts,
            *self._tables, *self._bad, self._marks, self._candidates,
            self._patterns, self._sizes,
        )  # fmt: skip
        scales = []
        for patterns, counts, used in zip(self._patterns, self._counts, self._sizes, strict=True):
            taken = counts[:used].astype(np.int64)
            counts[:used] = 0  # the bins have to be empty for the next chunk
            scales.append(Histogram(patterns[:used].astype(np.int64), taken))
        return BlockScan(scales, self._candidates[:found].copy(), bool(forbidden))


_own = threading.local()


def scan_blocks(blocks: Bytes, plan: ScanPlan) -> BlockScan:
    """Scan blocks `[n, block_bytes]`; the same result as `reference.scan_blocks`."""
    scanners: dict[int, _Scanner] = _own.__dict__.setdefault("scanners", {})
    # Plans are made once an encoding and live as long as the process, so their ids are theirs.
    scanner = scanners.get(id(plan))
    if scanner is None:
        scanner = scanners[id(plan)] = _Scanner(plan)
    return scanner.scan(blocks)


@kernel
def _locate(raw, first, n, stride, width, chosen, found):
    count = 0
    at = first
    for block in range(n):
        pattern = np.int64(load_u16(raw, at)) if width == 2 else np.int64(raw[at])
        if chosen[pattern]:
            if count < found.size:
                found[count] = block
            count += 1
        at += stride
    return count


def locate(
    blocks: Bytes, offset: int, width: int, chosen: npt.NDArray[np.bool_], count: int
) -> npt.NDArray[np.int64]:
    """Return the blocks whose field's pattern is chosen, as `reference.locate` does."""
    found = np.empty(count, np.int64)
    seen = _locate(
        blocks.reshape(-1), offset, blocks.shape[0], blocks.shape[1], width, chosen, found
    )
    if seen != count:
        raise ValueError(f"{seen} blocks, not {count}: the bytes changed while being read")
    return found
