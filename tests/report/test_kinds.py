"""Tensor kinds from real names."""

# ruff: noqa: E501 - names are as they are
from __future__ import annotations

import pytest

from qassay.report.kinds import KINDS, kind_of


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (
            "embedding",
            "token_embd.weight model.embed_tokens.weight transformer.wte.weight position_embd.weight "
            "embeddings.word_embeddings.weight bert.embeddings.token_type_embeddings.weight "
            "per_layer_token_embd.weight token_types.weight",
        ),
        (
            "attention",
            "blk.0.attn_q.weight blk.11.attn_output.weight blk.0.attn_qkv.bias "
            "model.layers.0.self_attn.o_proj.qweight h.0.attn.c_attn.weight "
            "encoder.layer.0.attention.self.query.weight encoder.layer.0.attention.output.dense.weight",
        ),
        (
            "ffn",
            "blk.0.ffn_up.weight model.layers.0.mlp.gate_proj.weight h.0.mlp.c_fc.weight "
            "blk.0.ffn_up_shexp.weight model.layers.3.mlp.shared_experts.up_proj.weight "
            "encoder.layer.0.intermediate.dense.weight encoder.layer.0.output.dense.weight "
            "decoder.layers.0.fc1.weight",
        ),
        (
            "experts",
            "blk.0.ffn_up_exps.weight blk.0.ffn_gate.3.weight model.layers.0.mlp.experts.7.up_proj.weight "
            "model.layers.0.block_sparse_moe.experts.0.w1.weight",
        ),
        (
            "norm",
            "blk.0.attn_norm.weight output_norm.weight model.layers.0.input_layernorm.weight "
            "model.norm.weight blk.0.attn_q_norm.weight h.0.ln_1.weight transformer.ln_f.bias "
            "embeddings.LayerNorm.weight token_embd_norm.weight blk.0.post_ffw_norm.weight",
        ),
        ("output", "output.weight lm_head.weight output.bias"),
        (
            "other",
            "rope_freqs.weight blk.0.ffn_gate_inp.weight model.layers.0.mlp.gate.weight blk.0.ssm_a "
            "model.layers.0.block_sparse_moe.gate.weight x",
        ),
    ],
)
def test_kind(kind, names):
    assert kind in KINDS
    assert {name: kind_of(name) for name in names.split()} == dict.fromkeys(names.split(), kind)
