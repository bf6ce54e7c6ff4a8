"""ggml's form of NVFP4."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from qassay.encodings.base import BlockEncoding, Blocks, Codes, Ggml
from qassay.encodings.fields import ue4m3s, uints


class NVFP4(BlockEncoding, id="ggml.nvfp4"):
    """E2M1 floats, an unsigned E4M3 scale per 16 weights, four of them in a block.

    NVFP4 has a scale for the whole tensor, too. A GGUF file keeps it as a tensor of its own,
    `<name>.scale` (F32), which the runtime multiplies the product with; decoding a tensor leaves
    it out, as ggml does, and files that ggml itself quantized have none.

    Byte 0x7F of `d` is NaN in E4M3 and decodes to 0, 0xFF to 480; ggml ignores the sign bit of
    all others. No writer produces any of these.
    """

    block = 64
    sub_block = 16
    fields = (*ue4m3s("d", 4), uints("qs", 64, 4, run=8))
    codes = Codes("qs", lookup="e2m1_doubled", extremes=(7, 15))
    stored_as = (Ggml(40),)
    sources = (
        "llama.cpp 0c1e57098, ggml/src/ggml-common.h, block_nvfp4",
        "ggml/src/ggml-quants.c, dequantize_row_nvfp4",
        "ggml/src/ggml-impl.h, ggml_ue4m3_to_fp32",
    )
    formula = "d[i / 16] * e2m1[q]"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.sc * b.q
