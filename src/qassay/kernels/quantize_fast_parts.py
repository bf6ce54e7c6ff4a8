"""What the fast K-quantizers share: transposing, halves, weights, threads.

A batch is `LANES` super-blocks. Its weights lie as `[element, lane]`, so that a vector holds the
same element of every super-block, and so do its codes and the bytes that are written.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.kernels.quantize_fast_lanes import (
    ZERO,
    bits_of,
    clamped,
    is_nan,
    load,
    load_bytes,
    magnitude,
    nearest,
    number,
    of_bits,
    packed,
    root,
    select,
    splat,
    store,
    store_bytes,
    whole,
    zeros,
)
from qassay.kernels.quantize_fast_vectors import LANES, inner

SUPER = 256
_HALF = np.float32(0.5)
_UP = np.float32(2.0**112)
_SUPER = np.float32(256)
_SMALL = 1 << 16
"""Weights below which threads cost more than they save."""


@inner
def gather(x, first, count, size, across, marks):
    """Transpose blocks first..first+count of `size` weights; missing lanes become zeros.

    Blocks that hold a NaN are marked.
    """
    for lane in range(LANES):
        if lane < count:
            at = (first + lane) * size
            for i in range(size):
                across[i * LANES + lane] = x[at + i]
        else:
            for i in range(size):
                across[i * LANES + lane] = ZERO
    found = whole(0)
    for i in range(size):
        found = found | select(is_nan(load(across, i)), whole(1), whole(0))
    nan = np.uint64(packed(found != whole(0)))
    if nan:
        for lane in range(count):
            marks[first + lane] = (nan >> np.uint64(lane)) & np.uint64(1)


@inner
def gather_importance(importance, row_blocks, first, size, across):
    """Transpose the importance that belongs to the blocks from `first` on."""
    for lane in range(LANES):
        at = (first + lane) % row_blocks * size
        for i in range(size):
            across[i * LANES + lane] = importance[at + i]


@inner
def scatter(across, length, first, count, out):
    """Write the batch's bytes, `[byte, lane]`, block by block."""
    for lane in range(count):
        at = (first + lane) * length
        for i in range(length):
            out[at + i] = across[i * LANES + lane]


@inner
def half(values):
    """Return f16 bits: nearest even; any NaN becomes the quiet one of its sign."""
    bits = bits_of(values)
    size = bits & whole(0x7FFFFFFF)
    odd = (size >> whole(13)) & whole(1)
    normal = (size + odd - whole(0x38000000 - 0xFFF)) >> whole(13)
    small = bits_of(of_bits(size) + splat(_HALF)) - whole(0x3F000000)
    found = select(size < whole(0x38800000), small, clamped(normal, whole(0), whole(0x7C00)))
    found = select(size > whole(0x7F800000), whole(0x7E00), found)
    return found | ((bits >> whole(16)) & whole(0x8000))


@inner
def unhalf(bits):
    """Return what f16 bits stand for."""
    size = bits & whole(0x7FFF)
    finite = bits_of(of_bits(size << whole(13)) * splat(_UP))
    found = select(size < whole(0x7C00), finite, (size << whole(13)) | whole(0x7F800000))
    return of_bits(found | ((bits & whole(0x8000)) << whole(16)))


@inner
def store_half(raw, byte, bits):
    """Write f16 bits at one byte of the batch's blocks."""
    store_bytes(raw, byte, bits)
    store_bytes(raw, byte + 1, bits >> whole(8))


@inner
def spread_weights(x, w, factor):
    """Turn importance in `w` into importance * sqrt(factor * mean square + x^2)."""
    total = zeros()
    for i in range(SUPER):
        v = load(x, i)
        total = total + v * v
    mean = splat(factor) * total / splat(_SUPER)
    for i in range(SUPER):
        v = load(x, i)
        store(w, i, load(w, i) * root(mean + v * v))


@inner
def sum_parts(w, length, parts, sums):
    """Sum weights by part."""
    for part in range(parts):
        total = zeros()
        for i in range(part * length, (part + 1) * length):
            total = total + load(w, i)
        store(sums, part, total)


@inner
def most(values, parts):
    """Return the largest of the parts' numbers, zero where none is positive."""
    found = zeros()
    for part in range(parts):
        value = load(values, part)
        found = select(value > found, value, found)
    return found


@inner
def most_signed(values, parts):
    """Return the largest magnitude of the parts' numbers, and the first number that has it."""
    size = zeros()
    found = zeros()
    for part in range(parts):
        value = load(values, part)
        more = magnitude(value) > size
        size = select(more, magnitude(value), size)
        found = select(more, value, found)
    return size, found


@inner
def levels(values, parts, top, codes):
    """Write the parts' levels below the largest one, uint8; return the f16 bits of a step."""
    largest = most(values, parts)
    inverse = select(largest > zeros(), splat(top) / largest, zeros())
    for part in range(parts):
        level = nearest(inverse * load(values, part))
        store_bytes(codes, part, level)
    return half(largest / splat(top))


@inner
def pack_pairs(codes, raw, first):
    """Write 4-bit codes: in each 64, two runs of 32 a byte."""
    for quarter in range(4):
        for i in range(32):
            low = load_bytes(codes, quarter * 64 + i) & whole(15)
            high = load_bytes(codes, quarter * 64 + i + 32) << whole(4)
            store_bytes(raw, first + quarter * 32 + i, low | high)


@inner
def pack_quarters(codes, raw, first, shift):
    """Write two bits of each code: in each half, four runs of 32 a byte."""
    for side in range(2):
        for i in range(32):
            at = side * 128 + i
            byte = whole(0)
            for run in range(4):
                piece = load_bytes(codes, at + run * 32) >> whole(shift)
                byte = byte | ((piece & whole(3)) << whole(2 * run))
            store_bytes(raw, first + side * 32 + i, byte)


@inner
def pack_bit(codes, raw, first, bit):
    """Write one bit of each code: bit j of byte i is that of element 32 j + i."""
    for i in range(32):
        byte = whole(0)
        for run in range(8):
            piece = load_bytes(codes, run * 32 + i) >> whole(bit)
            byte = byte | ((piece & whole(1)) << whole(run))
        store_bytes(raw, first + i, byte)


@inner
def pack_six(scales, lows, raw, first):
    """Write eight 6-bit scales and minimums in 12 bytes, as ggml ors them together."""
    for j in range(4):
        scale, scale_up = load_bytes(scales, j), load_bytes(scales, j + 4)
        low, low_up = load_bytes(lows, j), load_bytes(lows, j + 4)
        store_bytes(raw, first + j, scale | ((scale_up >> whole(4)) << whole(6)))
        store_bytes(raw, first + j + 4, low | ((low_up >> whole(4)) << whole(6)))
        both = (scale_up & whole(15)) | ((low_up & whole(15)) << whole(4))
        store_bytes(raw, first + j + 8, both)


@inner
def six_scale(raw, first, j):
    """Return sub-scale j and sub-minimum j as a decoder reads them."""
    if j < 4:
        scale = load_bytes(raw, first + j) & whole(63)
        low = load_bytes(raw, first + j + 4) & whole(63)
    else:
        both = load_bytes(raw, first + j + 4)
        up = load_bytes(raw, first + j - 4) >> whole(6)
        low_up = load_bytes(raw, first + j) >> whole(6)
        scale = (both & whole(15)) | (up << whole(4))
        low = (both >> whole(4)) | (low_up << whole(4))
    return number(scale), number(low)


Work = Callable[[int, int], object]


def workers(jobs: int | None) -> int:
    """Return how many threads to use: `jobs`, else as many as this process may run on."""
    if jobs is not None:
        return max(1, jobs)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(work: Work, units: int, weights: int, step: int, jobs: int | None) -> None:
    """Run `work(first, last)` over ranges of units, whole multiples of `step` but for the last."""
    threads = workers(jobs) if weights >= _SMALL else 1
    batches = -(-units // step)
    pieces = min(batches, 4 * threads if threads > 1 else 1)
    edges = [min(units, batches * i // max(1, pieces) * step) for i in range(pieces + 1)]
    ranges = list(itertools.pairwise(edges))
    if threads == 1:
        for first, last in ranges:
            work(first, last)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, first, last) for first, last in ranges]:
            done.result()


class Workspace(NamedTuple):
    """One thread's arrays, `[element, lane]` where not said otherwise.

    Attributes:
        x: Weights.
        w: Their importance.
        tried: Codes of the candidate being tried, as float32.
        codes: Codes.
        raw: Bytes of the blocks, `[byte, lane]`.
        parts: Rows of what was found for each sub-block, `[sub-block, lane]`.
        levels: Rows of quantized sub-scales and sub-minimums, `[sub-block, lane]`.
    """

    x: Floats
    w: Floats
    tried: Floats
    codes: Bytes
    raw: Bytes
    parts: Floats
    levels: Bytes


def workspace(elements: int = SUPER) -> Workspace:
    """Return a workspace for blocks of up to `elements` weights."""
    n = elements * LANES
    parts = np.empty((6, 16 * LANES), np.float32)
    levels = np.empty((2, 16 * LANES), np.uint8)
    x, w, tried = np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32)
    codes, raw = np.empty(n, np.uint8), np.empty(n, np.uint8)
    return Workspace(x, w, tried, codes, raw, parts, levels)


Kernel = Callable[..., Any]
Quantizer = Callable[[Floats, Floats | None], Bytes]


def _redo(
    reference: Quantizer, rows: Floats, importance: Floats | None, marked: Bytes, out: Bytes
) -> None:
    """Quantize marked super-blocks, `[row, block]`, with the reference."""
    for column in np.flatnonzero(marked.any(axis=0)):
        own = slice(column * SUPER, (column + 1) * SUPER)
        given = None if importance is None else importance[own]
        which = np.flatnonzero(marked[:, column])
        out[which, column] = reference(np.ascontiguousarray(rows[which, own]), given)


def quantize_blocks(
    kernels: tuple[Kernel, Kernel],
    tables: tuple[Any, Any],
    reference: Quantizer,
    rows: Floats,
    importance: Floats | None,
    block_bytes: int,
    jobs: int | None,
) -> Bytes:
    """Run one of two kernels over all super-blocks of `rows`.

    What holds a NaN, or is weighed by one, is left to the reference. Where two NaN meet, x86 keeps
    the first operand's payload, which shows in the codes, and LLVM does not keep the order of
    operands.

    Args:
        kernels: Without importance: called with weights, table, first and last super-block,
            output, marks, workspace. With importance: called with that and the super-blocks a
            row after the weights.
        tables: What each kernel is given besides.
        reference: The same quantizer in NumPy.
        rows: Weights `[n, K]`.
        importance: Importance `[K]`, or None.
        block_bytes: Bytes of a super-block.
        jobs: Threads; None for all.
    """
    flat = rows.reshape(-1)
    blocks = flat.size // SUPER
    row_blocks = rows.shape[1] // SUPER
    out = np.empty(blocks * block_bytes, np.uint8)
    marks = np.zeros(blocks, np.uint8)

    def work(first: int, last: int) -> None:
        where = (first, last, out, marks, workspace())
        if importance is None:
            kernels[0](flat, tables[0], *where)
        else:
            kernels[1](flat, importance, row_blocks, tables[1], *where)

    in_threads(work, blocks, flat.size, LANES, jobs)
    marked = marks.reshape(rows.shape[0], row_blocks)
    if importance is not None:
        marked[:, np.isnan(importance.reshape(row_blocks, SUPER)).any(axis=1)] = 1
    if marked.any():
        shaped = out.reshape(rows.shape[0], row_blocks, block_bytes)
        _redo(reference, rows, importance, marked, shaped)
    return out.reshape(rows.shape[0], row_blocks * block_bytes)
