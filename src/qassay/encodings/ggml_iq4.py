"""ggml's 4-bit types with a fixed table of uneven steps."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from qassay.encodings.base import BlockEncoding, Blocks, Codes, Ggml
from qassay.encodings.fields import f16, uints

_COMMON = "llama.cpp 0c1e57098, ggml/src/ggml-common.h"
_QUANTS = "ggml/src/ggml-quants.c"


class IQ4_NL(BlockEncoding, id="ggml.iq4_nl"):
    """4-bit codes into a table of 16 uneven steps, one f16 scale per 32 weights."""

    block = 32
    fields = (f16("d", signed=True), uints("qs", 32, 4, run=16))
    # The table has no zero: a block of zeros gets d = 0 over the code nearest to it.
    codes = Codes("qs", lookup="iq4_nl", blank=(8,))
    stored_as = (Ggml(20),)
    sources = (f"{_COMMON}, block_iq4_nl", f"{_QUANTS}, dequantize_row_iq4_nl")
    formula = "d * table[q]"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.q


class IQ4_XS(BlockEncoding, id="ggml.iq4_xs"):
    """4-bit codes into a table of 16 uneven steps; per 32 weights a 6-bit scale under an f16 d."""

    block = 256
    sub_block = 32
    fields = (
        f16("d", signed=True, subnormal_is_normal=True),
        uints("scales_h", 8, 2, run=1),
        uints("scales_l", 8, 4, run=1),
        uints("qs", 256, 4, run=16),
    )
    codes = Codes("qs", lookup="iq4_nl", blank=(8,))
    sub_scales = Codes("scales_l", "scales_h", zero=32)
    stored_as = (Ggml(23),)
    sources = (f"{_COMMON}, block_iq4_xs", f"{_QUANTS}, dequantize_row_iq4_xs")
    formula = "d * (scales - 32) * table[q]"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.d * b.sc * b.q
