"""Q4_0, Q4_1, Q5_0 and Q5_1 with importance in Numba: a 32-weight block a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.kernels import quantize_fast_legacy as plain
from qassay.kernels import quantize_reference_legacy as reference
from qassay.kernels.jit import kernel
from qassay.kernels.quantize_fast_affine import BASE, FLAT, INVERSE, LOW, SCALE, search_range
from qassay.kernels.quantize_fast_lanes import (
    ZERO,
    clamped,
    load,
    load_bytes,
    nearest,
    negated,
    root,
    select,
    store,
    store_bytes,
    whole,
    zeros,
)
from qassay.kernels.quantize_fast_parts import (
    Quantizer,
    gather,
    gather_importance,
    half,
    in_threads,
    scatter,
    store_half,
    workspace,
)
from qassay.kernels.quantize_fast_symmetric import search_scale
from qassay.kernels.quantize_fast_vectors import LANES, inner
from qassay.kernels.quantize_reference_search import (
    Q4_WEIGHTED,
    Q5_WEIGHTED,
    symmetric_numerators,
)

_BLOCK = 32
_TOP4, _TOP5 = np.float32(15), np.float32(31)


@kernel
def _means(x, rows, length, means):
    """Write the mean square of each row, summed one after the other."""
    for row in range(rows):
        total = ZERO
        for i in range(row * length, (row + 1) * length):
            total += x[i] * x[i]
        means[row] = total / np.float32(length)


@inner
def _prepare(x, importance, row_blocks, means, start, count, own, marks):
    """Transpose the blocks from `start` on, and weigh them."""
    gather(x, start, count, _BLOCK, own.x, marks)
    gather_importance(importance, row_blocks, start, _BLOCK, own.w)
    for lane in range(LANES):
        block = start + min(lane, count - 1)
        own.tried[lane] = means[block // row_blocks]
    mean = load(own.tried, 0)
    for i in range(_BLOCK):
        v = load(own.x, i)
        store(own.w, i, load(own.w, i) * root(mean + v * v))


@inner
def _pack_nibbles(codes, raw, first):
    for i in range(16):
        low = load_bytes(codes, i) & whole(15)
        high = load_bytes(codes, i + 16) << whole(4)
        store_bytes(raw, first + i, low | high)


@inner
def _pack_fifth(codes, raw, first):
    for byte in range(4):
        bits = whole(0)
        for i in range(8):
            code = load_bytes(codes, byte * 8 + i)
            bits = bits | (((code >> whole(4)) & whole(1)) << whole(i))
        store_bytes(raw, first + byte, bits)


@inner
def _centre(own, numerators, top):
    """Search a scale, write its codes and itself."""
    scale, inverse, zero = search_scale(own.x, own.w, 0, _BLOCK, top, numerators)
    for i in range(_BLOCK):
        code = clamped(nearest(inverse * load(own.x, i)), whole(-top), whole(top - 1))
        code = select(zero > zeros(), whole(0), code + whole(top))
        store_bytes(own.codes, i, code)
    store_half(own.raw, 0, half(scale))


@inner
def _range(own, numerators, top):
    """Search scale and minimum, write their codes and themselves."""
    search_range(own.x, own.w, 0, _BLOCK, top, numerators, False, own.tried, own.parts)
    inverse, base = load(own.parts[INVERSE], 0), load(own.parts[BASE], 0)
    flat = load(own.parts[FLAT], 0) > zeros()
    for i in range(_BLOCK):
        code = nearest((load(own.x, i) - base) * inverse)
        code = select(flat, whole(0), clamped(code, whole(0), whole(top)))
        store_bytes(own.codes, i, code)
    store_half(own.raw, 0, half(load(own.parts[SCALE], 0)))
    store_half(own.raw, 2, half(negated(load(own.parts[LOW], 0))))


@kernel
def _q4_0(x, importance, row_blocks, means, table, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        _prepare(x, importance, row_blocks, means, start, count, own, marks)
        _centre(own, table, 8)
        _pack_nibbles(own.codes, own.raw, 2)
        scatter(own.raw, 18, start, count, out)


@kernel
def _q5_0(x, importance, row_blocks, means, table, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        _prepare(x, importance, row_blocks, means, start, count, own, marks)
        _centre(own, table, 16)
        _pack_fifth(own.codes, own.raw, 2)
        _pack_nibbles(own.codes, own.raw, 6)
        scatter(own.raw, 22, start, count, out)


@kernel
def _q4_1(x, importance, row_blocks, means, table, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        _prepare(x, importance, row_blocks, means, start, count, own, marks)
        _range(own, table, _TOP4)
        _pack_nibbles(own.codes, own.raw, 4)
        scatter(own.raw, 20, start, count, out)


@kernel
def _q5_1(x, importance, row_blocks, means, table, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        _prepare(x, importance, row_blocks, means, start, count, own, marks)
        _range(own, table, _TOP5)
        _pack_fifth(own.codes, own.raw, 4)
        _pack_nibbles(own.codes, own.raw, 8)
        scatter(own.raw, 24, start, count, out)


def _searched(
    work: Callable[..., Any],
    table: Floats,
    slow: Quantizer,
    rows: Floats,
    importance: Floats,
    block_bytes: int,
    jobs: int | None,
) -> Bytes:
    """Run a kernel over all blocks; NaN are left to the reference, see `quantize_blocks`."""
    if np.isnan(importance).any():
        return slow(rows, importance)
    flat = rows.reshape(-1)
    blocks = flat.size // _BLOCK
    row_blocks = rows.shape[1] // _BLOCK
    out = np.empty(blocks * block_bytes, np.uint8)
    marks = np.zeros(blocks, np.uint8)
    means = np.empty(rows.shape[0], np.float32)
    _means(flat, rows.shape[0], rows.shape[1], means)

    def run(first: int, last: int) -> None:
        own = workspace(_BLOCK)
        work(flat, importance, row_blocks, means, table, first, last, out, marks, own)

    in_threads(run, blocks, flat.size, LANES, jobs)
    shaped = out.reshape(rows.shape[0], row_blocks * block_bytes)
    odd = np.flatnonzero(marks.reshape(rows.shape[0], row_blocks).any(axis=1))
    if odd.size:
        shaped[odd] = slow(rows[odd], importance)
    return shaped


def q4_0(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q4_0; the same bytes as the reference."""
    if importance is None:
        return plain.q4_0(rows, jobs)
    table = symmetric_numerators(8)
    return _searched(_q4_0, table, reference.q4_0, rows, importance, 18, jobs)


def q5_0(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q5_0; the same bytes as the reference."""
    if importance is None:
        return plain.q5_0(rows, jobs)
    table = symmetric_numerators(16)
    return _searched(_q5_0, table, reference.q5_0, rows, importance, 22, jobs)


def q4_1(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q4_1; the same bytes as the reference."""
    if importance is None:
        return plain.q4_1(rows, jobs)
    table = Q4_WEIGHTED.numerators()
    return _searched(_q4_1, table, reference.q4_1, rows, importance, 20, jobs)


def q5_1(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q5_1; the same bytes as the reference."""
    if importance is None:
        return plain.q5_1(rows, jobs)
    table = Q5_WEIGHTED.numerators()
    return _searched(_q5_1, table, reference.q5_1, rows, importance, 24, jobs)
