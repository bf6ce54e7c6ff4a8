"""The fast decoder: one Numba function that decodes every block encoding from its declaration.

    value = (d * sc) * table[q]  [+ m  |  - dmin * m]

Each product is exact in float32 (an f16 significand of 11 bits, at most 7 + 8 bits of integers),
so the only rounding is that of the sum, and any order of the factors gives the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Codes, Floats
from qassay.encodings.fields import Role, ScaleField
from qassay.kernels.fast_blocks import _code_at, plane_arrays
from qassay.kernels.jit import kernel
from qassay.kernels.loads import load_u16


@kernel
def _scale(raw, at, width, table):  # type: ignore[no-untyped-def]
    if width == 2:
        return table[load_u16(raw, at)]
    if width == 1:
        return table[raw[at]]
    return np.float32(0)


@kernel
def _decode(raw, n, stride, per_group, d, d_table, low, q, q_table, sc, sc_table,
            offset, offset_table, minimum, minimum_table, m, out):  # type: ignore[no-untyped-def]  # fmt: skip
    count = q[0].shape[1]
    for block in range(n):
        at = block * stride
        scale = _scale(raw, at + d[0], d[1], d_table)
        added = _scale(raw, at + offset[0], offset[1], offset_table)
        dmin = _scale(raw, at + minimum[0], minimum[1], minimum_table)
        for group in range(count // per_group):
            step = scale
            if sc_table.size:
                code = _code_at(raw, at, sc[0], sc[1], sc[2], sc[3], group)
                step = scale * sc_table[code]
            taken = np.float32(0)
            if minimum[1]:
                code = _code_at(raw, at, m[0], m[1], m[2], m[3], group)
                taken = dmin * np.float32(code)
            for element in range(group * per_group, (group + 1) * per_group):
                code = _code_at(raw, at, q[0], q[1], q[2], q[3], element)
                value = step * q_table[code]
                if offset[1]:
                    value = value + added
                if minimum[1]:
                    value = value - taken
                out[block * count + element] = value


@dataclass(frozen=True, slots=True, eq=False)
class _Tables:
    arguments: tuple[Any, ...]


_NO_PLANES = tuple(np.zeros((1, 1), np.int64) for _ in range(4))
_NO_TABLE = np.zeros(0, np.float32)


def _field(field: ScaleField | None) -> tuple[npt.NDArray[np.int64], Floats]:
    if field is None:
        return np.zeros(2, np.int64), _NO_TABLE
    return np.array([field.offset, field.nbytes], np.int64), np.ascontiguousarray(field.values)


def _integers(
    part: Codes | None, encoding: type[BlockEncoding]
) -> tuple[tuple[npt.NDArray[np.int64], ...], Floats]:
    """Return planes and a table indexed by the unsigned stored bits."""
    if part is None:
        return _NO_PLANES, _NO_TABLE
    bits = part.bits(encoding.runs)
    values = part.values(bits)
    if bits.signed:  # stored bits 0..127, 128..255 stand for 0..127, -128..-1
        values = np.roll(values, values.size // 2)
    return plane_arrays(bits), np.ascontiguousarray(values, np.float32)


@cache
def _tables(encoding: type[BlockEncoding]) -> _Tables:
    d, d_table = _field(encoding.scale_of(Role.SCALE))
    offset, offset_table = _field(encoding.scale_of(Role.OFFSET))
    minimum, minimum_table = _field(encoding.scale_of(Role.MIN_SCALE))
    q, q_table = _integers(encoding.codes, encoding)
    sc, sc_table = _integers(encoding.sub_scales, encoding)
    m, _ = _integers(encoding.sub_mins, encoding)
    return _Tables(
        (encoding.group, d, d_table, 0, q, q_table, sc, sc_table,
         offset, offset_table, minimum, minimum_table, m)
    )  # fmt: skip


def dequantize(raw: Bytes, encoding: type[BlockEncoding]) -> Floats:
    """Decode stored blocks `[n * block_bytes]` to float32 `[n * block]`, as the reference does."""
    n = raw.size // encoding.block_bytes
    out = np.empty(n * encoding.block, np.float32)
    _decode(raw, n, encoding.block_bytes, *_tables(encoding).arguments, out)
    return out
