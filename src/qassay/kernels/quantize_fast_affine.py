"""Q4_K, Q5_K and Q2_K in Numba: the search for scale and minimum, a super-block a lane."""

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
    negated,
    number,
    root,
    select,
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
    levels,
    pack_bit,
    pack_pairs,
    pack_quarters,
    pack_six,
    quantize_blocks,
    scatter,
    six_scale,
    spread_weights,
    store_half,
    sum_parts,
    unhalf,
)
from qassay.kernels.quantize_fast_positive import positive
from qassay.kernels.quantize_fast_vectors import LANES, inner
from qassay.kernels.quantize_reference_search import (
    Q2_K,
    Q2_WEIGHTED,
    Q4_K,
    Q4_WEIGHTED,
    Q5_K,
    Q5_WEIGHTED,
    positive_numerators,
)

_THIRTY_TWO = np.float32(32)
_ONE_TIME = np.float32(1)
_TWICE = np.float32(2)
_TOP2, _TOP4, _TOP5, _TOP6 = np.float32(3), np.float32(15), np.float32(31), np.float32(63)
SCALE, LOW, INVERSE, BASE, FLAT, _SUMS = range(6)
"""Rows of a workspace's parts that the search fills."""


@inner
def _error(x, w, at, n, tried, scale, low, absolute):
    total = zeros()
    if absolute:
        for i in range(n):
            difference = scale * load(tried, i) + low - load(x, at + i)
            total = total + load(w, at + i) * magnitude(difference)
    else:
        for i in range(n):
            difference = scale * load(tried, i) + low - load(x, at + i)
            total = total + load(w, at + i) * (difference * difference)
    return total


@inner
def search_range(x, w, part, n, top, numerators, absolute, tried, parts):
    """Search scale and minimum of sub-block `part` of every lane, as `affine` of the reference."""
    at = part * n
    last = whole(top)
    low = load(x, at)
    high = low
    sum_w = load(w, at)
    sum_x = sum_w * low
    for i in range(1, n):
        v = load(x, at + i)
        weight = load(w, at + i)
        low = select(v < low, v, low)
        high = select(v > high, v, high)
        sum_w = sum_w + weight
        sum_x = sum_x + weight * v
    low = select(low > zeros(), zeros(), low)
    flat = high == low
    lowest = low
    inverse = splat(top) / (high - low)
    scale = splat(ONE) / inverse
    for i in range(n):
        code = nearest((load(x, at + i) - low) * inverse)
        store(tried, i, number(clamped(code, whole(0), last)))
    best = _error(x, w, at, n, tried, scale, low, absolute)
    base = low
    for candidate in range(numerators.size):
        this = splat(numerators[candidate]) / (high - low)
        sum_l, sum_l2, sum_xl = zeros(), zeros(), zeros()
        for i in range(n):
            v = load(x, at + i)
            code = number(clamped(nearest((v - low) * this), whole(0), last))
            store(tried, i, code)
            wl = load(w, at + i) * code
            sum_l = sum_l + wl
            sum_l2 = sum_l2 + wl * code
            sum_xl = sum_xl + wl * v
        determinant = sum_w * sum_l2 - sum_l * sum_l
        this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        this_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        above = this_low > zeros()
        this_low = select(above, zeros(), this_low)
        this_scale = select(above, sum_xl / sum_l2, this_scale)
        error = _error(x, w, at, n, tried, this_scale, this_low, absolute)
        wins = (determinant > zeros()) & (error < best)
        best = select(wins, error, best)
        scale = select(wins, this_scale, scale)
        inverse = select(wins, this, inverse)
        base = select(wins, low, base)
        low = select(wins, this_low, low)
    store(parts[SCALE], part, select(flat, zeros(), scale))
    store(parts[LOW], part, negated(select(flat, lowest, low)))
    store(parts[INVERSE], part, inverse)
    store(parts[BASE], part, base)
    store(parts[FLAT], part, select(flat, splat(ONE), zeros()))


@inner
def _recode(x, part, n, top, d, dm, parts, codes):
    """Code a sub-block with its stored scale; where that is zero, as the search's winner did."""
    at = part * n
    last = whole(top)
    zero = d == zeros()
    for i in range(n):
        code = nearest((dm + load(x, at + i)) / d)
        store_bytes(codes, at + i, clamped(code, whole(0), last))
    if any_lane(zero):
        inverse = load(parts[INVERSE], part)
        base = load(parts[BASE], part)
        flat = load(parts[FLAT], part) > zeros()
        for i in range(n):
            code = nearest((load(x, at + i) - base) * inverse)
            code = select(flat, whole(0), clamped(code, whole(0), last))
            fresh = load_bytes(codes, at + i)
            store_bytes(codes, at + i, select(zero, code, fresh))


@inner
def _mean_weights(x, w):
    """Write the weights of Q4_K and Q5_K: root mean square of the sub-block plus |x|."""
    for part in range(8):
        at = part * 32
        total = zeros()
        for i in range(32):
            v = load(x, at + i)
            total = total + v * v
        mean = root(total / splat(_THIRTY_TWO))
        for i in range(32):
            store(w, at + i, mean + magnitude(load(x, at + i)))


@inner
def _clamp_levels(codes):
    for part in range(8):
        level = clamped(load_bytes(codes, part), whole(0), whole(63))
        store_bytes(codes, part, level)


@inner
def _finish_six(x, d, dmin, top, raw, parts, steps, codes):
    """Write d, dmin and the 6-bit levels of Q4_K or Q5_K, then code the weights with them."""
    store_half(raw, 0, d)
    store_half(raw, 2, dmin)
    pack_six(steps[0], steps[1], raw, 4)
    scale = unhalf(d)
    low_scale = unhalf(dmin)
    for part in range(8):
        level, low_level = six_scale(raw, 4, part)
        _recode(x, part, 32, top, scale * level, low_scale * low_level, parts, codes)


@inner
def _six(own, top, numerators):
    _mean_weights(own.x, own.w)
    for part in range(8):
        search_range(own.x, own.w, part, 32, top, numerators, False, own.tried, own.parts)
    d = levels(own.parts[SCALE], 8, _TOP6, own.levels[0])
    dmin = levels(own.parts[LOW], 8, _TOP6, own.levels[1])
    _clamp_levels(own.levels[0])
    _clamp_levels(own.levels[1])
    _finish_six(own.x, d, dmin, top, own.raw, own.parts, own.levels, own.codes)


@inner
def _six_weighted(own, top, tables, clamp):
    spread_weights(own.x, own.w, _TWICE)
    sum_parts(own.w, 32, 8, own.parts[_SUMS])
    for part in range(8):
        search_range(own.x, own.w, part, 32, top, tables[0], False, own.tried, own.parts)
    d = half(positive(own.parts[SCALE], own.parts[_SUMS], 8, tables[1], own.levels[0]))
    dmin = half(positive(own.parts[LOW], own.parts[_SUMS], 8, tables[1], own.levels[1]))
    if clamp:
        _clamp_levels(own.levels[0])
        _clamp_levels(own.levels[1])
    _finish_six(own.x, d, dmin, top, own.raw, own.parts, own.levels, own.codes)


@kernel
def _q4_k(weights, numerators, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        _six(own, _TOP4, numerators)
        pack_pairs(own.codes, own.raw, 16)
        scatter(own.raw, 144, start, count, out)


@kernel
def _q4_k_weighted(weights, importance, row_blocks, tables, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        gather_importance(importance, row_blocks, start, SUPER, own.w)
        _six_weighted(own, _TOP4, tables, False)
        pack_pairs(own.codes, own.raw, 16)
        scatter(own.raw, 144, start, count, out)


@kernel
def _q5_k(weights, numerators, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        _six(own, _TOP5, numerators)
        pack_bit(own.codes, own.raw, 16, 4)
        pack_pairs(own.codes, own.raw, 48)
        scatter(own.raw, 176, start, count, out)


@kernel
def _q5_k_weighted(weights, importance, row_blocks, tables, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        gather_importance(importance, row_blocks, start, SUPER, own.w)
        _six_weighted(own, _TOP5, tables, True)
        pack_bit(own.codes, own.raw, 16, 4)
        pack_pairs(own.codes, own.raw, 48)
        scatter(own.raw, 176, start, count, out)


@inner
def _finish_two(x, d, dmin, raw, parts, steps, codes):
    """Write Q2_K's levels, d and dmin, then the codes made with them."""
    store_half(raw, 80, d)
    store_half(raw, 82, dmin)
    scale = unhalf(d)
    low_scale = unhalf(dmin)
    for part in range(16):
        low = load_bytes(steps[1], part) << whole(4)
        store_bytes(raw, part, load_bytes(steps[0], part) | low)
        both = load_bytes(raw, part)
        own = scale * number(both & whole(15))
        _recode(x, part, 16, _TOP2, own, low_scale * number(both >> whole(4)), parts, codes)
    pack_quarters(codes, raw, 16, 0)


@kernel
def _q2_k(weights, numerators, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        for i in range(256):
            store(own.w, i, magnitude(load(own.x, i)))
        for part in range(16):
            search_range(own.x, own.w, part, 16, _TOP2, numerators, True, own.tried, own.parts)
        d = levels(own.parts[SCALE], 16, _TOP4, own.levels[0])
        dmin = levels(own.parts[LOW], 16, _TOP4, own.levels[1])
        _finish_two(own.x, d, dmin, own.raw, own.parts, own.levels, own.codes)
        scatter(own.raw, 84, start, count, out)


@kernel
def _q2_k_weighted(weights, importance, row_blocks, tables, first, end, out, marks, own):
    for start in range(first, end, LANES):
        count = min(LANES, end - start)
        gather(weights, start, count, SUPER, own.x, marks)
        gather_importance(importance, row_blocks, start, SUPER, own.w)
        spread_weights(own.x, own.w, _ONE_TIME)
        sum_parts(own.w, 16, 16, own.parts[_SUMS])
        for part in range(16):
            search_range(own.x, own.w, part, 16, _TOP2, tables[0], False, own.tried, own.parts)
        d = half(positive(own.parts[SCALE], own.parts[_SUMS], 16, tables[1], own.levels[0]))
        dmin = half(positive(own.parts[LOW], own.parts[_SUMS], 16, tables[1], own.levels[1]))
        _finish_two(own.x, d, dmin, own.raw, own.parts, own.levels, own.codes)
        scatter(own.raw, 84, start, count, out)


def q4_k(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q4_K; the same bytes as `quantize_reference_k.q4_k`."""
    tables = (Q4_K.numerators(), (Q4_WEIGHTED.numerators(), positive_numerators(63)))
    return quantize_blocks(
        (_q4_k, _q4_k_weighted), tables, reference.q4_k, rows, importance, 144, jobs
    )


def q5_k(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q5_K; the same bytes as `quantize_reference_k.q5_k`."""
    tables = (Q5_K.numerators(), (Q5_WEIGHTED.numerators(), positive_numerators(63)))
    return quantize_blocks(
        (_q5_k, _q5_k_weighted), tables, reference.q5_k, rows, importance, 176, jobs
    )


def q2_k(rows: Floats, importance: Floats | None, jobs: int | None = None) -> Bytes:
    """Write Q2_K; the same bytes as `quantize_reference_k.q2_k`."""
    tables = (Q2_K.numerators(), (Q2_WEIGHTED.numerators(), positive_numerators(15)))
    return quantize_blocks(
        (_q2_k, _q2_k_weighted), tables, reference.q2_k, rows, importance, 84, jobs
    )
