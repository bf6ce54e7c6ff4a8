"""ggml's quantizers for halves and 32-weight blocks, in NumPy."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.encodings.tables import table
from qassay.kernels.quantize_reference_parts import (
    LARGEST,
    Ints,
    half,
    half_bytes,
    in_pieces,
    largest,
    serial_sum,
    spread_weights,
    sub_blocks,
    truncated,
)
from qassay.kernels.quantize_reference_search import (
    Q4_WEIGHTED,
    Q5_WEIGHTED,
    Affine,
    affine,
    symmetric,
)

LOG2_LEAST = 149
"""Minus the exponent of the smallest subnormal."""
_BLOCK = 32
_ZERO = np.float32(0)


def f16(rows: Floats, importance: Floats | None) -> Bytes:  # noqa: ARG001
    """Write F16: `ggml_fp32_to_fp16_row`."""
    with np.errstate(over="ignore", invalid="ignore"):
        return half(rows).astype("<u2").view(np.uint8)


def bf16(rows: Floats, importance: Floats | None) -> Bytes:  # noqa: ARG001
    """Write BF16: nearest even; a NaN is made quiet and keeps the top of its payload."""
    bits = rows.view(np.uint32)
    high = bits >> np.uint32(16)
    rounded = (bits + (np.uint32(0x7FFF) + (high & np.uint32(1)))) >> np.uint32(16)
    stored = np.where(np.isnan(rows), high | np.uint32(64), rounded)
    return stored.astype("<u2").view(np.uint8)


def _inverse(scale: Floats) -> Floats:
    return np.where(scale != 0, np.float32(1) / scale, _ZERO)


def _nibbles(codes: npt.NDArray[np.integer]) -> Bytes:
    """Return codes `[32, n]` as bytes `[n, 16]`: element j low, element j + 16 high."""
    stored = codes.astype(np.uint8)
    return (stored[:16] | stored[16:] << np.uint8(4)).T


def _five_bits(codes: npt.NDArray[np.integer]) -> list[Bytes]:
    """Return codes `[32, n]` as their fifth bits `[n, 4]` and their low bits `[n, 16]`."""
    stored = codes.astype(np.uint8)
    fifth = np.packbits((stored >> np.uint8(4)) & np.uint8(1), axis=0, bitorder="little")
    return [fifth.T, _nibbles(stored & np.uint8(15))]


def _int8(values: Floats) -> npt.NDArray[np.int8]:
    return truncated(values).astype(np.int8)


def _joined(*parts: Bytes) -> Bytes:
    return np.concatenate(parts, axis=1)


def _centred(blocks: Floats, centre: int) -> tuple[Bytes, npt.NDArray[np.int8]]:
    x = sub_blocks(blocks, _BLOCK)
    scale = largest(x)[1] / np.float32(-centre)
    codes = _int8(x * _inverse(scale) + np.float32(centre + 0.5))
    return half_bytes(half(scale)), np.minimum(codes, np.int8(2 * centre - 1))


def _ranged(blocks: Floats, top: int) -> tuple[Bytes, Bytes, Ints]:
    x = sub_blocks(blocks, _BLOCK)
    low = np.full(x.shape[1:], LARGEST, np.float32)
    high = -low
    for row in x:
        low, high = np.where(row < low, row, low), np.where(row > high, row, high)
    scale = (high - low) / np.float32(top)
    codes = truncated((x - low) * _inverse(scale) + np.float32(0.5))
    return half_bytes(half(scale)), half_bytes(half(low)), codes


def _weighted(rows: Floats, importance: Floats) -> tuple[Floats, Floats]:
    """Return the sub-blocks and their weights; the mean square is that of the whole row."""
    square = serial_sum(np.ascontiguousarray((rows * rows).T)) / np.float32(rows.shape[1])
    weights = spread_weights(rows, importance, square[:, None])
    return sub_blocks(rows, _BLOCK), sub_blocks(weights, _BLOCK)


def _searched_centre(rows: Floats, importance: Floats, centre: int) -> tuple[Bytes, Ints]:
    scale, codes = symmetric(*_weighted(rows, importance), centre)
    return half_bytes(half(scale)), codes


def _searched_range(rows: Floats, importance: Floats, how: Affine) -> tuple[Bytes, Bytes, Bytes]:
    scale, low, codes = affine(*_weighted(rows, importance), how)
    return half_bytes(half(scale)), half_bytes(half(-low)), codes


def _q4_0(rows: Floats, importance: Floats | None) -> Bytes:
    if importance is None:
        scale, codes = _centred(rows, 8)
        return _joined(scale, _nibbles(codes))
    scale, searched = _searched_centre(rows, importance, 8)
    return _joined(scale, _nibbles(searched))


def _q5_0(rows: Floats, importance: Floats | None) -> Bytes:
    if importance is None:
        scale, codes = _centred(rows, 16)
        return _joined(scale, *_five_bits(codes))
    scale, searched = _searched_centre(rows, importance, 16)
    return _joined(scale, *_five_bits(searched))


def _q4_1(rows: Floats, importance: Floats | None) -> Bytes:
    if importance is None:
        scale, low, codes = _ranged(rows, 15)
        return _joined(scale, low, _nibbles(np.minimum(codes.astype(np.int8), np.int8(15))))
    scale, low, searched = _searched_range(rows, importance, Q4_WEIGHTED)
    return _joined(scale, low, _nibbles(searched))


def _q5_1(rows: Floats, importance: Floats | None) -> Bytes:
    if importance is None:
        scale, low, codes = _ranged(rows, 31)
        return _joined(scale, low, *_five_bits(codes))
    scale, low, searched = _searched_range(rows, importance, Q5_WEIGHTED)
    return _joined(scale, low, *_five_bits(searched))


def _q8_0(rows: Floats, _importance: Floats | None) -> Bytes:
    x = sub_blocks(rows, _BLOCK)
    most = np.zeros(x.shape[1:], np.float32)
    for row in np.abs(x):
        # A NaN replaces the maximum and is replaced by whatever follows it.
        most = np.where(most > row, most, row)
    scale = most / np.float32(127)
    codes = truncated(_rounded(x * _inverse(scale))).astype(np.uint8)
    return _joined(half_bytes(half(scale)), codes.T)


def _rounded(values: Floats) -> Floats:
    """Round to nearest, ties away from zero, as C's `roundf`."""
    whole = np.trunc(values)
    return np.where(np.abs(values - whole) >= np.float32(0.5), whole + np.sign(values), whole)


@cache
def log2_steps() -> npt.NDArray[np.uint32]:
    """Return the first mantissa of each binade whose `floorf(log2f(x))` is one too high.

    log2f rounds to float32, so just below a power of two it is that power's exponent; the
    further from 1, the wider that margin. Indexed by the exponent plus `LOG2_LEAST`; a mantissa
    is what follows the leading 1, subnormals shifted up to have one.
    """
    exponent = np.arange(-LOG2_LEAST, 128)
    low = np.zeros(exponent.shape, np.int64)
    high = np.full(exponent.shape, 1 << 23, np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        # log2 of a float32 in double, then rounded: what a good log2f returns.
        exact = exponent + np.log1p(middle / 2.0**23) / np.log(2.0)
        reaches = exact.astype(np.float32) >= (exponent + 1).astype(np.float32)
        searching = low < high
        high = np.where(searching & reaches, middle, high)
        low = np.where(searching & ~reaches, middle + 1, low)
    return low.astype(np.uint32)


def floor_log2(values: Floats) -> Ints:
    """Return `floorf(log2f(x))` of finite positive x."""
    mantissa, exponent = np.frexp(values)
    # frexp gives 0.5 <= mantissa < 1; subnormals come out as if they had all their bits.
    bits = mantissa.view(np.uint32) & np.uint32(0x7FFFFF)
    power = exponent.astype(np.int32) - np.int32(1)
    return power + (bits >= log2_steps()[power + LOG2_LEAST]).astype(np.int32)


def _mxfp4(rows: Floats, _importance: Floats | None) -> Bytes:
    x = sub_blocks(rows, _BLOCK)
    most = largest(x)[0]
    finite = np.isfinite(most) & (most > 0)
    power = floor_log2(np.where(finite, most, np.float32(1)))
    exponent = np.where(finite, power + np.int32(125), np.int32(0)).astype(np.uint8)
    wide = exponent.astype(np.uint32)
    bits = np.where(wide < 2, np.uint32(0x00200000) << (wide & np.uint32(1)), (wide - 1) << 23)
    scale = bits.astype(np.uint32).view(np.float32)
    values = table("e2m1_doubled")
    best = np.abs(values[0] * scale - x)
    codes = np.zeros(x.shape, np.uint8)
    for code, value in enumerate(values):
        error = np.abs(value * scale - x)
        wins = error < best
        best, codes = np.where(wins, error, best), np.where(wins, np.uint8(code), codes)
    return _joined(exponent.reshape(-1, 1), _nibbles(codes))


def q4_0(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q4_0: `quantize_q4_0`."""
    return in_pieces(rows, importance, rows.shape[1] // _BLOCK * 18, _q4_0)


def q4_1(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q4_1: `quantize_q4_1`."""
    return in_pieces(rows, importance, rows.shape[1] // _BLOCK * 20, _q4_1)


def q5_0(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q5_0: `quantize_q5_0`."""
    return in_pieces(rows, importance, rows.shape[1] // _BLOCK * 22, _q5_0)


def q5_1(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q5_1: `quantize_q5_1`."""
    return in_pieces(rows, importance, rows.shape[1] // _BLOCK * 24, _q5_1)


def q8_0(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q8_0: `quantize_row_q8_0_ref`."""
    return in_pieces(rows, importance, rows.shape[1] // _BLOCK * 34, _q8_0)


def mxfp4(rows: Floats, importance: Floats | None) -> Bytes:
    """Write MXFP4: `quantize_row_mxfp4_ref`."""
    return in_pieces(rows, importance, rows.shape[1] // _BLOCK * 17, _mxfp4)
