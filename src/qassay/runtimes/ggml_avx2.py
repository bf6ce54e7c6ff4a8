"""ggml's vector code for x86, which quantizes activations and the KV cache, not weight files."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.runtimes.arithmetic import halves, legacy_block, per_block
from qassay.runtimes.arithmetic_activations import eight_bits_avx2
from qassay.runtimes.base import Engine, Route


@per_block(32)
def _q8_0(blocks: Floats) -> Bytes:
    """Quantize blocks to Q8_0."""
    scale, codes = eight_bits_avx2(blocks)
    return legacy_block([halves(scale)], np.clip(codes, -128, 127), 8)


class GgmlAvx2(Engine, id="ggml-avx2"):
    """ggml's AVX2 path for activations: ties to even, NaN and infinite elements become -128.

    It differs from the C reference in three ways: the codes are `x * (127 / amax)`, not
    `x * (1 / d)`; ties go to even; and a vector maximum returns its second operand where either
    is NaN, so that which elements a NaN hides depends on the lane it is in. llama-quantize
    writes files with the reference (engine `ggml`).
    """

    sources: ClassVar[tuple[str, ...]] = (
        "llama.cpp 0c1e57098 (ggml 0.25.3), ggml-cpu/arch/x86/quants.c, quantize_row_q8_0",
    )
    routes: ClassVar[dict[str, Route]] = {"ggml.q8_0": Route(_q8_0)}
