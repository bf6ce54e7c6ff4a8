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
def _sums(ref, new):
    """Return the float32 sums of a group."""
    zero, one = np.float32(0), np.float32(1)
    err2 = ref2 = cross = err = total = below = above = negative = positive = zero
    for k in range(ref.size):
        w = ref[k]
        e = new[k] - w
        err2 += e * e
        ref2 += w * w
        cross += w * e
        err += e
        total += w
        below += e if w < zero else zero
        above += e if w > zero else zero
        negative += one if w < zero else zero
        positive += one if w > zero else zero
    return err2, ref2, cross, err, total, below, above, negative, positive


def _unordered(function: Any) -> Any:
    return numba.njit(
        nogil=True,
        error_model="numpy",
        fastmath={"nnan", "nsz", "reassoc"},
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )(function)


@_unordered
def _ends(ref, new):
    """Return the largest |e|, and the smallest and largest weight; only for finite numbers."""
    largest = low = high = np.float32(0)
    for k in range(ref.size):
        w = ref[k]
        size = abs(new[k] - w)
        largest = size if size > largest else largest
        low = w if w < low else low
        high = w if w > high else high
    return largest, low, high


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
def _par(ref, new, low, high, levels, symmetric, table):
    amax = max(-low, high)
    floor = amax * FLOOR
    par = ref.size * floor * floor
    if table.size:
        if amax > 0:
            most = max(abs(np.float64(table[0])), abs(np.float64(table[-1])))
            unit = amax / most
            last = unit * (np.float64(table[-1]) - np.float64(table[-2]))
            par += last * last / 12
            for k in range(ref.size):
                w = np.float64(ref[k])
                if np.isfinite(w) and np.isfinite(new[k]):
                    away = np.float64(table[_lower(table, w / unit)]) * unit - w
                    par += away * away
        return par
    wide = amax / max(1, levels // 2 - 1) if symmetric else (high - low) / (levels - 1)
    return par + ref.size * wide * wide / 12


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
def _group(ref, new, at, step, start, levels, symmetric, table, gaps, out):
    """Add one group to its row; return its squared error and what it should cost."""
    if table.size == 0 and step != 0 and np.isfinite(step) and np.isfinite(start):
        err2, ref2, cross, err, total, below, above, negative, positive = _sums(ref, new)
        if ref2 < _HUGE and err2 < _HUGE:
            largest, low, high = _ends(ref, new)
            size = abs(step)
            if largest <= size * np.float32(0.5) and (err2 > _TINY or largest == 0):
                out[_COMPARED] += ref.size
                out[_REF2] += ref2
                out[_CROSS] += cross
                out[_ERR] += err
                out[_REF] += total
                out[_BEST2] += err2
                out[_NEG] += negative
                out[_NEG + 1] += np.float64(below) / size
                out[_POS] += positive
                out[_POS + 1] += np.float64(above) / size
                if largest > out[_LARGEST]:
                    out[_LARGEST] = largest
                    out[_LARGEST + 1] = at + _place(ref, new, largest)
                if np.float64(largest) / size > out[_STEPS]:
                    out[_STEPS] = np.float64(largest) / size
                    out[_STEPS + 1] = at + _place(ref, new, largest)
                return np.float64(err2), _par(ref, new, np.float64(low), np.float64(high), levels,
                                              symmetric, table)  # fmt: skip
    cost, least, most = _long(ref, new, at, step, start, levels, table, gaps, out)
    return cost, _par(ref, new, least, most, levels, symmetric, table)


@helper
def _finish(costs, pars, lengths, starts, out):
    """Put the sums of all groups into their row, and find the worst group."""
    cost = par = 0.0
    columns = 0
    for group in range(costs.size):
        cost += costs[group]
        par += pars[group]
        columns += lengths[group]
    out[_ERR2] = cost
    out[_PAR2] = par
    usual = par / columns
    for group in range(costs.size):
        if costs[group] > 0:
            ratio = costs[group] / lengths[group] / max(pars[group] / lengths[group], usual)
            if ratio > out[_GROUP]:
                out[_GROUP] = ratio
                out[_GROUP + 1] = starts[group]


@kernel
def _rows(ref, new, steps, starts, bounds, levels, symmetric, table, gaps, out):
    groups = bounds.size - 1
    costs, pars = np.zeros(groups), np.zeros(groups)
    lengths = bounds[1:] - bounds[:-1]
    for row in range(ref.shape[0]):
        for group in range(groups):
            a, b = bounds[group], bounds[group + 1]
            costs[group], pars[group] = _group(
                ref[row, a:b], new[row, a:b], a, steps[row, group], starts[row, group],
                levels, symmetric[row, group] != 0, table, gaps, out[row],
            )  # fmt: skip
        _finish(costs, pars, lengths, bounds, out[row])


@kernel
def _blocks(
    ref, raw, factors, stride, levels, symmetric, ascending, gaps, lowest,
    per_group, count, d, d_table, q, q_table, sc, sc_table,
    offset, offset_table, minimum, minimum_table, m, m_table, out,
):  # fmt: skip
    rows, columns = ref.shape
    blocks = columns // count
    inner = count // per_group
    groups = blocks * inner
    codes = np.empty(count, np.uint8)
    scales = np.empty(inner, np.uint8)
    mins = np.empty(inner, np.uint8)
    values = np.empty(per_group, np.float32)
    costs, pars = np.zeros(groups), np.zeros(groups)
    lengths = np.full(groups, per_group)
    firsts = np.arange(groups) * per_group
    for row in range(rows):
        for block in range(blocks):
            at = (row * blocks + block) * stride
            scale = scale_at(raw, at, d, d_table) if d[1] else np.float32(1)
            added = scale_at(raw, at, offset, offset_table)
            dmin = scale_at(raw, at, minimum, minimum_table)
            unpack(raw, at, q, codes)
            if sc_table.size:
                unpack(raw, at, sc, scales)
            if m_table.size:
                unpack(raw, at, m, mins)
            for group in range(inner):
                step = scale
                if sc_table.size:
                    step = scale * sc_table[scales[group]]
                step = step * factors[row]
                taken = added
                if m_table.size:
                    taken = -(dmin * m_table[mins[group]])
                first = group * per_group
                for element in range(per_group):
                    values[element] = step * q_table[codes[first + element]] + taken
                place = block * inner + group
                column = firsts[place]
                costs[place], pars[place] = _group(
                    ref[row, column : column + per_group], values, column, step,
                    step * lowest + taken, levels, symmetric, ascending, gaps, out[row],
                )  # fmt: skip
        _finish(costs, pars, lengths, firsts, out[row])


def measure_rows(ref: Floats, new: Floats, grid: Grid) -> Doubles:
    """Return what `cost.measure_rows` does, to a few parts in a million; only with a grid."""
    out = np.zeros((ref.shape[0], WIDTH))
    gaps = gaps_of(grid.table) if grid.table.size else np.zeros(0)
    arguments: list[Any] = [
        np.ascontiguousarray(ref), np.ascontiguousarray(new), np.ascontiguousarray(grid.steps),
        np.ascontiguousarray(grid.starts), grid.bounds, grid.levels,
        np.ascontiguousarray(grid.symmetric), grid.table, gaps, out,
    ]  # fmt: skip
    _rows(*arguments)
    return out


@per_encoding
def _table_of(encoding: type[BlockEncoding]) -> tuple[Floats, Doubles, int, bool]:
    """Return ascending table and gaps (empty where codes are uniform), levels, symmetry."""
    bits = encoding.code_bits()
    values = encoding.codes.values(bits)
    offset = encoding.scale_of(Role.OFFSET) or encoding.scale_of(Role.MIN_SCALE)
    if encoding.codes.lookup is None:
        return np.zeros(0, np.float32), np.zeros(0), 1 << bits.width, offset is None
    table = np.unique(values[np.isfinite(values)]).astype(np.float32)
    return table, gaps_of(table), table.size, False


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
    out = np.zeros((ref.shape[0], WIDTH))
    table, gaps, levels, symmetric = _table_of(encoding)
    lowest = np.float32(encoding.codes.values(encoding.code_bits())[0])
    arguments: list[Any] = [
        np.ascontiguousarray(ref), raw, factors, encoding.block_bytes, levels, symmetric,
        table, gaps, lowest, *arguments_of(encoding), out,
    ]  # fmt: skip
    _blocks(*arguments)
    return out
