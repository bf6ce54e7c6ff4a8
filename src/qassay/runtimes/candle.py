"""candle's quantizers of the 32-weight types (its K-quants search differently from ggml's)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.runtimes.arithmetic import (
    halves,
    legacy_block,
    per_block,
    reciprocal,
    saturated,
    signed_extreme,
)
from qassay.runtimes.arithmetic_activations import eight_bits_candle
from qassay.runtimes.base import Engine, Quantizer, Route


def _symmetric(width: int) -> Quantizer:
    """Return the quantizer of Q4_0 or Q5_0: d = extreme / -2^(width - 1), zero point in between."""
    zero = 1 << (width - 1)

    @per_block(32)
    @np.errstate(all="ignore")
    def quantize(blocks: Floats) -> Bytes:
        scale = signed_extreme(blocks) / np.float32(-zero)
        shifted = blocks * reciprocal(scale) + np.float32(zero + 0.5)
        # Q4_0 casts to u8; Q5_0 casts to i8, takes the smaller of that and 31, then casts to u8,
        # whose bits 0-4 of a negative -128 are zero as well.
        return legacy_block([halves(scale)], saturated(shifted, 0, 2 * zero - 1), width)

    return quantize


def _affine(width: int) -> Quantizer:
    """Return the quantizer of Q4_1 or Q5_1: d = (max - min) / (2^width - 1), m = min.

    `f32::min` and `f32::max` pass over NaN. Of zeros with different signs they may return either
    (Rust leaves it open, and optimised code does both), so that the sign of a zero minimum among
    mixed zeros is not settled; here it is the first one's.
    """
    top = (1 << width) - 1

    @per_block(32)
    @np.errstate(all="ignore")
    def quantize(blocks: Floats) -> Bytes:
        least = _first_of_equals(blocks, np.inf)
        most = -_first_of_equals(-blocks, np.inf)
        scale = (most - least) / np.float32(top)
        shifted = (blocks - least) * reciprocal(scale) + np.float32(0.5)
        codes = saturated(shifted, 0, 255)
        codes = np.minimum(codes, top) if width == 4 else codes & top
        return legacy_block([halves(scale), halves(least)], codes, width)

    return quantize


def _first_of_equals(blocks: Floats, otherwise: float) -> Floats:
    """Return each block's smallest number `[n, 1]`, NaN passed over, the first where equal."""
    known = np.where(np.isnan(blocks), np.float32(otherwise), blocks)
    return np.take_along_axis(known, known.argmin(axis=1, keepdims=True), axis=1)


@per_block(32)
def _q8_0(blocks: Floats) -> Bytes:
    """Quantize blocks to Q8_0."""
    scale, codes = eight_bits_candle(blocks)
    return legacy_block([halves(scale)], codes, 8)


class Candle(Engine, id="candle"):
    """candle's quantizers: a NaN never reaches the scale, becomes code 0, and leaves no trace.

    `f32::max` passes over NaN, Rust's `as` saturates and maps NaN to 0, `f32::round` takes ties
    away from zero. In Q4_0 and Q5_0 a NaN becomes the block's signed extreme (code 0), in Q4_1
    and Q5_1 its minimum.
    """

    sources: ClassVar[tuple[str, ...]] = (
        "candle 2a13b0f3ff62 (candle-core 0.11.0), candle-core/src/quantized/k_quants.rs,"
        " GgmlType::from_float",
    )
    routes: ClassVar[dict[str, Route]] = {
        "ggml.q4_0": Route(_symmetric(4)),
        "ggml.q4_1": Route(_affine(4)),
        "ggml.q5_0": Route(_symmetric(5)),
        "ggml.q5_1": Route(_affine(5)),
        "ggml.q8_0": Route(_q8_0),
    }
