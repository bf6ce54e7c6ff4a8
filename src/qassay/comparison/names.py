"""Names of weights, as GGUF and as Hugging Face spell them.

GGUF's are those of `gguf-py/gguf/constants.py` (TENSOR_NAMES), the counterparts those of
`gguf-py/gguf/tensor_mapping.py` (llama.cpp 0c1e57098) for the architectures that are quantized
most. Where a GGUF name stands for several Hugging Face ones, the first that is there counts.
"""

from __future__ import annotations

import re

TOP = {
    "token_embd": ("embed_tokens",),
    "output_norm": ("norm",),
    "output": ("lm_head",),
}
"""Names outside of the layers."""

IN_LAYER = {
    "attn_norm": ("input_layernorm",),
    "attn_q": ("self_attn.q_proj",),
    "attn_k": ("self_attn.k_proj",),
    "attn_v": ("self_attn.v_proj",),
    "attn_qkv": ("self_attn.qkv_proj", "self_attn.W_pack"),
    "attn_output": ("self_attn.o_proj",),
    "attn_q_norm": ("self_attn.q_norm", "self_attn.q_layernorm"),
    "attn_k_norm": ("self_attn.k_norm", "self_attn.k_layernorm"),
    "attn_sinks": ("self_attn.sinks",),
    "attn_q_a": ("self_attn.q_a_proj",),
    "attn_q_b": ("self_attn.q_b_proj",),
    "attn_q_a_norm": ("self_attn.q_a_layernorm",),
    "attn_kv_a_mqa": ("self_attn.kv_a_proj_with_mqa",),
    "attn_kv_a_norm": ("self_attn.kv_a_layernorm",),
    "attn_kv_b": ("self_attn.kv_b_proj",),
    "post_attention_norm": ("post_attention_layernorm",),
    "ffn_norm": ("pre_feedforward_layernorm", "post_attention_layernorm"),
    "post_ffw_norm": ("post_feedforward_layernorm",),
    "ffn_gate": ("mlp.gate_proj",),
    "ffn_up": ("mlp.up_proj", "mlp.gate_up_proj"),
    "ffn_down": ("mlp.down_proj",),
    "ffn_gate_inp": ("mlp.gate", "block_sparse_moe.gate", "mlp.router"),
    "ffn_gate_inp_shexp": ("mlp.shared_expert_gate",),
    "exp_probs_b": ("mlp.gate.e_score_correction_bias",),
    "ffn_gate_exps": ("mlp.experts.gate_proj",),
    "ffn_up_exps": ("mlp.experts.up_proj",),
    "ffn_down_exps": ("mlp.experts.down_proj",),
    "ffn_gate_shexp": ("mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"),
    "ffn_up_shexp": ("mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"),
    "ffn_down_shexp": ("mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"),
}
"""Names after `blk.N.`, and after `layers.N.`."""

EXPERTS = {
    "ffn_gate_exps": ("mlp.experts.{}.gate_proj", "block_sparse_moe.experts.{}.w1"),
    "ffn_up_exps": ("mlp.experts.{}.up_proj", "block_sparse_moe.experts.{}.w3"),
    "ffn_down_exps": ("mlp.experts.{}.down_proj", "block_sparse_moe.experts.{}.w2"),
}
"""Experts that one side keeps in one tensor and the other one by one."""

INTERLEAVED = {
    "ffn_gate_exps": ("mlp.experts.gate_up_proj", 0),
    "ffn_up_exps": ("mlp.experts.gate_up_proj", 1),
}
"""gpt-oss keeps the rows of gate and up in turn (llama.cpp conversion/gpt_oss.py)."""

COMPUTED = re.compile(
    r"^rope_freqs\.weight$|^rope_factors_(long|short)\.weight$|(^|\.)rotary_emb\.inv_freq$"
)
"""Tables that follow from the configuration; only one side may keep them."""

MASK = re.compile(r"mask", re.IGNORECASE)
"""Tables in which infinities are meant."""

_BLOCK = re.compile(r"^blk\.(\d+)\.(.+)$")
_LAYER = re.compile(r"^(?:.*\.)?layers\.(\d+)\.(.+)$")
_OTHER_TOWER = re.compile(r"(^|\.)(vision|visual|audio|vision_tower|multi_modal_projector)[._]")
_PAIRED_BIAS = re.compile(r"_bias$")


def is_gguf(names: list[str]) -> bool:
    """Tell whether names are spelled as GGUF spells them."""
    return any(_BLOCK.match(name) or name == "token_embd.weight" for name in names)


def split(name: str) -> tuple[str, str]:
    """Return module and what follows it: `weight`, `bias`, ..."""
    module, _, part = name.rpartition(".")
    return (module, part) if module else (name, "")


def plain_name(name: str) -> str:
    """Return a Hugging Face name without what wraps the language model: `layers.0.mlp...`."""
    if _OTHER_TOWER.search(name):
        return name
    found = _LAYER.match(name)
    if found:
        rest = found[2]
        if ".experts." in rest and not rest.endswith(".bias"):
            rest = _PAIRED_BIAS.sub(".bias", rest)
        return f"layers.{found[1]}.{rest}"
    for top in ("embed_tokens", "lm_head", "norm"):
        if re.fullmatch(rf"(?:.*\.)?{top}\.(weight|bias)", name):
            return f"{top}.{name.rpartition('.')[2]}"
    return name


def counterparts(name: str) -> list[str]:
    """Return what a GGUF name may be called on the other side, in plain Hugging Face spelling."""
    module, part = split(name)
    found = _BLOCK.match(module)
    if found is None:
        return [f"{other}.{part}" for other in TOP.get(module, ())]
    names = []
    for other in IN_LAYER.get(found[2], ()):
        whole = f"layers.{found[1]}.{other}"
        names += [f"{whole}.{part}", whole]  # sinks and score corrections have no part
    return names


def inverse_of(name: str) -> str | None:
    """Return the tensor whose reciprocal a GGUF `input_scale` is.

    GGUF's multiplies, `input_global_scale` of compressed-tensors divides (llama.cpp
    conversion/base.py).
    """
    module, part = split(name)
    found = _BLOCK.match(module)
    known = IN_LAYER.get(found[2]) if found and part == "input_scale" else None
    return f"layers.{found[1]}.{known[0]}.input_global_scale" if found and known else None


def expert_names(name: str, expert: int) -> list[str]:
    """Return what one expert of a GGUF tensor of experts may be called."""
    module, part = split(name)
    found = _BLOCK.match(module)
    if found is None:
        return []
    forms = EXPERTS.get(found[2], ())
    return [f"layers.{found[1]}.{form.format(expert)}.{part}" for form in forms]


def interleaved(name: str) -> tuple[str, int] | None:
    """Return the tensor whose every second row a GGUF tensor of experts is, and the first row."""
    module, part = split(name)
    found = _BLOCK.match(module)
    known = INTERLEAVED.get(found[2]) if found else None
    return (
        None
        if found is None or known is None
        else (f"layers.{found[1]}.{known[0]}.{part}", known[1])
    )
