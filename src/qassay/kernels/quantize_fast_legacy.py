"""ggml's 32-weight blocks in Numba, without importance: a block is two vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.encodings.tables import table
from qassay.kernels import quantize_reference_legacy as reference
from qassay.kernels.jit import kernel
from qassay.kernels.quantize_fast_lanes import (
    ONE,
    ZERO,
    bits_float,
    bits_of,
    float_bits,
    greatest,
    load,
    magnitude,
    number,
    packed,
    select,
    signed_byte,
    splat,
    store_bytes_at,
    truncated,
    whole,
)
from qassay.kernels.quantize_fast_parts import in_threads
from qassay.kernels.quantize_fast_vectors import LANES, inner
from qassay.kernels.quantize_reference_legacy import LOG2_LEAST
from qassay.kernels.quantize_reference_parts import LARGEST

_BLOCK = 2 * LANES
_HALF = np.float32(0.5)
_MINUS_HALF = np.float32(-0.5)
_127 = np.float32(127)
_INFINITE = 0x7F800000
_STEP = 1024


@inner
def _write_half(out, at, value):
    """Write the f16 of a float32: nearest even; any NaN becomes the quiet one of its sign."""
    bits = np.int64(float_bits(value))
    size = bits & 0x7FFFFFFF
    if size > _INFINITE:
        found = 0x7E00
    elif size < 0x38800000:
        # Adding 0.5 leaves just the bits that a subnormal half keeps.
        found = np.int64(float_bits(bits_float(size) + _HALF)) - 0x3F000000
    else:
        found = min((size + ((size >> 13) & 1) - 0x38000000 + 0xFFF) >> 13, 0x7C00)
    found |= (bits >> 16) & 0x8000
    out[at] = found & 0xFF
    out[at + 1] = found >> 8


@inner
def _inverse(scale):
    return ONE / scale if scale != ZERO else ZERO


@inner
def _sizes(low, high):
    """Return the magnitudes' bits of a block's halves, and the greatest."""
    size = bits_of(magnitude(low))
    size_up = bits_of(magnitude(high))
    return size, size_up, greatest(select(size > size_up, size, size_up))


@inner
def _largest(x, at, low, high):
    """Return the first element of the largest magnitude; NaN never counts."""
    size, size_up, most = _sizes(low, high)
    if most > _INFINITE:
        found = ZERO
        for i in range(at, at + _BLOCK):
            if abs(x[i]) > abs(found):
                found = x[i]
        return found
    equal = np.uint64(packed(size == whole(most)))
    equal |= np.uint64(packed(size_up == whole(most))) << np.uint64(LANES)
    negative = np.uint64(packed(bits_of(low) < whole(0)))
    negative |= np.uint64(packed(bits_of(high) < whole(0))) << np.uint64(LANES)
    first = equal & (~equal + np.uint64(1))
    value = bits_float(most)
    # Zeros never count as larger than the zero that C starts from.
    return -value if most > 0 and negative & first else value


@inner
def _nibbles(out, at, low, high):
    store_bytes_at(out, at, (low & whole(255)) | (high << whole(4)))


@inner
def _five_bits(out, at, low, high):
    fifth = np.uint64(packed((low & whole(16)) != whole(0)))
    fifth |= np.uint64(packed((high & whole(16)) != whole(0))) << np.uint64(LANES)
    for byte in range(4):
        out[at + byte] = (fifth >> np.uint64(8 * byte)) & np.uint64(255)
    store_bytes_at(out, at + 4, (low & whole(15)) | ((high & whole(15)) << whole(4)))


@inner
def _centred(value, inverse, centre, top):
    code = signed_byte(truncated(value * splat(inverse) + splat(centre)))
    return select(code < whole(top), code, whole(top))


@kernel
def _q4_0(x, first, last, out):
    for block in range(first, last):
        at = block * _BLOCK
        low, high = load(x, 2 * block), load(x, 2 * block + 1)
        scale = _largest(x, at, low, high) / np.float32(-8)
        inverse = _inverse(scale)
        _write_half(out, block * 18, scale)
        low = _centred(low, inverse, np.float32(8.5), 15)
        _nibbles(out, block * 18 + 2, low, _centred(high, inverse, np.float32(8.5), 15))


@kernel
def _q5_0(x, first, last, out):
    for block in range(first, last):
        at = block * _BLOCK
        low, high = load(x, 2 * block), load(x, 2 * block + 1)
        scale = _largest(x, at, low, high) / np.float32(-16)
        inverse = _inverse(scale)
        _write_half(out, block * 22, scale)
        low = _centred(low, inverse, np.float32(16.5), 31)
        _five_bits(out, block * 22 + 2, low, _centred(high, inverse, np.float32(16.5), 31))


@inner
def _extent(x, at):
    low, high = LARGEST, -LARGEST
    for i in range(at, at + _BLOCK):
        low = x[i] if x[i] < low else low
        high = x[i] if x[i] > high else high
    return low, high


@inner
def _above(value, least, inverse):
    return truncated((value - splat(least)) * splat(inverse) + splat(_HALF))


@inner
def _below_16(code):
    narrow = signed_byte(code)
    return select(narrow < whole(15), narrow, whole(15))


@kernel
def _q4_1(x, first, last, out):
    for block in range(first, last):
        at = block * _BLOCK
        least, most = _extent(x, at)
        scale = (most - least) / np.float32(15)
        inverse = _inverse(scale)
        _write_half(out, block * 20, scale)
        _write_half(out, block * 20 + 2, least)
        low = _below_16(_above(load(x, 2 * block), least, inverse))
        high = _below_16(_above(load(x, 2 * block + 1), least, inverse))
        _nibbles(out, block * 20 + 4, low, high)


@kernel
def _q5_1(x, first, last, out):
    for block in range(first, last):
        at = block * _BLOCK
        least, most = _extent(x, at)
        scale = (most - least) / np.float32(31)
        inverse = _inverse(scale)
        _write_half(out, block * 24, scale)
        _write_half(out, block * 24 + 2, least)
        low = _above(load(x, 2 * block), least, inverse)
        _five_bits(out, block * 24 + 4, low, _above(load(x, 2 * block + 1), least, inverse))


@inner
def _rounded(value):
    """Round to nearest, ties away from zero, and convert."""
    code = truncated(value)
    rest = value - number(code)
    up = select(rest < splat(_HALF), whole(0), whole(1))
    down = select(rest > splat(_MINUS_HALF), whole(0), whole(1))
    # What has no int32 leaves no rest worth rounding; NaN compares false both times.
    return code + select(bits_of(magnitude(value)) < whole(0x4B000000), up - down, whole(0))


@kernel
def _q8_0(x, first, last, out):
    for block in range(first, last):
        at = block * _BLOCK
        low, high = load(x, 2 * block), load(x, 2 * block + 1)
        _, _, bits = _sizes(low, high)
        most = bits_float(bits)
        if bits > _INFINITE:
            most = ZERO
            for i in range(at, at + _BLOCK):
                # A NaN replaces the maximum and is replaced by whatever follows it.
                most = most if most > abs(x[i]) else abs(x[i])
        scale = most / _127
        inverse = splat(_inverse(scale))
        _write_half(out, block * 34, scale)
        store_bytes_at(out, block * 34 + 2, _rounded(low * inverse))
        store_bytes_at(out, block * 34 + 2 + LANES, _rounded(high * inverse))


@inner
def _best_index(value, products):
    best = magnitude(splat(products[0]) - value)
    found = whole(0)
    for index in range(1, 16):
        error = magnitude(splat(products[index]) - value)
        wins = error < best
        best = select(wins, error, best)
        found = select(wins, whole(index), found)
    return found


@inner
def _log2_floor(bits, steps):
    """Return `floorf(log2f(x))` from the bits of a finite positive x."""
    lowest = 0
    if bits < 0x00800000:
        bits = float_bits(np.float32(bits))
        lowest = LOG2_LEAST
    exponent = np.int64(bits >> 23) - 127 - lowest
    above = 1 if np.int64(bits & 0x7FFFFF) >= np.int64(steps[exponent + LOG2_LEAST]) else 0
    return exponent + above


@kernel
def _mxfp4(x, first, last, out, values, steps, products):
    for block in range(first, last):
        low, high = load(x, 2 * block), load(x, 2 * block + 1)
        size, size_up = bits_of(magnitude(low)), bits_of(magnitude(high))
        size = select(size > whole(_INFINITE), whole(0), size)
        size_up = select(size_up > whole(_INFINITE), whole(0), size_up)
        most = greatest(select(size > size_up, size, size_up))
        exponent = 0
        if most > 0 and most < _INFINITE:
            exponent = (_log2_floor(most, steps) + 125) & 255
        bits = 0x00200000 << exponent if exponent < 2 else (exponent - 1) << 23
        for index in range(16):
            products[index] = values[index] * bits_float(bits)
        out[block * 17] = exponent
        low, high = _best_index(low, products), _best_index(high, products)
        _nibbles(out, block * 17 + 1, low, high)


def _blocks(
    work: Callable[..., Any], rows: Floats, block_bytes: int, jobs: int | None, *tables: Any
) -> Bytes:
    flat = rows.reshape(-1)
    blocks = flat.size // _BLOCK
    out = np.empty(blocks * block_bytes, np.uint8)

    def run(first: int, last: int) -> None:
        own = [given() if callable(given) else given for given in tables]
        work(flat, first, last, out, *own)

    in_threads(run, blocks, flat.size, _STEP, jobs)
    return out.reshape(rows.shape[0], rows.shape[1] // _BLOCK * block_bytes)


def q4_0(rows: Floats, jobs: int | None = None) -> Bytes:
    """Write Q4_0 without importance; the same bytes as the reference."""
    return _blocks(_q4_0, rows, 18, jobs)


def q4_1(rows: Floats, jobs: int | None = None) -> Bytes:
    """Write Q4_1 without importance; the same bytes as the reference."""
    return _blocks(_q4_1, rows, 20, jobs)


def q5_0(rows: Floats, jobs: int | None = None) -> Bytes:
    """Write Q5_0 without importance; the same bytes as the reference."""
    return _blocks(_q5_0, rows, 22, jobs)


def q5_1(rows: Floats, jobs: int | None = None) -> Bytes:
    """Write Q5_1 without importance; the same bytes as the reference."""
    return _blocks(_q5_1, rows, 24, jobs)


def q8_0(rows: Floats, _importance: Floats | None = None, jobs: int | None = None) -> Bytes:
    """Write Q8_0; the same bytes as the reference."""
    return _blocks(_q8_0, rows, 34, jobs)


def mxfp4(rows: Floats, _importance: Floats | None = None, jobs: int | None = None) -> Bytes:
    """Write MXFP4; the same bytes as the reference."""
    tables = (table("e2m1_doubled"), reference.log2_steps(), lambda: np.empty(16, np.float32))
    return _blocks(_mxfp4, rows, 17, jobs, *tables)
