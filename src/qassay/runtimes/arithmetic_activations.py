"""How a CPU path quantizes activations before it multiplies: Q8_0, Q8_1 and Q8_K rows.

None of the three is kept as bytes here: a product needs the codes, the scale as it is stored,
and the sums. Q8_1 stores `s = d * sum(q)` as f16, Q8_K stores an f32 scale and int16 sums of 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qassay.encodings.base import Floats
from qassay.runtimes.arithmetic import (
    Ints,
    halves,
    indefinite,
    of_halves,
    reciprocal,
    round_away,
    saturated,
    signed_extreme,
)


@dataclass(frozen=True, slots=True)
class Activations:
    """Rows of activations as a CPU path holds them.

    Attributes:
        codes: int32 `[M, blocks, block]`.
        scale: float32 `[M, blocks]`, as stored.
        sums: Q8_1: float32 `[M, blocks]`, the stored `s`; Q8_K: int32 `[M, blocks, 16]`;
            Q8_0: None.
    """

    codes: Ints
    scale: Floats
    sums: Floats | Ints | None = None


def _vector_max(first: Floats, second: Floats) -> Floats:
    """Return what x86's `maxps` does: the second operand where equal or where either is NaN."""
    return np.where(first > second, first, second)


@np.errstate(all="ignore")
def eight_bits_avx2(blocks: Floats) -> tuple[Floats, Ints]:
    """Return ggml's AVX2 scale `[n, 1]` (float32) and codes `[n, 32]`, not yet saturated.

    The maximum is taken over four vectors of eight lanes, then over the lanes' halves; an
    element that is NaN or overflows has the code -2^31.
    """
    size = np.abs(blocks).reshape(-1, 4, 8)
    lanes = size[:, 0]
    for vector in (1, 2, 3):
        lanes = _vector_max(lanes, size[:, vector])
    four = _vector_max(lanes[:, 4:], lanes[:, :4])
    two = _vector_max(four[:, :2], four[:, 2:])
    amax = _vector_max(two[:, :1], two[:, 1:])
    inverse = np.where(amax == 0, np.float32(0), np.float32(127) / amax)
    return amax / np.float32(127), indefinite(np.rint(blocks * inverse))


@np.errstate(all="ignore")
def eight_bits_candle(blocks: Floats) -> tuple[Floats, Ints]:
    """Return candle's scale `[n, 1]` (float32) and codes `[n, 32]`: NaN is skipped and gives 0."""
    amax = np.fmax.reduce(np.abs(blocks), axis=1, keepdims=True, initial=np.float32(0))
    scale = amax / np.float32(127)
    return scale, saturated(round_away(blocks * reciprocal(scale)), -128, 127)


def q8_0(x: Floats, *, program: str) -> Activations:
    """Quantize float32 rows `[M, K]` to Q8_0 as `program` (`ggml` on AVX2, or `candle`) does."""
    scale, codes = _eight_bits(x, program)
    shape = (x.shape[0], -1)
    return Activations(
        np.clip(codes, -128, 127).reshape(*shape, 32), of_halves(halves(scale)).reshape(shape)
    )


@np.errstate(all="ignore")
def q8_1(x: Floats, *, program: str) -> Activations:
    """Quantize float32 rows `[M, K]` to Q8_1, whose `s` is an f16 and overflows from 65520 on.

    ggml multiplies the float32 scale by the sum. Its AVX2 code adds the codes before they are
    saturated, in 32 bits, so a NaN element makes `s` infinite. candle converts the sum to f16
    and multiplies two f16 numbers.
    """
    scale, codes = _eight_bits(x, program)
    total = codes.sum(axis=1, keepdims=True, dtype=np.int32)
    if program == "candle":
        summed = of_halves(halves(total.astype(np.float32))) * of_halves(halves(scale))
    else:
        summed = scale * total.astype(np.float32)
    shape = (x.shape[0], -1)
    return Activations(
        np.clip(codes, -128, 127).reshape(*shape, 32),
        of_halves(halves(scale)).reshape(shape),
        of_halves(halves(summed)).reshape(shape),
    )


@np.errstate(all="ignore")
def q8_k(x: Floats, *, program: str) -> Activations:
    """Quantize float32 rows `[M, K]` to Q8_K: an f32 scale, codes, and int16 sums of 16 codes.

    ggml scales the extreme to -127 and rounds by adding 1.5 * 2^23, so that a NaN gives its own
    payload (0 for the usual NaN). candle scales it to -128, rounds ties away, and takes
    `NaN.min(127)`, which is 127: a NaN activation counts as the largest code.
    """
    blocks = x.reshape(-1, 256)
    extreme = signed_extreme(blocks)
    dead = extreme == 0
    inverse = np.float32(-128 if program == "candle" else -127) / extreme
    scaled = inverse * blocks
    if program == "candle":
        codes = saturated(np.fmin(round_away(scaled), np.float32(127)), -128, 127)
    else:
        bits = (scaled + np.float32(12582912)).view(np.int32)
        codes = np.minimum((bits & 0x7FFFFF) - 0x400000, 127)
        codes = codes.astype(np.int8).astype(np.int32)  # stored without a lower clamp
    codes = np.where(dead, 0, codes).astype(np.int32)
    scale = np.where(dead, np.float32(0), np.float32(1) / inverse)
    sums = codes.reshape(-1, 16, 16).sum(axis=2, dtype=np.int32)
    rows = x.shape[0]
    return Activations(
        codes.reshape(rows, -1, 256), scale.reshape(rows, -1), sums.reshape(rows, -1, 16)
    )


def _eight_bits(x: Floats, program: str) -> tuple[Floats, Ints]:
    blocks = np.ascontiguousarray(x, np.float32).reshape(-1, 32)
    return eight_bits_candle(blocks) if program == "candle" else eight_bits_avx2(blocks)
