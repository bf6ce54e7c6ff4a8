"""GGUF names and Hugging Face names of one weight belong together; what is left over is told."""

from __future__ import annotations

import numpy as np
import pytest
from packings import AWQ_CONFIG, GPTQ_CONFIG, Matrix, save, save_gguf

from qassay.comparison.names import counterparts, expert_names, plain_name
from qassay.comparison.orders import rotary

TABLE = """
token_embd.weight             model.embed_tokens.weight
output_norm.weight            model.norm.weight
output.weight                 lm_head.weight
blk.3.attn_q.weight           model.layers.3.self_attn.q_proj.weight
blk.3.attn_k.bias             model.layers.3.self_attn.k_proj.bias
blk.3.attn_v.weight           model.language_model.layers.3.self_attn.v_proj.weight
blk.3.attn_output.weight      model.layers.3.self_attn.o_proj.weight
blk.3.attn_norm.weight        model.layers.3.input_layernorm.weight
blk.3.ffn_norm.weight         model.layers.3.post_attention_layernorm.weight
blk.12.ffn_gate.weight        language_model.model.layers.12.mlp.gate_proj.weight
blk.12.ffn_down.weight        model.layers.12.mlp.down_proj.weight
blk.0.attn_sinks.weight       model.layers.0.self_attn.sinks
blk.0.ffn_gate_inp.weight     model.layers.0.mlp.gate.weight
blk.0.ffn_down_exps.bias      model.layers.0.mlp.experts.down_proj_bias
blk.0.attn_kv_a_mqa.weight    model.layers.0.self_attn.kv_a_proj_with_mqa.weight
"""


@pytest.mark.parametrize("line", TABLE.split("\n")[1:-1])
def test_counterparts(line):
    gguf, other = line.split()
    assert plain_name(other) in counterparts(gguf)


def test_experts_kept_one_by_one():
    assert "layers.2.mlp.experts.7.up_proj.weight" in expert_names("blk.2.ffn_up_exps.weight", 7)
    names = expert_names("blk.2.ffn_gate_exps.weight", 0)
    assert "layers.2.block_sparse_moe.experts.0.w1.weight" in names


def test_a_vision_tower_has_names_of_its_own():
    name = "model.visual.layers.0.mlp.up_proj.weight"
    assert plain_name(name) == name


HEADS = 4


@pytest.fixture
def llama(tmp_path):
    """One layer as a GPTQ folder and as the GGUF that llama.cpp's converter makes of it."""
    rng = np.random.default_rng(0)
    hf = {
        "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
        "blk.0.attn_k": "model.layers.0.self_attn.k_proj",
        "blk.0.ffn_gate": "model.layers.0.mlp.gate_proj",
        "blk.0.ffn_down": "model.layers.0.mlp.down_proj",
    }
    weights = {name: Matrix.random(symmetric=True, seed=at) for at, name in enumerate(hf)}
    norm = rng.normal(1, 0.1, 128).astype(np.float32)
    norm = (norm.view(np.uint32) & 0xFFFF0000).view(np.float32)
    bias = rng.normal(0, 1, 64).astype(np.float16)
    parts = {hf[name]: weight.gptq() for name, weight in weights.items()}
    parts["model.layers.0.self_attn.q_proj"]["bias"] = bias
    parts["model.layers.0.input_layernorm"] = {
        "weight": (norm.view(np.uint32) >> 16).astype(np.uint16)
    }
    folder = save(tmp_path / "hf", parts, GPTQ_CONFIG)
    tensors = []
    order = rotary(64, HEADS)
    for name, weight in weights.items():
        turned = weight
        if name.endswith(("_q", "_k")):
            turned = Matrix(weight.codes[order], weight.zeros, weight.scales[order], weight.group)
        tensors.append((f"{name}.weight", 2, [128, 64], turned.q4_0()))
    tensors.append(("blk.0.attn_q.bias", 0, [64], bias[order].astype(np.float32).tobytes()))
    tensors.append(("blk.0.attn_norm.weight", 0, [128], norm.tobytes()))
    tensors.append(("rope_freqs.weight", 0, [16], bytes(64)))
    metadata = {"general.architecture": "llama", "llama.attention.head_count": HEADS}
    return folder, save_gguf(tmp_path / "m.gguf", tensors, metadata)


@pytest.mark.parametrize("turned", [False, True])
def test_conversion_to_gguf_is_no_fault(llama, compare, turned):
    a, b = llama[::-1] if turned else llama
    code, report = compare(a, b)
    result = report["result"]
    assert (code, report["findings"]) == (0, [])
    assert result["relation"] == "equal-up-to"
    assert result["transformations"] == [{"kind": "rotary-rows", "rule": None, "layers": 3}]
    assert result["computed"] == ["rope_freqs.weight"]
    relations = {
        layer["name"] if not turned else layer["other_name"]: layer["relation"]
        for layer in result["layers"]
    }
    assert relations["model.layers.0.input_layernorm.weight"] == "equal"
    assert len(result["layers"]) == report["coverage"]["checked"] == 6


def test_a_fault_under_the_rotary_order_is_still_found(llama, compare, tmp_path):
    """One code changed in a permuted Q: neither equal nor equal up to the order."""
    folder, path = llama
    raw = bytearray(path.read_bytes())
    at = raw.index(Matrix.random(symmetric=True, seed=0).q4_0()[:18]) + 5
    raw[at] ^= 3
    other = tmp_path / "x.gguf"
    other.write_bytes(raw)
    code, report = compare(folder, other)
    assert code == 1
    [finding] = report["findings"]
    assert (finding["code"], finding["tensor"]) == ("Q611", "blk.0.attn_q.weight")


def test_experts_one_by_one_against_one_tensor(tmp_path, compare):
    experts = [Matrix.random(symmetric=True, seed=at) for at in range(3)]
    parts = {
        f"model.layers.0.mlp.experts.{at}.up_proj": expert.awq()
        for at, expert in enumerate(experts)
    }
    folder = save(tmp_path / "a", parts, AWQ_CONFIG)
    blocks = b"".join(expert.q4_0() for expert in experts)
    path = save_gguf(tmp_path / "b.gguf", [("blk.0.ffn_up_exps.weight", 2, [128, 64, 3], blocks)])
    code, report = compare(folder, path)
    assert (code, report["result"]["relation"]) == (0, "equal")
    assert report["result"]["layers"][0]["shape"] == [3, 64, 128]
    blocks = b"".join(expert.q4_0() for expert in experts[::-1])
    path = save_gguf(tmp_path / "c.gguf", [("blk.0.ffn_up_exps.weight", 2, [128, 64, 3], blocks)])
    code, report = compare(folder, path)
    [finding] = report["findings"]
    assert (code, finding["code"], finding["data"]["moved"]) == (1, "Q603", 128)


def test_experts_with_an_order_each(tmp_path, compare, monkeypatch):
    """Act-order of its own in every expert: scales are set side by side column by column."""
    from qassay.comparison import weights

    monkeypatch.setattr(weights, "SLAB", 128 * 96)  # one expert and a half
    rng = np.random.default_rng(2)
    experts = [Matrix.random(symmetric=True, seed=at) for at in range(3)]
    parts, blocks = {}, []
    for at, expert in enumerate(experts):
        index = rng.permutation(np.arange(128) // 32)
        parts[f"model.layers.0.mlp.experts.{at}.up_proj"] = expert.gptq(g_idx=index)
        scales = expert.scales[:, index]
        # Q4_0 cannot hold an act-order: one with a scale for each weight would be equal.
        blocks.append(Matrix(expert.codes, expert.zeros, scales[:, ::32], 32).q4_0())
    folder = save(tmp_path / "a", parts, {**GPTQ_CONFIG, "desc_act": True})
    same = save(tmp_path / "b", parts, {**GPTQ_CONFIG, "desc_act": True})
    assert compare(folder, same)[1]["result"]["relation"] == "equal"
    tensors = [("blk.0.ffn_up_exps.weight", 2, [128, 64, 3], b"".join(blocks))]
    code, report = compare(folder, save_gguf(tmp_path / "c.gguf", tensors))
    [layer] = report["result"]["layers"]
    assert (code, layer["relation"]) == (1, "different")
    assert layer["difference"]["codes"]["different"] == 0
    assert layer["difference"]["scales"]["different"] > 0


def test_experts_that_are_not_alike_are_not_compared(tmp_path, compare):
    parts = {
        "model.layers.0.mlp.experts.0.up_proj": Matrix.random(symmetric=True).awq(),
        "model.layers.0.mlp.experts.1.up_proj": Matrix.random(32, symmetric=True).awq(),
    }
    folder = save(tmp_path / "a", parts, AWQ_CONFIG)
    blocks = Matrix.random(128, symmetric=True).q4_0()
    path = save_gguf(tmp_path / "b.gguf", [("blk.0.ffn_up_exps.weight", 2, [128, 64, 2], blocks)])
    code, report = compare(folder, path)
    assert (code, report["result"]["relation"]) == (3, "not-compared")


def test_prefixes_of_wrappers_do_not_matter(tmp_path, compare):
    matrix = Matrix.random()
    a = save(tmp_path / "a", {"model.layers.0.mlp.up_proj": matrix.gptq()}, GPTQ_CONFIG)
    b = save(tmp_path / "b", {"language_model.model.layers.0.mlp.up_proj": matrix.gptq()},
             GPTQ_CONFIG)  # fmt: skip
    assert compare(a, b)[1]["result"]["relation"] == "equal"
