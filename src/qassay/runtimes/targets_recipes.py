"""The recipes of llama-quantize: which type a tensor gets by its role and its layer.

After llama.cpp 007dbbf3, src/llama-quant.cpp, for models that are neither Falcon nor a mixture of
eight experts, without an importance matrix. Names are those of GGUF or of Hugging Face.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

_ROLES: tuple[tuple[str, str], ...] = (
    ("output", r"^(output|lm_head|.*\.lm_head|embed_out)\.weight$"),
    (
        "embedding",
        r"^token_embd\.weight$|(^|\.)(embed_tokens|word_embeddings|wte|tok_embeddings)\.weight$",
    ),
    ("qkv", r"attn_qkv\.|(qkv_proj|query_key_value|c_attn|Wqkv)\."),
    ("v", r"attn_v\.|(v_proj|attention\.self\.value|kv_b_proj)\.|attn_kv_b\."),
    ("o", r"attn_output\.|(self_attn\.(o_proj|out_proj|dense)|attention\.output\.dense)\."),
    ("down", r"ffn_down|(down_proj|\.w2|mlp\.c_proj|dense_4h_to_h|fc2)(\.|$)|\d\.output\.dense\."),
)
_LAYER = re.compile(r"(?:^|\.)(?:blk|layers?|h|blocks)\.(\d+)\.")

_KEPT: tuple[tuple[str, str], ...] = (
    ("a norm", r"norm(_\w+)?\.weight$|layer_?norm|\.ln_\w+\.weight$"),
    ("a router of experts", r"ffn_gate_inp|\.(gate|router)\.weight$|\.router\."),
    ("position embeddings", r"position_embd|pos_embd|position_embeddings|\.wpe\.|^wpe\.|rel_pos"),
    ("token types", r"token_types|token_type_embeddings"),
    ("a small convolution", r"ssm_conv1d|shortconv\.conv|\.conv1d\."),
    ("relative position bias", r"attn_rel_b|relative_attention_bias"),
    ("small by design", r"altup|laurel|per_layer_model_proj|time_mix_(first|[wvag]\d)"),
    ("an image patch embedding", r"patch_embd|patch_merger|patch_embed"),
)
_ROLE_PATTERNS = [(role, re.compile(pattern)) for role, pattern in _ROLES]
_KEPT_PATTERNS = [(why, re.compile(pattern, re.IGNORECASE)) for why, pattern in _KEPT]

Shape = tuple[int, ...]


def keeps_float(name: str, shape: Shape) -> str:
    """Return why llama-quantize would leave a tensor as it is; "" where it quantizes it."""
    if len(shape) < 2:
        return "one axis"
    if name.endswith(".bias"):
        return "a bias"
    return next((why for why, pattern in _KEPT_PATTERNS if pattern.search(name)), "")


def role_of(name: str) -> str:
    """Return the role of a tensor, "" for one that no recipe treats specially."""
    return next((role for role, pattern in _ROLE_PATTERNS if pattern.search(name)), "")


@dataclass(frozen=True, slots=True)
class Layout:
    """What a recipe has to know of the whole model.

    Attributes:
        layers: Number of layers that have a role, by role.
        place: By role and layer number, how many layers with that role come before.
        tied: Whether there is no output matrix, so that the embedding serves as one.
        shared: Query heads that share a key and value head (`n_gqa`), 1 where unknown.
    """

    layers: Mapping[str, int]
    place: Mapping[tuple[str, int], int]
    tied: bool
    shared: int

    @classmethod
    def of(cls, tensors: Iterable[tuple[str, Shape]]) -> Layout:
        """Return the layout of a model with tensors of these names and shapes."""
        numbers: dict[str, set[int]] = {}
        rows: dict[str, int] = {}
        output = False
        for name, shape in tensors:
            role = role_of(name)
            output = output or role == "output"
            if role in ("v", "o") and len(shape) == 2:
                rows.setdefault(role, shape[0] if role == "v" else shape[1])
            layer = _LAYER.search(name)
            if layer is not None and len(shape) > 1:
                numbers.setdefault(role, set()).add(int(layer.group(1)))
        place = {
            (role, number): at
            for role, found in numbers.items()
            for at, number in enumerate(sorted(found))
        }
        shared = max(1, rows.get("o", 0) // rows["v"]) if rows.get("v") else 1
        return cls({role: len(found) for role, found in numbers.items()}, place, not output, shared)

    def layer(self, name: str, role: str) -> tuple[int, int]:
        """Return the place of a tensor among the layers with its role, and their number."""
        found = _LAYER.search(name)
        number = int(found.group(1)) if found else 0
        return self.place.get((role, number), 0), self.layers.get(role, 1)


Picker = Callable[[str, int, int, int], "str | None"]
"""Takes role, layer, layers and `n_gqa`; returns the type, or None for the recipe's own."""


def _more_bits(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _q2_k(role: str, layer: int, layers: int, shared: int) -> str | None:  # noqa: ARG001
    if role in ("v", "qkv"):
        return "q4_k" if shared >= 4 else "q3_k"
    return "q3_k" if role in ("down", "o") else None


def _q2_k_s(role: str, layer: int, layers: int, shared: int) -> str | None:
    if role in ("v", "qkv") and shared >= 4:
        return "q4_k"
    return "q4_k" if role == "down" and layer < layers // 8 else None


def _q3_k_m(role: str, layer: int, layers: int, shared: int) -> str | None:  # noqa: ARG001
    if role in ("v", "qkv"):
        return "q5_k" if layer < 2 else "q4_k"
    if role == "down":
        return "q5_k" if layer < layers // 16 else "q4_k"
    return "q4_k" if role == "o" else None


def _q3_k_l(role: str, layer: int, layers: int, shared: int) -> str | None:  # noqa: ARG001
    return "q5_k" if role in ("v", "qkv", "down", "o") else None


def _q4_k_s(role: str, layer: int, layers: int, shared: int) -> str | None:  # noqa: ARG001
    if role in ("v", "qkv") and layer < 4:
        return "q5_k"
    return "q5_k" if role == "down" and layer < layers // 8 else None


def _k_m(role: str, layer: int, layers: int, shared: int) -> str | None:  # noqa: ARG001
    return "q6_k" if role in ("v", "qkv", "down") and _more_bits(layer, layers) else None


def _plain(role: str, layer: int, layers: int, shared: int) -> str | None:  # noqa: ARG001
    return None


def _recipe(base: str, pick: Picker) -> Callable[[str, Shape, Layout], str]:
    def choose(name: str, shape: Shape, layout: Layout) -> str:
        role = role_of(name)
        if role == "output" or (role == "embedding" and layout.tied):
            return "ggml.q8_0" if shape[-1] % 256 else "ggml.q6_k"
        layer, layers = layout.layer(name, role)
        return f"ggml.{pick(role, layer, layers, layout.shared) or base}"

    return choose


RECIPES: Mapping[str, Callable[[str, Shape, Layout], str]] = {
    "Q2_K_S": _recipe("q2_k", _q2_k_s),
    "Q2_K_M": _recipe("q2_k", _q2_k),
    "Q3_K_S": _recipe("q3_k", _plain),
    "Q3_K_M": _recipe("q3_k", _q3_k_m),
    "Q3_K_L": _recipe("q3_k", _q3_k_l),
    "Q4_K_S": _recipe("q4_k", _q4_k_s),
    "Q4_K_M": _recipe("q4_k", _k_m),
    "Q5_K_S": _recipe("q5_k", _plain),
    "Q5_K_M": _recipe("q5_k", _k_m),
}
"""By name. `Q2_K_M` is what llama-quantize calls Q2_K; a bare `Q2_K` is that type everywhere."""

TYPES = ("ggml.q2_k", "ggml.q3_k", "ggml.q4_k", "ggml.q5_k", "ggml.q6_k", "ggml.q8_0")
"""Every type that a recipe gives to a tensor."""
