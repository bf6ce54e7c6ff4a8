"""ggml's searches for the scale of a sub-block, in NumPy; arrays are `[element, sub-block]`.

Candidates are tried in C's order and win only if strictly better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.kernels.quantize_reference_parts import (
    TINY,
    Ints,
    floats,
    largest,
    minus,
    nearest,
    over,
    serial_sum,
    times,
)

_TENTH = np.float32(0.1)
_SWEEPS = 5


@dataclass(frozen=True, slots=True)
class Affine:
    """The candidates of a search for scale and minimum.

    Attributes:
        top: The largest code.
        start: First offset from `top` that is tried.
        step: Distance of offsets.
        steps: Number of offsets after the first.
        absolute: Whether the error is |difference|, not its square.
    """

    top: int
    start: float
    step: float
    steps: int
    absolute: bool = False

    def numerators(self) -> Floats:
        """Return what the range of a sub-block divides, candidate by candidate."""
        steps = np.arange(self.steps + 1, dtype=np.float32)
        return np.float32(self.start) + np.float32(self.step) * steps + np.float32(self.top)


Q4_K = Affine(15, -1.0, 0.1, 20)
Q5_K = Affine(31, -0.5, 0.1, 15)
Q2_K = Affine(3, -0.5, 0.1, 15, absolute=True)
Q4_WEIGHTED = Affine(15, -0.9, 0.05, 36)
Q5_WEIGHTED = Affine(31, -0.9, 0.05, 36)
Q2_WEIGHTED = Affine(3, -0.9, 0.05, 36)


def symmetric_numerators(top: int) -> Floats:
    """Return the numerators that the symmetric search tries: -top, then the eighteen others."""
    others = [step for step in range(-9, 10) if step]
    tried = np.float32(top) + _TENTH * np.array([0, *others], np.float32)
    return -tried


def positive_numerators(top: int) -> Floats:
    """Return the numerators that the search over sub-scales tries: top, then eight others."""
    others = [step for step in range(-4, 5) if step]
    return _TENTH * np.array([0, *others], np.float32) + np.float32(top)


def _clamped(values: Floats, low: int, high: int) -> Floats:
    return floats(np.clip(nearest(values), low, high))


def _error(x: Floats, w: Floats, codes: Floats, scale: Floats, low: Floats, how: Affine) -> Floats:
    difference = scale * codes + low - x
    size = np.abs(difference) if how.absolute else difference * difference
    return serial_sum(w * size)


def _extent(x: Floats, w: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    low, high, sum_w = x[0], x[0], w[0]
    sum_x = sum_w * x[0]
    for row, weight in zip(x[1:], w[1:], strict=True):
        low = np.where(row < low, row, low)
        high = np.where(row > high, row, high)
        sum_w = sum_w + weight
        sum_x = sum_x + weight * row
    return np.where(low > 0, np.float32(0), low), high, sum_w, sum_x


def affine(x: Floats, w: Floats, how: Affine) -> tuple[Floats, Floats, Bytes]:
    """Search scale, minimum and codes (`make_qkx2_quants`, `make_qkx3_quants`).

    The minimum in force changes when a candidate wins, and the next candidates start from it.

    Returns:
        The scales `[sub-block]`, the minimums with their sign turned, the codes.
    """
    low, high, sum_w, sum_x = _extent(x, w)
    flat, lowest = high == low, low
    inverse = np.float32(how.top) / (high - low)
    scale: Floats = np.float32(1) / inverse
    codes = _clamped(times(minus(x, low), inverse), 0, how.top)
    best = _error(x, w, codes, scale, low, how)
    for numerator in how.numerators():
        tried = _clamped(times(minus(x, low), numerator / (high - low)), 0, how.top)
        wl = w * tried
        sum_l, sum_l2, sum_xl = serial_sum(wl), serial_sum(wl * tried), serial_sum(wl * x)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        this_scale = np.divide(sum_w * sum_xl - sum_x * sum_l, determinant)
        this_low = np.divide(sum_l2 * sum_x - sum_l * sum_xl, determinant)
        above = this_low > 0
        this_low = np.where(above, np.float32(0), this_low)
        this_scale = np.where(above, sum_xl / sum_l2, this_scale)
        error = _error(x, w, tried, this_scale, this_low, how)
        wins = (determinant > 0) & (error < best)
        codes = np.where(wins, tried, codes)
        best = np.where(wins, error, best)
        scale = np.where(wins, this_scale, scale)
        low = np.where(wins, this_low, low)
    nothing = np.float32(0)
    scale, low = np.where(flat, nothing, scale), np.where(flat, lowest, low)
    return scale, -low, np.where(flat, nothing, codes).astype(np.uint8)


def symmetric(x: Floats, w: Floats, top: int) -> tuple[Floats, Ints]:
    """Search a scale for codes -top..top-1 (`make_qx_quants` with rmse_type 1).

    Returns:
        The scales `[sub-block]` and the codes raised by `top`; an all-zero sub-block has codes 0.
    """
    most, signed = largest(x)
    wx = times(w, x)
    scale = best = np.zeros(x.shape[1:], np.float32)
    codes = np.zeros(x.shape, np.int32)
    for candidate, numerator in enumerate(symmetric_numerators(top)):
        tried = np.clip(nearest(numerator / signed * x), -top, top - 1)
        numbers = floats(tried)
        sum_lx, sum_l2 = serial_sum(wx * numbers), serial_sum(w * numbers * numbers)
        if candidate == 0:
            wins = np.ones(scale.shape, bool)
            this = np.where(sum_l2 != 0, over(sum_lx, sum_l2), np.float32(0))
        else:
            wins = (sum_l2 > 0) & (sum_lx * sum_lx > best * sum_l2)
            this = over(sum_lx, sum_l2)
        codes = np.where(wins, tried + np.int32(top), codes)
        scale = np.where(wins, this, scale)
        best = np.where(wins, this * sum_lx, best)
    zero = most < TINY
    return np.where(zero, np.float32(0), scale), np.where(zero, np.int32(0), codes)


def positive(x: Floats, w: Floats, top: int) -> tuple[Floats, Bytes]:
    """Search a scale for sub-scales `x` (`make_qp_quants`); codes are uint8 without lower clamp."""
    most = np.zeros(x.shape[1:], np.float32)
    for row in x:
        most = np.where(most > row, most, row)
    numerators = positive_numerators(top)
    inverse = numerators[0] / most
    codes = floats(nearest(times(inverse, x)).astype(np.uint8))
    best = _square_error(x, w, codes, np.float32(1) / inverse)
    for numerator in numerators[1:]:
        this = numerator / most
        tried = floats(np.minimum(nearest(times(this, x)), top))
        error = _square_error(x, w, tried, np.float32(1) / this)
        wins = error < best
        best, inverse = np.where(wins, error, best), np.where(wins, this, inverse)
    chosen = np.minimum(nearest(times(inverse, x)), top)
    numbers = floats(chosen)
    sum_lx, sum_l2 = serial_sum(times(w, x) * numbers), serial_sum(w * numbers * numbers)
    stored = chosen.astype(np.uint8).astype(np.int32)
    for _ in range(_SWEEPS):
        changed = False
        for i, (value, weight) in enumerate(zip(x, w, strict=True)):
            now = floats(stored[i])
            lx, l2 = sum_lx - weight * value * now, sum_l2 - weight * now * now
            new = np.minimum(nearest(value * l2 / lx), top)
            wins = (lx > 0) & (l2 > 0) & (new != stored[i])
            lx, l2 = lx + weight * value * floats(new), l2 + weight * floats(new) * floats(new)
            wins &= lx * lx * sum_l2 > sum_lx * sum_lx * l2
            stored[i] = np.where(wins, new.astype(np.uint8), stored[i])
            sum_lx, sum_l2 = np.where(wins, lx, sum_lx), np.where(wins, l2, sum_l2)
            changed |= bool(wins.any())
        if not changed:
            break
    scale = np.where(sum_l2 > 0, sum_lx / sum_l2, np.float32(0))
    zero = most < TINY
    return np.where(zero, np.float32(0), scale), np.where(zero, 0, stored).astype(np.uint8)


def _square_error(x: Floats, w: Floats, codes: Floats, scale: Floats) -> Floats:
    difference = x - scale * codes
    return serial_sum(w * difference * difference)


def refined(x: Floats, top: int) -> tuple[Floats, Ints]:
    """Search a scale by changing one code at a time (`make_q3_quants` with do_rmse).

    A sweep that changes nothing repeats itself, so sub-blocks need no exit of their own.

    Returns:
        The scales `[sub-block]` and the codes raised by `top`; an all-zero sub-block has codes 0.
    """
    most, signed = largest(x)
    w = x * x
    codes = np.clip(nearest(np.float32(-top) / signed * x), -top, top - 1)
    numbers = floats(codes)
    sum_lx, sum_l2 = serial_sum(times(w, x) * numbers), serial_sum(w * numbers * numbers)
    for _ in range(_SWEEPS):
        changed = False
        for i, (value, weight) in enumerate(zip(x, w, strict=True)):
            now = floats(codes[i])
            lx, l2 = sum_lx - weight * value * now, sum_l2 - weight * now * now
            new = np.clip(nearest(value * l2 / lx), -top, top - 1)
            wins = (lx > 0) & (new != codes[i])
            lx, l2 = lx + weight * value * floats(new), l2 + weight * floats(new) * floats(new)
            wins &= (l2 > 0) & (lx * lx * sum_l2 > sum_lx * sum_lx * l2)
            codes[i] = np.where(wins, new, codes[i])
            sum_lx, sum_l2 = np.where(wins, lx, sum_lx), np.where(wins, l2, sum_l2)
            changed |= bool(wins.any())
        if not changed:
            break
    scale = np.where(sum_l2 > 0, sum_lx / sum_l2, np.float32(0))
    zero = most < TINY
    return np.where(zero, np.float32(0), scale), np.where(zero, 0, codes + np.int32(top))
