"""What quantizing cost, with Numba: `cost.measure_rows`, and the same straight from ggml blocks."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, per_encoding
from qassay.encodings.fields import Role
from qassay.kernels.cost import WIDTH, Doubles, Floats, Grid, gaps_of
from qassay.kernels.cost import measure_rows as reference
from qassay.kernels.cost_q4_k_rows import measure_row_q4_k
from qassay.kernels.cost_rows import measure_row, work_for
from qassay.kernels.fast_codes import unpack
from qassay.kernels.fast_decode import arguments_of, scale_at
from qassay.kernels.jit import helper, kernel, lean_kernel

Array = TypeVar("Array", bound=npt.NDArray[Any])

_UNSIGNED, _SIGNED, _TABLE = 0, 1, 2


@kernel
def _rows(ref, bits, new, steps, starts, levels, symmetric, table, gaps, out):
    rows, groups, length = ref.shape
    work = work_for(groups, length)
    for row in range(rows):
        measure_row(
            ref[row], bits[row], new[row], steps[row], starts[row], symmetric[row], levels, table,
            gaps, work, out[row],
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
    work = work_for(groups, per_group)
    flat = codes.reshape(count)
    for row in range(rows):
        for block in range(blocks):
            at = (row * blocks + block) * stride
            first = block * inner
            scale = scale_at(raw, at, d, d_table) if d[1] else np.float32(1)
            added = scale_at(raw, at, offset, offset_table)
            dmin = scale_at(raw, at, minimum, minimum_table)
            unpack(raw, at, q, flat)
            if sc_table.size:
                unpack(raw, at, sc, scales)
            if m_table.size:
                unpack(raw, at, m, mins)
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
        measure_row(
            ref[row], bits[row], values, steps, starts, symmetric, levels, ascending, gaps, work,
            out[row],
        )  # fmt: skip


@lean_kernel
def _q4_k(ref, raw, factors, grid, flags, table, gaps, now, marks, kept, room, out):
    # What it works in is made by the caller: code that makes arrays takes twice as long to load.
    work = (now, marks, kept, (room[0], room[1], room[2], room[3], room[4]))
    for row in range(ref.shape[0]):
        measure_row_q4_k(
            ref[row], raw, row * flags.size * 18, factors[row], grid[0], grid[1], flags, table,
            gaps, work, out[row],
        )  # fmt: skip


def _fixed(array: Array) -> Array:
    """Return an array that cannot be written to: kernels are compiled once, for arrays like it."""
    found = np.ascontiguousarray(array).view()
    found.flags.writeable = False
    return found


def measure_rows(ref: Floats, new: Floats, grid: Grid) -> Doubles:
    """Return what `cost.measure_rows` does, to a few parts in a million; only with a grid."""
    lengths = np.diff(grid.bounds)
    if (lengths != lengths[0]).any():  # an act-order that leaves a part of a group
        return reference(ref, new, grid)
    out = np.zeros((ref.shape[0], WIDTH))
    gaps = gaps_of(grid.table) if grid.table.size else np.zeros(0)
    shape = (ref.shape[0], lengths.size, int(lengths[0]))
    source = _fixed(ref).reshape(shape)
    arguments: list[Any] = [
        source, source.view(np.int32), _fixed(new).reshape(shape),
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
    arguments: list[Any]
    table, gaps, levels, symmetric, kind = _table_of(encoding)
    lowest = np.float32(encoding.codes.values(encoding.code_bits())[0])
    groups = columns // encoding.group
    flags = np.full(groups, symmetric, np.uint8)
    if encoding.id == "ggml.q4_k":  # code of its own: half of the time is to load it
        room = (np.zeros(256, np.float32), np.zeros(groups // 8, np.uint16), np.zeros(96),
                np.zeros((5, groups)))  # fmt: skip
        grid = np.zeros((2, groups), np.float32)
        _q4_k(_fixed(ref), _fixed(raw), factors, grid, flags, table, gaps, *room, out)
        return out
    source = _fixed(ref).reshape(rows, groups, encoding.group)
    arguments = [
        source, source.view(np.int32), _fixed(raw), factors,
        encoding.block_bytes, levels, flags, table, gaps, lowest,
        kind, *arguments_of(encoding), out,
    ]  # fmt: skip
    _blocks(*arguments)
    return out
