"""ggml's K-quants: 256-weight super-blocks with small integer sub-scales."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from qassay.encodings.base import BlockEncoding, Blocks, Codes, Ggml
from qassay.encodings.bits import interleaved, pieces
from qassay.encodings.fields import BitsField, Role, f16, ints8, split, uints

_COMMON = "llama.cpp 0c1e57098, ggml/src/ggml-common.h"
_QUANTS = "ggml/src/ggml-quants.c"


def _six_bit_pairs() -> BitsField:
    """Declare the 12 bytes that hold eight 6-bit sub-scales and eight 6-bit sub-minimums.

    Byte by byte, high bits on the left (get_scale_min_k4 in ggml-quants.c); j = 0..3:

        byte j      | sc[j+4] bits 5..4 | sc[j] bits 5..0 |
        byte j + 4  |  m[j+4] bits 5..4 |  m[j] bits 5..0 |
        byte j + 8  |  m[j+4] bits 3..0 | sc[j+4] bits 3..0 |
    """
    low = range(4)
    return split(
        "scales",
        12,
        sc=pieces(6, [[(j, 0, 6)] for j in low] + [[(j + 8, 0, 4), (j, 6, 2)] for j in low]),
        m=pieces(6, [[(j + 4, 0, 6)] for j in low] + [[(j + 8, 4, 4), (j + 4, 6, 2)] for j in low]),
    )


class Q2_K(BlockEncoding, id="ggml.q2_k"):
    """2-bit codes; per 16 weights a 4-bit scale and a 4-bit minimum under f16 d and dmin."""

    block = 256
    sub_block = 16
    fields = (
        split(
            "scales",
            16,
            sc=pieces(4, [[(j, 0, 4)] for j in range(16)]),
            m=pieces(4, [[(j, 4, 4)] for j in range(16)]),
        ),
        uints("qs", 256, 2, run=32),
        f16("d"),
        f16("dmin", role=Role.MIN_SCALE),
    )
    codes = Codes("qs")
    sub_scales = Codes("sc")
    sub_mins = Codes("m")
    stored_as = (Ggml(10),)
    sources = (f"{_COMMON}, block_q2_K", f"{_QUANTS}, dequantize_row_q2_K")
    formula = "d * sc * q - dmin * m"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.sc * b.q - b.dmin * b.m


class Q3_K(BlockEncoding, id="ggml.q3_k"):
    """3-bit codes (the third bits apart in hmask); per 16 weights a 6-bit scale under an f16 d."""

    block = 256
    sub_block = 16
    fields = (
        uints("hmask", 256, 1, run=32),
        uints("qs", 256, 2, run=32),
        # 16 scales of 6 bits: low nibbles in 8 bytes, upper two bits in 4 more.
        split(
            "scales",
            12,
            low=interleaved(16, 4, 8),
            high=interleaved(16, 2, 4).moved(8),
        ),
        f16("d", signed=True),
    )
    codes = Codes("qs", "hmask", zero=4)
    sub_scales = Codes("low", "high", zero=32)
    stored_as = (Ggml(11),)
    sources = (f"{_COMMON}, block_q3_K", f"{_QUANTS}, dequantize_row_q3_K")
    formula = "d * (sc - 32) * (q - 4)"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.sc * b.q


class Q4_K(BlockEncoding, id="ggml.q4_k"):
    """4-bit codes; per 32 weights a 6-bit scale and a 6-bit minimum under f16 d and dmin."""

    block = 256
    sub_block = 32
    fields = (
        f16("d", subnormal_is_normal=True),
        f16("dmin", role=Role.MIN_SCALE, subnormal_is_normal=True),
        _six_bit_pairs(),
        uints("qs", 256, 4, run=32),
    )
    codes = Codes("qs")
    sub_scales = Codes("sc")
    sub_mins = Codes("m")
    stored_as = (Ggml(12),)
    sources = (f"{_COMMON}, block_q4_K", f"{_QUANTS}, dequantize_row_q4_K")
    formula = "d * sc * q - dmin * m"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.sc * b.q - b.dmin * b.m


class Q5_K(BlockEncoding, id="ggml.q5_k"):
    """5-bit codes (fifth bits in qh); per 32 weights a 6-bit scale and minimum under d and dmin."""

    block = 256
    sub_block = 32
    fields = (
        f16("d", subnormal_is_normal=True),
        f16("dmin", role=Role.MIN_SCALE, subnormal_is_normal=True),
        _six_bit_pairs(),
        uints("qh", 256, 1, run=32),
        uints("qs", 256, 4, run=32),
    )
    codes = Codes("qs", "qh")
    sub_scales = Codes("sc")
    sub_mins = Codes("m")
    stored_as = (Ggml(13),)
    sources = (f"{_COMMON}, block_q5_K", f"{_QUANTS}, dequantize_row_q5_K")
    formula = "d * sc * q - dmin * m"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.sc * b.q - b.dmin * b.m


class Q6_K(BlockEncoding, id="ggml.q6_k"):
    """6-bit codes (upper two bits in qh); per 16 weights a signed 8-bit scale under an f16 d."""

    block = 256
    sub_block = 16
    fields = (
        uints("ql", 256, 4, run=64),
        uints("qh", 256, 2, run=32),
        ints8("scales", 16),
        f16("d", signed=True, subnormal_is_normal=True),
    )
    codes = Codes("ql", "qh", zero=32)
    sub_scales = Codes("scales")
    stored_as = (Ggml(14),)
    sources = (f"{_COMMON}, block_q6_K", f"{_QUANTS}, dequantize_row_q6_K")
    formula = "d * scales * (q - 32)"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.sc * b.q
