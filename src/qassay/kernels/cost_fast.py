"""What quantizing cost, with Numba: `cost.measure_rows`, and the same straight from ggml blocks.

A group goes the short way where every error is finite and at most half a step: the nearest value
of the grid was taken, so that e* = e. All other groups, and all codes with a table, go weight by
weight. Sums inside a group of the short way are float32; squares that float32 cannot hold send the
group the long way.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, per_encoding
from qassay.encodings.fields import Role
from qassay.kernels.cost import ASTRAY, FLOOR, WIDTH, Doubles, Floats, Grid, Of, gaps_of
from qassay.kernels.cost import measure_rows as reference
from qassay.kernels.fast_codes import unpack
from qassay.kernels.fast_decode import arguments_of, scale_at
from qassay.kernels.jit import helper, kernel

_COMPARED, _HIDDEN, _BORN, _BOTH = int(Of.COMPARED), int(Of.HIDDEN), int(Of.BORN), int(Of.BOTH)
_ERR2, _REF2, _CROSS, _ERR, _REF = map(int, (Of.ERR2, Of.REF2, Of.CROSS, Of.ERR, Of.REF))
_BEST2, _PAR2 = int(Of.BEST2), int(Of.PAR2)
_NEG, _POS = int(Of.NEGATIVE), int(Of.POSITIVE)
_LARGEST, _STEPS = int(Of.LARGEST), int(Of.STEPS)
_ASTRAY, _CLIPPED, _GROUP = int(Of.ASTRAY), int(Of.CLIPPED), int(Of.GROUP)
_TINY, _HUGE = 1e-30, 1e30
_TWELFTH = 1 / 12
_UNSIGNED, _SIGNED, _TABLE = 0, 1, 2


def _relaxed(function: Any) -> Any:
    """Compile a helper whose sums may be taken in any order, so that they are vectorised."""
    return numba.njit(
        nogil=True,
        error_model="numpy",
        fastmath={"reassoc", "nsz", "contract"},
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )(function)


@_relaxed
def _sums(ref, new, length, away, sums):
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


@helper
def _ends(ref_bits, away_bits, length, ends):
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


@helper
def _place(ref, new, largest):
    for k in range(ref.size):
        if abs(new[k] - ref[k]) == largest:
            return k
    return 0


@helper
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


@helper
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


@helper
def _long(ref, new, at, step, start, levels, table, gaps, out):
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


@helper
def _par_of(low, high, unit):
    """Return what a weight of a group should cost; `unit` is below zero where the range counts."""
    amax = max(-low, high)
    wide = amax * unit if unit > 0 else (high - low) * unit
    return (amax * FLOOR) ** 2 + wide * wide * _TWELFTH


@helper
def _is_short(err2, norm2, largest, size):
    """Tell whether every error is finite, of a size that float32 can square, and half a step."""
    held = norm2 < _HUGE and err2 < _HUGE and (err2 > _TINY or largest == 0)
    return held and largest <= size * 0.5


@helper
def _row(ref, bits, new, steps, starts, symmetric, levels, table, gaps, room, out):  # noqa: PLR0915
    """Measure one row, `ref` and `new` as `[groups, weights]`."""
    groups, length = ref.shape
    away, sums, ends, costs, pars = room
    away_bits, end_bits = away.view(np.int32), ends.view(np.int32)
    if table.size == 0:
        # A length that the compiler knows makes loops without a remainder.
        if length == 32:
            _sums(ref, new, 32, away, sums)
            _ends(bits, away_bits, 32, end_bits)
        elif length == 16:
            _sums(ref, new, 16, away, sums)
            _ends(bits, away_bits, 16, end_bits)
        else:
            _sums(ref, new, length, away, sums)
            _ends(bits, away_bits, length, end_bits)
    of_middle, of_range = 1 / max(1, levels // 2 - 1), 1 / (levels - 1)
    compared = ref2 = cross = err = total = best2 = 0.0
    negative = below = positive = above = 0.0
    for group in range(groups):
        step, start = steps[group], starts[group]
        size = np.float64(abs(step))
        short = False
        if table.size == 0 and size > 0 and size < np.inf and np.isfinite(start):
            err2, norm2 = sums[group, 0], sums[group, 1]
            largest = np.float64(ends[group, 0])
            short = _is_short(err2, norm2, largest, size)
        if short:
            inverse = 1 / size
            compared += length
            ref2 += norm2
            cross += sums[group, 2]
            err += sums[group, 3]
            total += sums[group, 4]
            best2 += err2
            below += sums[group, 5] * inverse
            above += sums[group, 6] * inverse
            negative += sums[group, 7]
            positive += sums[group, 8]
            if largest > out[_LARGEST]:
                out[_LARGEST] = largest
                out[_LARGEST + 1] = group * length + _place(ref[group], new[group], largest)
            if largest * inverse > out[_STEPS]:
                out[_STEPS] = largest * inverse
                out[_STEPS + 1] = group * length + _place(ref[group], new[group], largest)
            costs[group] = err2
            low, high = -np.float64(ends[group, 1]), np.float64(ends[group, 2])
        else:
            costs[group], low, high = _long(
                ref[group], new[group], group * length, step, start, levels, table, gaps, out
            )
        unit = of_middle if symmetric[group] != 0 else -of_range
        pars[group] = length * _par_of(low, high, unit)
        if table.size:
            amax = max(-low, high)
            pars[group] = length * (amax * FLOOR) ** 2 + _par(ref[group], new[group], amax, table)
    out[_COMPARED] += compared
    out[_REF2] += ref2
    out[_CROSS] += cross
    out[_ERR] += err
    out[_REF] += total
    out[_BEST2] += best2
    out[_NEG] += negative
    out[_NEG + 1] += below
    out[_POS] += positive
    out[_POS + 1] += above
    _finish(costs, pars, length, out)


@helper
def _finish(costs, pars, length, out):
    """Put the sums of all groups into their row, and find the worst group."""
    cost = par = 0.0
    for group in range(costs.size):
        cost += costs[group]
        par += pars[group]
    out[_ERR2] = cost
    out[_PAR2] = par
    usual = par / costs.size
    for group in range(costs.size):
        if costs[group] > out[_GROUP] * usual:
            ratio = costs[group] / max(pars[group], usual)
            if ratio > out[_GROUP]:
                out[_GROUP] = ratio
                out[_GROUP + 1] = group * length


@helper
def _room(groups, length):
    """Return what `_row` works in: errors, sums, ends, and what each group costs and should."""
    return (
        np.empty((groups, length), np.float32),
        np.empty((groups, 9), np.float32),
        np.empty((groups, 3), np.float32),
        np.zeros(groups),
        np.zeros(groups),
    )


@kernel
def _rows(ref, bits, new, steps, starts, levels, symmetric, table, gaps, out):
    rows, groups, length = ref.shape
    room = _room(groups, length)
    for row in range(rows):
        _row(
            ref[row], bits[row], new[row], steps[row], starts[row], symmetric[row], levels, table,
            gaps, room, out[row],
        )  # fmt: skip


@helper
def _values(codes, step, taken, kind, zero, table, out):
    """Decode the groups of one block: `codes` and `out` are `[groups, weights]`."""
    for group in range(out.shape[0]):
        unit, plus = step[group], taken[group]
        if kind == _UNSIGNED:
            for k in range(out.shape[1]):
                out[group, k] = unit * (np.float32(codes[group, k]) - zero) + plus
        elif kind == _SIGNED:
            for k in range(out.shape[1]):
                out[group, k] = unit * np.float32(np.int8(codes[group, k])) + plus
        else:
            for k in range(out.shape[1]):
                out[group, k] = unit * table[codes[group, k]] + plus


@kernel
def _blocks(
    ref, bits, raw, factors, stride, levels, symmetric, ascending, gaps, lowest, kind,
    per_group, count, d, d_table, q, q_table, sc, sc_table,
    offset, offset_table, minimum, minimum_table, m, m_table, out,
):  # fmt: skip
    rows, groups, _ = ref.shape
    inner = count // per_group
    blocks = groups // inner
    codes = np.empty((inner, per_group), np.uint8)
    scales = np.empty(inner, np.uint8)
    mins = np.empty(inner, np.uint8)
    values = np.empty((groups, per_group), np.float32)
    steps, starts = np.zeros(groups, np.float32), np.zeros(groups, np.float32)
    taken = np.zeros(groups, np.float32)
    room = _room(groups, per_group)
    flat = codes.reshape(count)
    for row in range(rows):
        for block in range(blocks):
            at = (row * blocks + block) * stride
            scale = scale_at(raw, at, d, d_table) if d[1] else np.float32(1)
            added = scale_at(raw, at, offset, offset_table)
            dmin = scale_at(raw, at, minimum, minimum_table)
            unpack(raw, at, q, flat)
            if sc_table.size:
                unpack(raw, at, sc, scales)
            if m_table.size:
                unpack(raw, at, m, mins)
            first = block * inner
            for group in range(inner):
                step = scale
                if sc_table.size:
                    step = scale * sc_table[scales[group]]
                step = step * factors[row]
                plus = added
                if m_table.size:
                    plus = -(dmin * m_table[mins[group]])
                steps[first + group] = step
                taken[first + group] = plus
                starts[first + group] = step * lowest + plus
            last = first + inner
            _values(
                codes, steps[first:last], taken[first:last], kind, -lowest, q_table,
                values[first:last],
            )  # fmt: skip
        _row(
            ref[row], bits[row], values, steps, starts, symmetric, levels, ascending, gaps, room,
            out[row],
        )  # fmt: skip


def measure_rows(ref: Floats, new: Floats, grid: Grid) -> Doubles:
    """Return what `cost.measure_rows` does, to a few parts in a million; only with a grid."""
    lengths = np.diff(grid.bounds)
    if (lengths != lengths[0]).any():  # an act-order that leaves a part of a group
        return reference(ref, new, grid)
    out = np.zeros((ref.shape[0], WIDTH))
    gaps = gaps_of(grid.table) if grid.table.size else np.zeros(0)
    shape = (ref.shape[0], lengths.size, int(lengths[0]))
    source = np.ascontiguousarray(ref).reshape(shape)
    arguments: list[Any] = [
        source, source.view(np.int32), np.ascontiguousarray(new).reshape(shape),
        np.ascontiguousarray(grid.steps), np.ascontiguousarray(grid.starts), grid.levels,
        np.ascontiguousarray(grid.symmetric), grid.table, gaps, out,
    ]  # fmt: skip
    _rows(*arguments)
    return out


@per_encoding
def _table_of(encoding: type[BlockEncoding]) -> tuple[Floats, Doubles, int, bool, int]:
    """Return ascending table and gaps (empty where codes are uniform), levels, symmetry, kind."""
    bits = encoding.code_bits()
    values = encoding.codes.values(bits)
    offset = encoding.scale_of(Role.OFFSET) or encoding.scale_of(Role.MIN_SCALE)
    if encoding.codes.lookup is None:
        kind = _SIGNED if bits.signed else _UNSIGNED
        return np.zeros(0, np.float32), np.zeros(0), 1 << bits.width, offset is None, kind
    table = np.unique(values[np.isfinite(values)]).astype(np.float32)
    return table, gaps_of(table), table.size, False, _TABLE


def measure_blocks(
    ref: Floats, raw: Bytes, encoding: type[BlockEncoding], factors: Floats
) -> Doubles:
    """Return the same for rows of ggml blocks, decoded on the way.

    Args:
        ref: The source, float32 `[n, K]`.
        raw: The rows, uint8 `[n * K / block * block_bytes]`.
        encoding: Theirs.
        factors: What each row is multiplied by besides, float32 `[n]`.
    """
    rows, columns = ref.shape
    out = np.zeros((rows, WIDTH))
    table, gaps, levels, symmetric, kind = _table_of(encoding)
    lowest = np.float32(encoding.codes.values(encoding.code_bits())[0])
    groups = columns // encoding.group
    source = np.ascontiguousarray(ref).reshape(rows, groups, encoding.group)
    arguments: list[Any] = [
        source, source.view(np.int32), raw, factors,
        encoding.block_bytes, levels, np.full(groups, symmetric, np.uint8), table, gaps, lowest,
        kind, *arguments_of(encoding), out,
    ]  # fmt: skip
    _blocks(*arguments)
    return out
