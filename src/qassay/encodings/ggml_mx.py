"""ggml's form of the OCP microscaling types."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from qassay.encodings.base import BlockEncoding, Blocks, Codes, Ggml
from qassay.encodings.fields import e8m0, uints


class MXFP4(BlockEncoding, id="ggml.mxfp4"):
    """E2M1 floats, one power-of-two scale byte per 32 weights."""

    block = 32
    fields = (e8m0("e"), uints("qs", 32, 4, run=16))
    codes = Codes("qs", lookup="e2m1_doubled", extremes=(7, 15))
    stored_as = (Ggml(39),)
    sources = (
        "llama.cpp 0c1e57098, ggml/src/ggml-common.h, block_mxfp4",
        "ggml/src/ggml-quants.c, dequantize_row_mxfp4",
        "OCP Microscaling Formats (MX) Specification 1.0",
    )
    formula = "2^(e - 127) * e2m1[q]"

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values."""
        return b.e * b.q
