"""The C reference quantizers of ggml, which llama-quantize uses."""

from __future__ import annotations

from importlib import import_module

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.kernels import quantize_reference_k as k
from qassay.kernels import quantize_reference_legacy as legacy
from qassay.runtimes.base import Engine, Quantizer, Route


def _fast(module: str, name: str) -> Quantizer:
    """Return a quantizer that imports its module, and so Numba, when it is first called."""

    def quantize(rows: Floats, importance: Floats | None) -> Bytes:
        own = import_module(f"qassay.kernels.quantize_fast_{module}")
        written: Bytes = getattr(own, name)(rows, importance)
        return written

    return quantize


class GgmlEngine(Engine, id="ggml"):
    """ggml's reference quantizers (`ggml_quantize_chunk`), as llama-quantize and libgguf run them.

    What C leaves undefined (a float that no integer holds) comes out as on x86-64.
    """

    sources = (
        "ggml d99724f2, src/ggml-quants.c, quantize_* and quantize_row_*_ref",
        "ggml d99724f2, src/ggml.c, ggml_fp32_to_bf16_row",
        "ggml d99724f2, src/ggml-impl.h, ggml_compute_fp32_to_fp16",
    )
    routes = {  # noqa: RUF012
        "f16": Route(legacy.f16),
        "bf16": Route(legacy.bf16),
        "ggml.q4_0": Route(legacy.q4_0, _fast("searched", "q4_0"), takes_importance=True),
        "ggml.q4_1": Route(legacy.q4_1, _fast("searched", "q4_1"), takes_importance=True),
        "ggml.q5_0": Route(legacy.q5_0, _fast("searched", "q5_0"), takes_importance=True),
        "ggml.q5_1": Route(legacy.q5_1, _fast("searched", "q5_1"), takes_importance=True),
        "ggml.q8_0": Route(legacy.q8_0, _fast("legacy", "q8_0")),
        "ggml.mxfp4": Route(legacy.mxfp4, _fast("legacy", "mxfp4")),
        "ggml.q2_k": Route(k.q2_k, _fast("affine", "q2_k"), takes_importance=True),
        "ggml.q3_k": Route(k.q3_k, _fast("symmetric", "q3_k"), takes_importance=True),
        "ggml.q4_k": Route(k.q4_k, _fast("affine", "q4_k"), takes_importance=True),
        "ggml.q5_k": Route(k.q5_k, _fast("affine", "q5_k"), takes_importance=True),
        "ggml.q6_k": Route(k.q6_k, _fast("symmetric", "q6_k"), takes_importance=True),
    }
