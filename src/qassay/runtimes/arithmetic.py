"""Float to integer, float to half, codes to bytes: the steps in which programs differ.

What a conversion does with NaN, infinity and values out of range is the processor's or the
language's choice, so each choice has a function of its own and an engine says which it makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.runtimes.base import Quantizer

Halves = npt.NDArray[np.uint16]
Ints = npt.NDArray[np.int32]
Doubles = npt.NDArray[np.float64]

INT32_MIN = -(1 << 31)
_CHUNK = 1 << 14  # blocks worked on at once: temporaries stay in the cache


@np.errstate(all="ignore")
def halves(values: npt.ArrayLike) -> Halves:
    """Return the f16 bit patterns nearest to float32 values, ties to even, overflow to infinity."""
    return np.asarray(values, np.float32).astype(np.float16).view(np.uint16)


def halves_truncated(values: npt.ArrayLike) -> Halves:
    """Return f16 bit patterns with the mantissa cut off and everything below 2^-14 made zero.

    Values from 65536 on become infinity; there is no rounding up to it.
    """
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    sign = bits >> 16 & 0x8000
    exponent = (bits >> 23 & 0xFF).astype(np.int32)
    mantissa = bits & 0x7FFFFF
    kept = (np.maximum(exponent - 112, 0).astype(np.uint32) << 10) | (mantissa >> 13)
    kept = np.where(exponent <= 112, 0, kept)
    kept = np.where(exponent >= 143, 0x7C00, kept)
    kept = np.where((exponent == 255) & (mantissa != 0), 0x7E00, kept)
    return (sign | kept).astype(np.uint16)


@np.errstate(all="ignore")
def of_halves(patterns: Halves) -> Floats:
    """Return what f16 bit patterns stand for, as float32."""
    return patterns.view(np.float16).astype(np.float32)


@np.errstate(all="ignore")
def round_away(values: Floats) -> Floats:
    """Round to the nearest integer, ties away from zero (C `roundf`, Rust `f32::round`)."""
    whole = np.trunc(values)
    up = np.abs(values - whole) >= np.float32(0.5)  # the difference is exact
    rounded: Floats = np.where(up, whole + np.copysign(np.float32(1), values), whole)
    return rounded


def saturated(values: Floats, low: int, high: int) -> Ints:
    """Cut off the fraction, clamp to `low..high`, NaN gives 0: Rust's `as`, aarch64's `fcvtzs`."""
    whole = np.where(np.isnan(values), np.float32(0), np.trunc(values))
    return np.clip(whole, low, high).astype(np.int32)


def indefinite(values: Floats) -> Ints:
    """Take whole floats as int32; NaN and what does not fit give -2^31: x86's `cvtps2dq`."""
    fits = np.abs(values) < np.float32(2**31)  # False for NaN
    whole = np.where(fits, values, np.float32(0)).astype(np.int32)
    return np.where(fits, whole, np.int32(INT32_MIN))


def signed_extreme(blocks: Floats) -> Floats:
    """Return each block's element of largest magnitude, sign kept, `[n, 1]`.

    The first of equals wins, NaN is passed over, and a block without anything above zero
    gives +0: a running maximum with a strict comparison.
    """
    size = np.where(np.isnan(blocks), np.float32(-1), np.abs(blocks))
    first = size.argmax(axis=-1, keepdims=True)
    found = np.take_along_axis(blocks, first, axis=-1)
    above = np.take_along_axis(size, first, axis=-1) > 0
    extreme: Floats = np.where(above, found, np.float32(0))
    return extreme


@np.errstate(all="ignore")
def reciprocal(scale: Floats) -> Floats:
    """Return 1 / scale in float32, 0 where the scale is 0."""
    inverse: Floats = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    return inverse


def legacy_block(numbers: Sequence[Halves], codes: npt.NDArray[Any], width: int) -> Bytes:
    """Return ggml's 32-weight blocks, uint8 `[n, bytes]`.

    Args:
        numbers: The f16 fields at the start of the block, `[n, 1]` each.
        codes: Stored integers `[n, 32]`; only their low `width` bits count.
        width: 4, 5 (fifth bits first, in one 32-bit word) or 8.
    """
    low = codes.astype(np.uint8)
    head = [np.ascontiguousarray(number, "<u2").view(np.uint8) for number in numbers]
    if width == 8:
        return np.concatenate([*head, low], axis=1)
    if width == 5:
        head.append(np.packbits(low >> 4 & 1, axis=1, bitorder="little"))
    return np.concatenate([*head, low[:, :16] & 15 | (low[:, 16:] & 15) << 4], axis=1)


def per_block(size: int) -> Callable[[Callable[[Floats], Bytes]], Quantizer]:
    """Make a quantizer of rows out of a function of blocks `[n, size]` that returns their bytes."""

    def decorate(function: Callable[[Floats], Bytes]) -> Quantizer:
        def quantize(rows: Floats, importance: Floats | None) -> Bytes:  # noqa: ARG001
            blocks = rows.reshape(-1, size)
            done = [
                function(blocks[start : start + _CHUNK])
                for start in range(0, max(1, blocks.shape[0]), _CHUNK)
            ]
            whole = done[0] if len(done) == 1 else np.concatenate(done)
            width = rows.shape[1] // size * whole.shape[1]
            return np.ascontiguousarray(whole).reshape(rows.shape[0], width)

        quantize.__doc__ = function.__doc__
        return quantize

    return decorate
