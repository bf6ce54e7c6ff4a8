"""What a Linear is for, and how it is split and fused, told from its name."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """What a name tells.

    Attributes:
        role: See `Linear.role`.
        parallel: See `Linear.parallel`.
        fused_as: The last part of the fused module's name, "" where nothing is fused.
    """

    role: str
    parallel: str = ""
    fused_as: str = ""


# The first pattern that is found decides. Splits: the tensor-parallel plans of transformers
# (`base_model_tp_plan`) and vLLM; fusions: vLLM's `packed_modules_mapping`.
_PATTERNS: tuple[tuple[str, Part], ...] = (
    (r"(^|\.)(lm_head|embed_out|output)$", Part("lm_head", "col")),
    (r"(^|\.)(visual|vision_tower|vision_model|vision_encoder|v\.blk|mm)\.", Part("vision")),
    (r"(^|\.)(mtp|nextn)\.", Part("mtp")),
    (r"shared_expert_gate$|ffn_gate_inp_shexp$", Part("gate")),
    (r"(mlp|moe|block_sparse_moe|feed_forward)\.(gate|router)$|\.router$|ffn_gate_inp$",
     Part("router")),
    (r"experts\.(\d+\.)?(gate_proj|up_proj|w1|w3)$|ffn_(gate|up)_exps$",
     Part("expert", "col", "w13")),
    (r"experts\.(\d+\.)?gate_up_proj$", Part("expert", "col")),
    (r"experts\.(\d+\.)?(down_proj|w2)$|ffn_down_exps$", Part("expert", "row")),
    (r"linear_attn\.in_proj_[ab]$|ssm_(alpha|beta)$", Part("gdn_gate", "col", "in_proj_ba")),
    (r"linear_attn\.in_proj_ba$|ssm_ba$", Part("gdn_gate", "col")),
    (r"linear_attn\.in_proj_(qkv|z)$", Part("gdn", "col", "in_proj_qkvz")),
    (r"linear_attn\.in_proj_qkvz$", Part("gdn", "col")),
    (r"linear_attn\.out_proj$|ssm_out$", Part("gdn", "row")),
    (r"(^|\.)[qkv]_proj$|attn_[qkv]$", Part("attention", "col", "qkv_proj")),
    (r"qkv_proj$|attn_qkv$|query_key_value$", Part("attention", "col")),
    (r"(self_attn|attention)\.(o_proj|out_proj|dense)$|attn_output$", Part("attention", "row")),
    (r"(^|\.)(gate_proj|up_proj|w1|w3)$|ffn_(gate|up)$|ffn_(gate|up)_shexp$",
     Part("mlp", "col", "gate_up_proj")),
    (r"(^|\.)gate_up_proj$", Part("mlp", "col")),
    (r"(^|\.)(down_proj|w2)$|ffn_down(_shexp)?$", Part("mlp", "row")),
)  # fmt: skip
_COMPILED = tuple((re.compile(pattern), part) for pattern, part in _PATTERNS)
_OTHER = Part("other")

_NO_LINEAR = re.compile(
    r"norm|embed|embd|(^|[._])(wte|wpe)$|conv|rope|rotary|position|(^|\.)ln_|A_log|dt_bias|lora_",
    re.IGNORECASE,
)


def part_of(module: str) -> Part:
    """Return what the module's name tells."""
    return next((part for pattern, part in _COMPILED if pattern.search(module)), _OTHER)


def fused_name(module: str, part: Part) -> str:
    """Return the whole name of the fused module, "" where nothing is fused."""
    if not part.fused_as:
        return ""
    return f"{module.rpartition('.')[0]}.{part.fused_as}"


def is_no_linear(module: str) -> bool:
    """Tell whether a name is that of a norm, an embedding, a convolution or the like."""
    return _NO_LINEAR.search(module) is not None
