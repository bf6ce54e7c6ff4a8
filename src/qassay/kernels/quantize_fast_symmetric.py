"""Q6_K and Q3_K in Numba: searches for a scale alone, a super-block a lane."""

from __future__ import annotations

import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.kernels import quantize_reference_k as reference
from qassay.kernels.jit import kernel
from qassay.kernels.quantize_fast_lanes import (
    ONE,
    any_lane,
    clamped,
    load,
    load_bytes,
    magnitude,
    nearest,
    number,
    select,
    signed_byte,
    splat,
    store,
    store_bytes,
    whole,
    zeros,
)
from qassay.kernels.quantize_fast_parts import (
    SUPER,
    gather,
    gather_importance,
    half,
    most_signed,
    pack_bit,
    pack_quarters,
    quantize_blocks,
    scatter,
    spread_weights,
    store_half,
    sum_parts,
    unhalf,
)
from qassay.kernels.quantize_fast_vectors import LANES, inner
from qassay.kernels.quantize_reference_parts import TINY
from qassay.kernels.quantize_reference_search import symmetric_numerators

_TWICE = np.float32(2)
_MINUS_128 = np.float32(-128)
_MINUS_32 = np.float32(-32)
_MINUS_4 = np.float32(-4)
_SWEEPS = 5
_SCALE, _INVERSE, _ZERO, _SUMS = range(4)


@inner
def _largest(x, at, n):
    most = zeros()
    signed = zeros()
    for i in range(n):
        v = load(x, at + i)
        more = magnitude(v) > most
        most = select(more, magnitude(v), most)
        signed = select(more, v, signed)
    return most, signed


@inner
def search_scale(x, w, at, n, top, numerators):
    """Search as `symmetric` of the reference; return scale, inverse scale, whether all is zero."""
    low, high = whole(-top), whole(top - 1)
    most, signed = _largest(x, at, n)
    scale, best, inverse = zeros(), zeros(), zeros()
    for candidate in range(numerators.size):
        this = splat(numerators[candidate]) / signed
        sum_lx, sum_l2 = zeros(), zeros()
        for i in range(n):
            v = load(x, at + i)
            weight = load(w, at + i)
            code = number(clamped(nearest(this * v), low, high))
            sum_lx = sum_lx + weight * v * code
            sum_l2 = sum_l2 + weight * code * code
        if candidate == 0:
            scale = select(sum_l2 != zeros(), sum_lx / sum_l2, zeros())
            best = scale * sum_lx
            inverse = this
        else:
            wins = (sum_l2 > zeros()) & (sum_lx * sum_lx > best * sum_l2)
            this_scale = sum_lx / sum_l2
            scale = select(wins, this_scale, scale)
            best = select(wins, this_scale * sum_lx, best)
            inverse = select(wins, this, inverse)
    zero = most < splat(TINY)
    return select(zero, zeros(), scale), inverse, select(zero, splat(ONE), zeros())


@inner
def _search_parts(x, w, top, numerators, parts):
    for part in range(16):
        scale, inverse, zero = search_scale(x, w, part * 16, 16, top, numerators)
        store(parts[_SCALE], part, scale)
        store(parts[_INVERSE], part, inverse)
        store(parts[_ZERO], part, zero)


@inner
def _recode(x, part, top, d, codes):
    """Code a sub-block with its stored scale, lanes where that is zero excepted."""
    at = part * 16
    low, high, raised = whole(-top), whole(top - 1), whole(top)
    lost = d == zeros()
    if any_lane(lost):
        for i in range(16):
            code = clamped(nearest(load(x, at + i) / d), low, high) + raised
            old = load_bytes(codes, at + i)
            store_bytes(codes, at + i, select(lost, old, code))
    else:
        for i in range(16):
            code = clamped(nearest(load(x, at + i) / d), low, high) + raised
            store_bytes(codes, at + i, code)


@inner
def _found_codes(x, part, top, d, parts, codes):
    """Write the codes of the search's winner if some lane's stored scale is zero."""
    if any_lane(d == zeros()):
        at = part * 16
        inverse = load(parts[_INVERSE], part)
        zero = load(parts[_ZERO], part) > zeros()
        for i in range(16):
            code = nearest(inverse * load(x, at + i))
            code = clamped(code, whole(-top), whole(top - 1)) + whole(top)
            store_bytes(codes, at + i, select(zero, whole(0), code))


@inner
def _finish_six(x, raw, parts, codes):
    """Write Q6_K's blocks from the scales that were found."""
    size, signed = most_signed(parts[_SCALE], 16)
    inverse = splat(_MINUS_128) / signed
    d = half(splat(ONE) / inverse)
    scale = unhalf(d)
    for part in range(16):
        level = nearest(inverse * load(parts[_SCALE], part))
        level = signed_byte(select(level < whole(127), level, whole(127)))
        store_bytes(raw, 192 + part, level)
        own = scale * number(level)
        _found_codes(x, part, 32, own, parts, codes)
        _recode(x, part, 32, own, codes)
    store_half(raw, 208, d)
    for side in range(2):
        for i in range(64):
            at = side * 128 + i
            low = load_bytes(codes, at) & whole(15)
            high = load_bytes(codes, at + 64) << whole(4)
            store_bytes(raw, side * 64 + i, low | high)
    pack_quarters(codes, raw, 128, 4)
    lost = size < splat(TINY)
    if any_lane(lost):
        for byte in range(210):
            value = load_bytes(raw, byte)
            store_bytes(raw, byte, select(lost, whole(0), value))


@kernel
def _q6_k(weights, numerators, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        for i in range(256):
            v = load(own.x, i)
            store(own.w, i, v * v)
        _search_parts(own.x, own.w, 32, numerators, own.parts)
        _finish_six(own.x, own.raw, own.parts, own.codes)
        scatter(own.raw, 210, start, count, out)


@kernel
def _q6_k_weighted(weights, importance, row_blocks, numerators, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        gather_importance(importance, row_blocks, start, SUPER, own.w)
        _search_parts(own.x, own.w, 32, numerators, own.parts)
        _finish_six(own.x, own.raw, own.parts, own.codes)
        scatter(own.raw, 210, start, count, out)


@inner
def _refine(x, part, codes):
    """Search as `refined` of the reference, top 4; write codes raised by 4, return the scale."""
    at = part * 16
    low, high, raised = whole(-4), whole(3), whole(4)
    most, signed = _largest(x, at, 16)
    inverse = splat(_MINUS_4) / signed
    sum_lx, sum_l2 = zeros(), zeros()
    for i in range(16):
        v = load(x, at + i)
        code = clamped(nearest(inverse * v), low, high)
        store_bytes(codes, at + i, code + raised)
        sum_lx = sum_lx + v * v * v * number(code)
        sum_l2 = sum_l2 + v * v * number(code) * number(code)
    for _ in range(_SWEEPS):
        changed = whole(0)
        for i in range(16):
            v = load(x, at + i)
            weight = v * v
            old = load_bytes(codes, at + i) - raised
            lx = sum_lx - weight * v * number(old)
            l2 = sum_l2 - weight * number(old) * number(old)
            new = clamped(nearest(v * l2 / lx), low, high)
            wins = (lx > zeros()) & (new != old)
            if any_lane(wins):
                lx = lx + weight * v * number(new)
                l2 = l2 + weight * number(new) * number(new)
                better = lx * lx * sum_l2 > sum_lx * sum_lx * l2
                wins = wins & (l2 > zeros()) & better
                store_bytes(codes, at + i, select(wins, new, old) + raised)
                sum_lx = select(wins, lx, sum_lx)
                sum_l2 = select(wins, l2, sum_l2)
                changed = changed | select(wins, whole(1), whole(0))
        if not any_lane(changed != whole(0)):
            break
    zero = most < splat(TINY)
    if any_lane(zero):
        for i in range(16):
            code = load_bytes(codes, at + i)
            store_bytes(codes, at + i, select(zero, whole(0), code))
    scale = select(sum_l2 > zeros(), sum_lx / sum_l2, zeros())
    return select(zero, zeros(), scale)


@inner
def _pack_three(levels, d, codes, raw):
    """Write Q3_K's blocks: third bits, low bits, sixteen 6-bit levels, d."""
    pack_bit(codes, raw, 0, 2)
    pack_quarters(codes, raw, 32, 0)
    for j in range(8):
        low = load_bytes(levels, j) & whole(15)
        high = (load_bytes(levels, j + 8) & whole(15)) << whole(4)
        store_bytes(raw, 96 + j, low | high)
    for j in range(4):
        byte = whole(0)
        for k in range(4):
            up = (load_bytes(levels, j + 4 * k) >> whole(4)) & whole(3)
            byte = byte | (up << whole(2 * k))
        store_bytes(raw, 104 + j, byte)
    store_half(raw, 108, d)


@kernel
def _q3_k(weights, _numerators, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        for part in range(16):
            store(own.parts[_SCALE], part, _refine(own.x, part, own.codes))
        _, signed = most_signed(own.parts[_SCALE], 16)
        lost = signed == zeros()
        inverse = splat(_MINUS_32) / signed
        d = half(select(lost, zeros(), splat(ONE) / inverse))
        scale = unhalf(d)
        for part in range(16):
            level = signed_byte(nearest(inverse * load(own.parts[_SCALE], part)))
            level = clamped(level, whole(-32), whole(31)) + whole(32)
            level = select(lost, whole(0), level)
            store_bytes(own.levels[0], part, level)
            _recode(own.x, part, 4, scale * number(level - whole(32)), own.codes)
        _pack_three(own.levels[0], d, own.codes, own.raw)
        scatter(own.raw, 110, start, count, out)


@kernel
def _q3_k_weighted(weights, importance, row_blocks, tables, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        gather_importance(importance, row_blocks, start, SUPER, own.w)
        spread_weights(own.x, own.w, _TWICE)
        sum_parts(own.w, 16, 16, own.parts[_SUMS])
        _search_parts(own.x, own.w, 4, tables[0], own.parts)
        wide, inverse, zero = search_scale(
            own.parts[_SCALE], own.parts[_SUMS], 0, 16, 32, tables[1]
        )
        d = half(wide)
        scale = unhalf(d)
        for part in range(16):
            level = nearest(inverse * load(own.parts[_SCALE], part))
            level = clamped(level, whole(-32), whole(31)) + whole(32)
            level = select(zero > zeros(), whole(0), level)
            store_bytes(own.levels[0], part, level)
            stored = scale * number(level - whole(32))
            _found_codes(own.x, part, 4, stored, own.parts, own.codes)
            _recode(own.x, part, 4, stored, own.codes)
        _pack_three(own.levels[0], d, own.codes, own.raw)
        scatter(own.raw, 110, start, count, out)


def q6_k(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q6_K; the same bytes as `quantize_reference_k.q6_k`."""
    tables = (symmetric_numerators(32), symmetric_numerators(32))
    return quantize_blocks(
        (_q6_k, _q6_k_weighted), tables, reference.q6_k, rows, importance, 210, jobs
    )


def q3_k(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q3_K; the same bytes as `quantize_reference_k.q3_k`."""
    weighted = (symmetric_numerators(4), symmetric_numerators(32))
    tables = (weighted[0], weighted)
    return quantize_blocks(
        (_q3_k, _q3_k_weighted), tables, reference.q3_k, rows, importance, 110, jobs
    )
