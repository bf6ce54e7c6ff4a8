"""The fast decoder: one Numba function that decodes every block encoding from its declaration.

    value = (d * sc) * table[q]  [+ m  |  - dmin * m]     d is 1 where sub-scales stand alone

Each product is exact in float32 (an f16 significand of 11 bits, at most 7 + 8 bits of integers),
so the only rounding is that of the sum, and any order of the factors gives the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Codes, Floats, per_encoding
from qassay.encodings.fields import Role, ScaleField
from qassay.kernels.fast_codes import Strips, strips_of, unpack
from qassay.kernels.jit import helper, kernel
from qassay.kernels.loads import load_u16


@helper
def scale_at(raw, at, place, table):
    """Return the scale of the block at byte `at`: `place` is its offset and width in bytes."""
    if place[1] == 2:
        return table[load_u16(raw, at + place[0])]
    if place[1] == 1:
        return table[raw[at + place[0]]]
    return np.float32(0)


@kernel
def _decode(
    raw, n, stride, per_group, count, d, d_table, q, q_table, sc, sc_table,
    offset, offset_table, minimum, minimum_table, m, m_table, out,
):  # fmt: skip
    groups = count // per_group
    codes = np.empty(count, np.uint8)
    scales = np.empty(groups, np.uint8)
    mins = np.empty(groups, np.uint8)
    for block in range(n):
        at = block * stride
        scale = scale_at(raw, at, d, d_table) if d[1] else np.float32(1)
        added = scale_at(raw, at, offset, offset_table)
        dmin = scale_at(raw, at, minimum, minimum_table)
        unpack(raw, at, q, codes)
        if sc_table.size:
            unpack(raw, at, sc, scales)
        if m_table.size:
            unpack(raw, at, m, mins)
        for group in range(groups):
            step = scale
            if sc_table.size:
                step = scale * sc_table[scales[group]]
            first = group * per_group
            values = out[block * count + first : block * count + first + per_group]
            for element in range(per_group):
                values[element] = step * q_table[codes[first + element]]
            if offset[1]:
                for element in range(per_group):
                    values[element] = values[element] + added
            if m_table.size:
                taken = dmin * m_table[mins[group]]
                for element in range(per_group):
                    values[element] = values[element] - taken


_NO_STRIPS: Strips = np.zeros((0, 6), np.int64)
_NO_TABLE = np.zeros(0, np.float32)


def _field(field: ScaleField | None) -> tuple[npt.NDArray[np.int64], Floats]:
    if field is None:
        return np.zeros(2, np.int64), _NO_TABLE
    return np.array([field.offset, field.nbytes], np.int64), np.ascontiguousarray(field.values)


def _integers(part: Codes | None, encoding: type[BlockEncoding]) -> tuple[Strips, Floats]:
    """Return strips, and a table indexed by the stored bits taken as unsigned."""
    if part is None:
        return _NO_STRIPS, _NO_TABLE
    bits = part.bits(encoding.runs)
    values = part.values(bits)
    if bits.signed:  # stored bits 0..127, 128..255 stand for 0..127, -128..-1
        values = np.roll(values, values.size // 2)
    return strips_of(bits), np.ascontiguousarray(values, np.float32)


def _sub_scales(encoding: type[BlockEncoding]) -> tuple[Strips, Floats]:
    """Return strips and table of the sub-scales, be they integers or fields of a byte each."""
    fields = encoding.sub_fields
    if not fields:
        return _integers(encoding.sub_scales, encoding)
    rows = [[field.offset, 0, 0xFF, 0, index, 1] for index, field in enumerate(fields)]
    return np.array(rows, np.int64), np.ascontiguousarray(fields[0].values)


@per_encoding
def arguments_of(encoding: type[BlockEncoding]) -> tuple[Any, ...]:
    """Return what the compiled decoders have to know of an encoding."""
    return (
        encoding.group,
        encoding.block,
        *_field(encoding.scale_of(Role.SCALE)),
        *_integers(encoding.codes, encoding),
        *_sub_scales(encoding),
        *_field(encoding.scale_of(Role.OFFSET)),
        *_field(encoding.scale_of(Role.MIN_SCALE)),
        *_integers(encoding.sub_mins, encoding),
    )


def dequantize(raw: Bytes, encoding: type[BlockEncoding]) -> Floats:
    """Decode stored blocks `[n * block_bytes]` to float32 `[n * block]`, as the reference does."""
    n = raw.size // encoding.block_bytes
    out = np.empty(n * encoding.block, np.float32)
    arguments: list[Any] = [raw, n, encoding.block_bytes, *arguments_of(encoding), out]
    _decode(*arguments)
    return out
