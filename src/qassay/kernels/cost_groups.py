"""The measures of one group of weights after another, with Numba: what `cost_rows` falls back on.

A group goes the short way where every error is finite and at most half a step: the nearest value
of the grid was taken, so that e* = e. All other groups, and all codes with a table, go weight by
weight. Sums inside a group of the short way are float32, in an order that the compiler chooses;
squares that float32 cannot hold send the group the long way.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from qassay.kernels.cost import ASTRAY, FLOOR, Of
from qassay.kernels.jit import borrowing

_COMPARED, _HIDDEN, _BORN, _BOTH = int(Of.COMPARED), int(Of.HIDDEN), int(Of.BORN), int(Of.BOTH)
_REF2, _CROSS, _ERR, _REF = int(Of.REF2), int(Of.CROSS), int(Of.ERR), int(Of.REF)
_BEST2, _NEG, _POS, _LARGEST = int(Of.BEST2), int(Of.NEGATIVE), int(Of.POSITIVE), int(Of.LARGEST)
_STEPS, _CLIPPED, _ASTRAY = int(Of.STEPS), int(Of.CLIPPED), int(Of.ASTRAY)
_TINY, _HUGE = 1e-30, 1e30
_TWELFTH = 1 / 12


def _relaxed(function: Any) -> Any:
    """Compile a helper whose sums may be taken in any order, so that they are vectorised."""
    return numba.njit(
        nogil=True,
        error_model="numpy",
        fastmath={"reassoc", "nsz", "contract"},
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
        _nrt=False,
    )(function)


@_relaxed
def sums_of(ref, new, length, away, sums):
    """Write the float32 sums of each group of a row; `ref` and `new` are `[groups, length]`."""
    zero, one = np.float32(0), np.float32(1)
    for group in range(ref.shape[0]):
        err2 = ref2 = cross = err = total = below = above = negative = positive = zero
        for k in range(length):
            w = ref[group, k]
            e = new[group, k] - w
            away[group, k] = e
            err2 += e * e
            ref2 += w * w
            cross += w * e
            err += e
            total += w
            below += e if w < zero else zero
            above += e if w > zero else zero
            negative += one if w < zero else zero
            positive += one if w > zero else zero
        sums[group, 0] = err2
        sums[group, 1] = ref2
        sums[group, 2] = cross
        sums[group, 3] = err
        sums[group, 4] = total
        sums[group, 5] = below
        sums[group, 6] = above
        sums[group, 7] = negative
        sums[group, 8] = positive


@borrowing
def ends_of(ref_bits, away_bits, length, ends):
    """Write the bits of the largest |e|, and of the lowest and highest weight, of each group.

    Magnitudes of floats are ordered as their bits are, and integers are compared in vectors
    whatever floats stand for; what is not finite has the largest bits of all.
    """
    mask = np.int32(0x7FFFFFFF)
    for group in range(ref_bits.shape[0]):
        largest = low = high = np.int32(0)
        for k in range(length):
            bits = ref_bits[group, k]
            largest = max(largest, np.int32(away_bits[group, k] & mask))
            low = max(low, np.int32(bits & mask) if bits < 0 else np.int32(0))
            high = max(high, bits)
        ends[group, 0] = largest
        ends[group, 1] = low
        ends[group, 2] = high


@borrowing
def place_of(ref, new, largest):
    """Return where an error of that size is."""
    for k in range(ref.size):
        if abs(new[k] - ref[k]) == largest:
            return k
    return 0


@borrowing
def _lower(table, x):
    """Return the code of the nearest value of an ascending table; halves go down."""
    low, high = 0, table.size - 1
    while low < high:
        middle = (low + high) // 2
        if x > (np.float64(table[middle]) + np.float64(table[middle + 1])) / 2:
            low = middle + 1
        else:
            high = middle
    return low


@borrowing
def _par(ref, new, amax, table):
    """Return what rounding a group to a table scaled to its largest weight costs."""
    if amax == 0:
        return 0.0
    scale = amax / max(abs(np.float64(table[0])), abs(np.float64(table[-1])))
    last = scale * (np.float64(table[-1]) - np.float64(table[-2]))
    par = last * last / 12
    for k in range(ref.size):
        w = np.float64(ref[k])
        if np.isfinite(w) and np.isfinite(new[k]):
            away = np.float64(table[_lower(table, w / scale)]) * scale - w
            par += away * away
    return par


@borrowing
def long_way(ref, new, at, step, start, levels, table, gaps, out):
    """Add a group weight by weight; return its squared error and the range of its weights."""
    usable = step != 0 and np.isfinite(step) and np.isfinite(start)
    wide = np.float64(step)
    begin = np.float64(start)
    cost = low = high = 0.0
    for k in range(ref.size):
        w, v = np.float64(ref[k]), np.float64(new[k])
        one, two = np.isfinite(w), np.isfinite(v)
        if not (one and two):
            if one:
                out[_BORN] += 1
            elif two:
                out[_HIDDEN] += 1
            else:
                out[_BOTH] += 1
            continue
        e = v - w
        out[_COMPARED] += 1
        cost += e * e
        out[_REF2] += w * w
        out[_CROSS] += w * e
        out[_ERR] += e
        out[_REF] += w
        low = min(low, w)
        high = max(high, w)
        size = abs(e)
        if size > out[_LARGEST]:
            out[_LARGEST] = size
            out[_LARGEST + 1] = at + k
        if not usable:
            out[_BEST2] += e * e
            continue
        if table.size:
            x = w / wide
            code = _lower(table, x)
            best = np.float64(table[code]) * wide - w
            unit = abs(wide) * gaps[code]
            beyond = (x < table[0] or x > table[-1]) and abs(best) > unit
        else:
            x = (w - begin) / wide
            best = begin + min(max(np.rint(x), 0.0), levels - 1.0) * wide - w
            unit = abs(wide)
            beyond = x < -1 or x > levels
        out[_BEST2] += best * best
        if beyond:
            out[_CLIPPED] += 1
        if size - abs(best) > ASTRAY * unit:
            out[_ASTRAY] += 1
        steps = size / unit
        if steps > out[_STEPS]:
            out[_STEPS] = steps
            out[_STEPS + 1] = at + k
        if w != 0:
            sign = _NEG if w < 0 else _POS
            out[sign] += 1
            out[sign + 1] += e / unit
            out[sign + 2] += (e - best) / unit
    return cost, low, high


@borrowing
def par_of(low, high, unit):
    """Return what a weight of a group should cost; `unit` is below zero where the range counts."""
    amax = max(-low, high)
    wide = amax * unit if unit > 0 else (high - low) * unit
    return (amax * FLOOR) ** 2 + wide * wide * _TWELFTH


@borrowing
def _is_short(err2, norm2, largest, size):
    """Tell whether every error is finite, of a size that float32 can square, and half a step."""
    held = norm2 < _HUGE and err2 < _HUGE and (err2 > _TINY or largest == 0)
    return held and largest <= size * 0.5


@borrowing
def one_group(group, ref, new, step, start, symmetric, levels, table, gaps, part, ends, room, out):
    """Measure one group of any length; `part` and `ends` are what `_sums` and `_ends` found."""
    costs, pars, bests, _, _ = room
    length = ref.size
    size = np.float64(abs(step))
    short = False
    if table.size == 0 and size > 0 and size < np.inf and np.isfinite(start):
        largest = np.float64(ends[0])
        short = _is_short(part[0], part[1], largest, size)
    if short:
        inverse = 1 / size
        out[_COMPARED] += length
        out[_REF2] += part[1]
        out[_CROSS] += part[2]
        out[_ERR] += part[3]
        out[_REF] += part[4]
        out[_NEG + 1] += part[5] * inverse
        out[_POS + 1] += part[6] * inverse
        out[_NEG] += part[7]
        out[_POS] += part[8]
        if largest > out[_LARGEST]:
            out[_LARGEST] = largest
            out[_LARGEST + 1] = group * length + place_of(ref, new, largest)
        if largest * inverse > out[_STEPS]:
            out[_STEPS] = largest * inverse
            out[_STEPS + 1] = group * length + place_of(ref, new, largest)
        costs[group] = bests[group] = part[0]
        low, high = -np.float64(ends[1]), np.float64(ends[2])
    else:
        costs[group], low, high = long_way(
            ref, new, group * length, step, start, levels, table, gaps, out
        )
        bests[group] = 0
    unit = 1 / max(1, levels // 2 - 1) if symmetric != 0 else -1 / (levels - 1)
    pars[group] = length * par_of(low, high, unit)
    if table.size:
        amax = max(-low, high)
        pars[group] = length * (amax * FLOOR) ** 2 + _par(ref, new, amax, table)
