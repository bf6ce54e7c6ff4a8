"""What ggml's quantizers share, in NumPy: rounding, halves, weights, and work in pieces.

Everything is float32 and every sum is serial in C's order: a double anywhere, or a sum in another
order, changes bytes. Arrays are `[element, sub-block]`, so that a loop over the elements of a
sub-block runs in C's order for all sub-blocks at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import Floats

Ints = npt.NDArray[np.int32]
Halves = npt.NDArray[np.uint16]

TINY = np.float32(1e-15)
"""GROUP_MAX_EPS: below this a sub-block counts as all zero."""
LARGEST = np.finfo(np.float32).max
_MAGIC = np.float32(12582912.0)
_PIECE = 1 << 18


def nearest(values: Floats) -> Ints:
    """Round to nearest, ties to even, as `nearest_int` does: by the bits of `value + 1.5 * 2^23`.

    NaN, infinities and what exceeds 2^22 come out as those bits say, not as any number.
    """
    return ((values + _MAGIC).view(np.int32) & np.int32(0x7FFFFF)) - np.int32(1 << 22)


def floats(integers: npt.NDArray[Any]) -> Floats:
    """Convert integers to float32, as C does where an int meets a float."""
    return integers.astype(np.float32)


def _first_nan(left: Floats, right: Floats, result: Floats) -> Floats:
    """Put in what x86 leaves where an operand is NaN: the left one, made quiet, else the right.

    NumPy's own order of operands differs between the body and the tail of an array.
    """
    nan = np.isnan(result)
    if not nan.any():
        return result
    quiet = np.uint32(0x00400000)
    left, right = np.broadcast_arrays(left, right)
    kept = np.where(np.isnan(left), left, right)
    kept = (np.ascontiguousarray(kept).view(np.uint32) | quiet).view(np.float32)
    return np.where(np.isnan(left) | np.isnan(right), kept, result)


def plus(left: Floats, right: Floats) -> Floats:
    """Add; of two NaN the left one's payload and sign stay."""
    return _first_nan(left, right, left + right)


def minus(left: Floats, right: Floats) -> Floats:
    """Subtract; of two NaN the left one's payload and sign stay."""
    return _first_nan(left, right, left - right)


def times(left: Floats, right: Floats) -> Floats:
    """Multiply; of two NaN the left one's payload and sign stay."""
    return _first_nan(left, right, left * right)


def over(left: Floats, right: Floats) -> Floats:
    """Divide; of two NaN the left one's payload and sign stay."""
    return _first_nan(left, right, np.divide(left, right))


def truncated(values: Floats) -> Ints:
    """Convert to integers towards zero as x86 does: what has no int32 becomes -2^31.

    C leaves that conversion undefined; ggml relies on it for NaN, infinite and wrapped weights.
    """
    fits = np.abs(values) < np.float32(2.0**31)
    return np.where(
        fits, np.where(fits, values, np.float32(0)).astype(np.int32), np.int32(-(2**31))
    )


def half(values: Floats) -> Halves:
    """Convert to the bits of f16: nearest even; any NaN becomes the quiet one of its sign."""
    bits = values.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(values), bits & np.uint16(0x8000) | np.uint16(0x7E00), bits)


def unhalf(bits: Halves) -> Floats:
    """Return what f16 bits stand for."""
    return bits.view(np.float16).astype(np.float32)


def half_bytes(bits: Halves) -> Bytes:
    """Return f16 bits `[n]` as bytes `[n, 2]`."""
    return bits.astype("<u2").reshape(-1, 1).view(np.uint8)


def largest(x: Floats) -> tuple[Floats, Floats]:
    """Return the largest magnitude and the first element that has it; NaN never counts."""
    most = np.zeros(x.shape[1:], np.float32)
    signed = most.copy()
    for row in x:
        more = np.abs(row) > most
        most = np.where(more, np.abs(row), most)
        signed = np.where(more, row, signed)
    return most, signed


def serial_sum(terms: Floats) -> Floats:
    """Add float32 `[element, ...]` over elements one after the other, from zero on."""
    total = np.zeros(terms.shape[1:], np.float32)
    for term in terms:
        total = plus(total, term)
    return total


def spread_weights(x: Floats, importance: Floats, mean_square: Floats) -> Floats:
    """Return importance * sqrt(mean_square + x^2)."""
    return times(importance, np.sqrt(plus(mean_square, x * x)))


def sub_blocks(blocks: Floats, length: int) -> Floats:
    """Return blocks `[n, K]` as sub-blocks `[length, n * K / length]`."""
    return np.ascontiguousarray(blocks.reshape(-1, length).T)


def in_pieces(
    rows: Floats,
    importance: Floats | None,
    row_bytes: int,
    work: Callable[[Floats, Floats | None], Bytes],
) -> Bytes:
    """Quantize a limited number of rows at a time, floating-point warnings off."""
    out = np.empty((rows.shape[0], row_bytes), np.uint8)
    step = max(1, _PIECE // max(1, rows.shape[1]))
    with np.errstate(all="ignore"):
        for first in range(0, rows.shape[0] if out.size else 0, step):
            part = rows[first : first + step]
            out[first : first + step] = work(part, importance).reshape(-1, row_bytes)
    return out
