"""ggml's 32-weight blocks: one or two f16 numbers and one code a weight."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from qassay.encodings.base import BlockEncoding, Blocks, Codes, Ggml
from qassay.encodings.fields import Role, f16, ints8, uints

_COMMON = "llama.cpp 0c1e57098, ggml/src/ggml-common.h"
_QUANTS = "ggml/src/ggml-quants.c"


class Q4_0(BlockEncoding, id="ggml.q4_0"):
    """4-bit codes, one f16 scale per 32 weights, zero point fixed at 8."""

    block = 32
    fields = (f16("d", signed=True), uints("qs", 32, 4, run=16))
    codes = Codes("qs", zero=8)
    stored_as = (Ggml(2),)
    sources = (f"{_COMMON}, block_q4_0", f"{_QUANTS}, dequantize_row_q4_0")
    formula = "d * (q - 8)"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.q


class Q4_1(BlockEncoding, id="ggml.q4_1"):
    """4-bit codes, an f16 scale and an f16 minimum per 32 weights."""

    block = 32
    fields = (f16("d"), f16("m", role=Role.OFFSET, signed=True), uints("qs", 32, 4, run=16))
    codes = Codes("qs")
    stored_as = (Ggml(3),)
    sources = (f"{_COMMON}, block_q4_1", f"{_QUANTS}, dequantize_row_q4_1")
    formula = "d * q + m"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.q + b.m


class Q5_0(BlockEncoding, id="ggml.q5_0"):
    """5-bit codes (the fifth bits apart in qh), one f16 scale per 32 weights, zero point 16."""

    block = 32
    fields = (f16("d", signed=True), uints("qh", 32, 1, run=1), uints("qs", 32, 4, run=16))
    codes = Codes("qs", "qh", zero=16)
    stored_as = (Ggml(6),)
    sources = (f"{_COMMON}, block_q5_0", f"{_QUANTS}, dequantize_row_q5_0")
    formula = "d * (q - 16)"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.q


class Q5_1(BlockEncoding, id="ggml.q5_1"):
    """5-bit codes (the fifth bits apart in qh), an f16 scale and an f16 minimum per 32 weights."""

    block = 32
    fields = (
        f16("d"),
        f16("m", role=Role.OFFSET, signed=True),
        uints("qh", 32, 1, run=1),
        uints("qs", 32, 4, run=16),
    )
    codes = Codes("qs", "qh")
    stored_as = (Ggml(7),)
    sources = (f"{_COMMON}, block_q5_1", f"{_QUANTS}, dequantize_row_q5_1")
    formula = "d * q + m"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.q + b.m


class Q8_0(BlockEncoding, id="ggml.q8_0"):
    """8-bit signed codes, one f16 scale per 32 weights."""

    block = 32
    fields = (
        f16("d"),
        ints8(
            "qs",
            32,
            forbidden={
                -128: "the reference quantizer stops at -127; the AVX2 one writes -128 for NaN"
                " and infinite weights"
            },
        ),
    )
    codes = Codes("qs", extremes=(-128, -127, 127))
    stored_as = (Ggml(8),)
    sources = (f"{_COMMON}, block_q8_0", f"{_QUANTS}, dequantize_row_q8_0")
    formula = "d * q"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.q
