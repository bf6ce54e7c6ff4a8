"""PyPI gguf's quantizers (gguf/quants.py), which are NumPy and inherit NumPy's NaN."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.encodings.tables import table
from qassay.runtimes.arithmetic import (
    Ints,
    halves,
    indefinite,
    legacy_block,
    per_block,
    reciprocal,
)
from qassay.runtimes.base import Engine, Quantizer, Route


def _cast(values: Floats) -> Ints:
    """Cut off the fraction as NumPy's casts to 8 bits do on x86-64, before the low byte is taken.

    NumPy leaves NaN and values out of range open; on x86-64 they go through `cvttps2dq`, whose
    answer -2^31 has a low byte of 0.
    """
    return indefinite(np.trunc(values))


def _symmetric(width: int) -> Quantizer:
    """Return the quantizer of Q4_0 or Q5_0. `argmax` takes the first NaN for the extreme."""
    zero = 1 << (width - 1)

    @per_block(32)
    @np.errstate(all="ignore")
    def quantize(blocks: Floats) -> Bytes:
        first = np.abs(blocks).argmax(axis=1, keepdims=True)
        scale = np.take_along_axis(blocks, first, axis=1) / np.float32(-zero)
        codes = _cast(blocks * reciprocal(scale) + np.float32(zero + 0.5)) & 0xFF
        return legacy_block([halves(scale)], np.minimum(codes, 2 * zero - 1), width)

    return quantize


def _affine(width: int) -> Quantizer:
    """Return the quantizer of Q4_1 or Q5_1. `max` and `min` return NaN where there is one."""
    top = (1 << width) - 1

    @per_block(32)
    @np.errstate(all="ignore")
    def quantize(blocks: Floats) -> Bytes:
        least = blocks.min(axis=1, keepdims=True)
        scale = (blocks.max(axis=1, keepdims=True) - least) / np.float32(top)
        codes = _cast((blocks - least) * reciprocal(scale) + np.float32(0.5)) & 0xFF
        return legacy_block([halves(scale), halves(least)], np.minimum(codes, top), width)

    return quantize


@per_block(32)
@np.errstate(all="ignore")
def _q8_0(blocks: Floats) -> Bytes:
    """Quantize blocks to Q8_0. Rounding is floor(|x|) + floor(2 (|x| - floor(|x|)))."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * reciprocal(scale)
    size = np.abs(scaled)
    floor = np.floor(size)
    rounded = np.sign(scaled) * (floor + np.floor(np.float32(2) * (size - floor)))
    return legacy_block([halves(scale)], _cast(rounded), 8)


@per_block(32)
@np.errstate(all="ignore")
def _mxfp4(blocks: Floats) -> Bytes:
    """Quantize blocks to MXFP4: the exponent by floor(log2), the code by the nearest value.

    A NaN in the block makes the exponent byte 0; below 2^-125 it wraps to a huge exponent.
    """
    amax = np.abs(blocks).max(axis=1, keepdims=True)
    exponent = np.floor(np.log2(amax)) + np.float32(125)
    stored = np.where(amax > 0, _cast(exponent), 0).astype(np.uint8)
    unit = np.ldexp(np.float32(1), stored.astype(np.int32) - 128)
    values = unit[:, :, None] * table("e2m1_doubled")
    nearest = np.abs(values - blocks[:, :, None]).argmin(axis=2).astype(np.uint8)
    return np.concatenate([stored, nearest[:, :16] | nearest[:, 16:] << 4], axis=1)


@per_block(1)
def _f16(blocks: Floats) -> Bytes:
    """Store as f16."""
    return np.ascontiguousarray(halves(blocks), "<u2").view(np.uint8)


@per_block(1)
def _bf16(blocks: Floats) -> Bytes:
    """Store as bf16: nearest, ties to even; NaN keeps its upper payload and becomes quiet."""
    bits = np.ascontiguousarray(blocks, np.float32).view(np.uint32)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(nan, bits >> 16 | 0x40, rounded).astype("<u2").view(np.uint8)


class GgufPy(Engine, id="gguf-py"):
    """PyPI gguf's NumPy quantizers: one NaN makes the block's scale NaN, and so every weight.

    On finite weights they write what the C reference writes, but for blocks of -0.0 in Q4_0 and
    Q5_0 and mixed zeros in Q4_1 and Q5_1 (the sign of a zero scale or minimum).
    """

    sources: ClassVar[tuple[str, ...]] = ("PyPI gguf 0.19.0, gguf/quants.py, quantize_blocks",)
    routes: ClassVar[dict[str, Route]] = {
        "f16": Route(_f16),
        "bf16": Route(_bf16),
        "ggml.q4_0": Route(_symmetric(4)),
        "ggml.q4_1": Route(_affine(4)),
        "ggml.q5_0": Route(_symmetric(5)),
        "ggml.q5_1": Route(_affine(5)),
        "ggml.q8_0": Route(_q8_0),
        "ggml.mxfp4": Route(_mxfp4),
    }
