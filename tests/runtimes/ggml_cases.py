"""The encodings that ggml's engine writes, under the names the oracles use."""

from __future__ import annotations

from qassay.runtimes.ggml import GgmlEngine

NAMES = {
    "F16": "f16",
    "BF16": "bf16",
    "Q4_0": "ggml.q4_0",
    "Q4_1": "ggml.q4_1",
    "Q5_0": "ggml.q5_0",
    "Q5_1": "ggml.q5_1",
    "Q8_0": "ggml.q8_0",
    "MXFP4": "ggml.mxfp4",
    "Q2_K": "ggml.q2_k",
    "Q3_K": "ggml.q3_k",
    "Q4_K": "ggml.q4_k",
    "Q5_K": "ggml.q5_k",
    "Q6_K": "ggml.q6_k",
}
WEIGHTED = [name for name, id_ in NAMES.items() if GgmlEngine.routes[id_].takes_importance]
FAST = [name for name, id_ in NAMES.items() if GgmlEngine.routes[id_].fast]
