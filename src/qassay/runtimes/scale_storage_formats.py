"""Ways to store a block's scale, each as a function from exact scales to scales as read back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from qassay.core.errors import UsageError
from qassay.encodings.base import Floats
from qassay.encodings.registry import by_id
from qassay.runtimes.arithmetic import Doubles, halves, halves_truncated, of_halves, round_away

SUPER_BLOCK = 8
"""Blocks that share the f16 super-scale of 6-bit scales, as in Q4_K."""


@dataclass(frozen=True, slots=True)
class Storage:
    """One way to store scales.

    Attributes:
        name: As the command line spells it.
        title: What it is.
        bits: Bits a block; None where the number has no fixed width.
        store: Scales as read back, float32 `[rows, blocks]`, of exact ones (never negative).
            What cannot be stored becomes infinity or NaN.
    """

    name: str
    title: str
    bits: float | None
    store: Callable[[Floats], Floats]


def _f32(scales: Floats) -> Floats:
    return scales


def _f16(scales: Floats) -> Floats:
    return of_halves(halves(scales))


def _f16_truncated(scales: Floats) -> Floats:
    return of_halves(halves_truncated(scales))


def _bf16(scales: Floats) -> Floats:
    bits = np.ascontiguousarray(scales, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def _power_of_two(least_mantissa: float) -> Callable[[Floats], Floats]:
    """Return E8M0: 2^e below a scale, or 2^(e + 1) where its mantissa reaches a limit.

    The mantissa is `frexp`'s, 0.5 to 1. E8M0 has no zero: the smallest power stands for it.
    """

    @np.errstate(all="ignore")
    def store(scales: Floats) -> Floats:
        mantissa, exponent = np.frexp(scales)
        power = np.where(mantissa >= np.float32(least_mantissa), exponent, exponent - 1)
        power = np.where(scales == 0, -127, power)
        stored = np.ldexp(np.float32(1), np.clip(power, -127, 127).astype(np.int32))
        return np.where(np.isfinite(scales), stored, scales).astype(np.float32)

    return store


@cache
def _ladder(encoding: str) -> tuple[Doubles, Doubles]:
    """Return the finite values of an 8-bit float and, last, the first one too large; midpoints."""
    values = by_id(encoding).dequantize(np.arange(128, dtype=np.uint8)).astype(np.float64)
    ladder = values[np.isfinite(values)]
    ladder = np.append(ladder, 2 * ladder[-1] - ladder[-2])
    return ladder, (ladder[:-1] + ladder[1:]) / 2


def _float8(encoding: str) -> Callable[[Floats], Floats]:
    """Return an 8-bit float: nearest, ties to the even code, no saturation above the largest."""

    def store(scales: Floats) -> Floats:
        ladder, middles = _ladder(encoding)
        code = np.searchsorted(middles, scales)
        tie = (code < middles.size) & (middles[np.minimum(code, middles.size - 1)] == scales)
        code = np.where(tie & (code & 1 == 1), code + 1, code)
        stored = ladder[np.minimum(code, ladder.size - 1)]
        stored = np.where(code == ladder.size - 1, np.inf, stored)
        return np.where(np.isnan(scales), np.nan, stored).astype(np.float32)

    return store


def _decimal(places: int) -> Callable[[Floats], Floats]:
    """Return `places` decimals, nearest, halves up."""
    unit = 10.0**places

    @np.errstate(all="ignore")
    def store(scales: Floats) -> Floats:
        return (np.floor(scales.astype(np.float64) * unit + 0.5) / unit).astype(np.float32)

    return store


@np.errstate(all="ignore")
def _six_bits(scales: Floats) -> Floats:
    """Store 6-bit scales under one f16 super-scale for each `SUPER_BLOCK` blocks of a row."""
    rows, blocks = scales.shape
    padded = np.zeros((rows, -(-blocks // SUPER_BLOCK) * SUPER_BLOCK), np.float32)
    padded[:, :blocks] = scales
    grouped = padded.reshape(rows, -1, SUPER_BLOCK)
    largest = grouped.max(axis=2, keepdims=True)
    inverse = np.where(largest > 0, np.float32(63) / largest, np.float32(0))
    codes = np.minimum(round_away(grouped * inverse), np.float32(63))
    stored = of_halves(halves(largest / np.float32(63))) * codes
    return np.ascontiguousarray(stored.reshape(rows, -1)[:, :blocks], np.float32)


_FIXED = (
    Storage("f32", "IEEE single", 32, _f32),
    Storage("f16", "IEEE half, nearest even", 16, _f16),
    Storage("f16-truncated", "IEEE half, mantissa cut off, zero below 2^-14", 16, _f16_truncated),
    Storage("bf16", "bfloat16, nearest even", 16, _bf16),
    Storage("e8m0-floor", "power of two, the next below", 8, _power_of_two(1.0)),
    Storage("e8m0-nearest", "power of two, nearest in the logarithm", 8, _power_of_two(0.5**0.5)),
    Storage("e4m3", "8-bit float E4M3, nearest even, largest 448", 8, _float8("f8_e4m3")),
    Storage("e5m2", "8-bit float E5M2, nearest even, largest 57344", 8, _float8("f8_e5m2")),
    Storage(
        "6-bit",
        "6-bit integer under an f16 super-scale for 8 blocks",
        6 + 16 / SUPER_BLOCK,
        _six_bits,
    ),
)

DEFAULT = (*(storage.name for storage in _FIXED), "2-decimals", "integer")
"""The ways that are tried where none is named."""


def storage(name: str) -> Storage:
    """Return the way to store scales called `name`; `N-decimals` for any N, `integer` for none.

    Raises:
        UsageError: There is none.
    """
    for known in _FIXED:
        if known.name == name:
            return known
    if name == "integer":
        return Storage(name, "whole number, nearest", None, _decimal(0))
    decimals = re.fullmatch(r"(\d{1,2})-decimals?", name)
    if decimals:
        places = int(decimals[1])
        return Storage(name, f"{places} decimals, nearest", None, _decimal(places))
    raise UsageError(
        "no such way to store a scale",
        expected=", ".join((*(known.name for known in _FIXED), "N-decimals", "integer")),
        found=repr(name),
    )
