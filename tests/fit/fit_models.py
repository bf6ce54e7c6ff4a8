"""Configurations of published models, and a short way to ask about them.

Dimensions of Qwen3.5: public copies of its config.json (2B: hidden 2048, 24 layers, 8 heads, 2 kv
heads, head_dim 256, intermediate 6144, linear heads 16/16 of 128). Llama-3-8B and Qwen3-8B: their
config.json.
"""

from __future__ import annotations

import json
from pathlib import Path

from qassay.core.container import Container
from qassay.report.document import Report
from qassay.report.of_fit import report_of
from qassay.run.fit import fit_model
from qassay.run.options import CheckOptions, FitOptions
from qassay.runtimes.shapes.config import shapes_of_config


def qwen3_5(hidden, heads, *, layers=24, moe=False, **more):
    text = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_value_heads": heads,
        "vocab_size": 248320,
        **({"num_experts": 256, "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512} if moe else {"intermediate_size": 6144}),
        **more,
    }  # fmt: skip
    kind = "qwen3_5_moe" if moe else "qwen3_5"
    return {"model_type": kind, "dtype": "bfloat16", "tie_word_embeddings": True,
            "text_config": {"model_type": f"{kind}_text", **text}}  # fmt: skip


QWEN3_5_2B = qwen3_5(2048, 16)
LLAMA_3_8B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "vocab_size": 128256, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "head_dim": 128,
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "vocab_size": 151936, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "attention_bias": False,
}  # fmt: skip


def auto_round(config, *, kept=("in_proj_a", "in_proj_b")):
    """Return a configuration of the layout that AutoRound publishes, some layers kept."""
    text = config["text_config"]
    names = [
        f"model.language_model.layers.{layer}.linear_attn.{name}"
        for layer in range(text["num_hidden_layers"])
        if (layer + 1) % 4
        for name in kept
    ]
    return {
        **config,
        "quantization_config": {
            "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
            "data_type": "int", "packing_format": "auto_round:auto_gptq",
            "block_name_to_quantize": "model.language_model.layers",
            "extra_config": {name: {"bits": 16, "data_type": "float"} for name in names},
        },
    }  # fmt: skip


def shapes(config):
    return shapes_of_config(
        config, "config.json", Container(".", "config", extra={"config": config})
    )


def ask(tmp_path: Path, model, on, *, to="w4bf16", group_size=None, tp=1) -> Report:
    """Write a configuration and return the report about it."""
    path = model
    if isinstance(model, dict):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(model))
    return report_of([fit_model(path, FitOptions(on, to, group_size, tp), CheckOptions())])
