"""Linears from configurations, headers and tables; and what hostile ones get."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fit_models import LLAMA_3_8B, QWEN3_5_2B, QWEN3_8B, ask, qwen3_5, shapes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qassay.containers.sniff import HEAD_BYTES
from qassay.containers.sources import MmapSource
from qassay.core.errors import InputError
from qassay.encodings.registry import open_with_encodings
from qassay.runtimes.shapes.headers import shapes_of_container
from qassay.runtimes.shapes.table import shapes_of_table
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"


def by_tail(found):
    return {one.name.rpartition("layers.")[2]: (one.n, one.k) for one in found.linears}


def test_qwen3_5_2b():
    found = shapes(QWEN3_5_2B)
    assert len(found.linears) == 18 * 5 + 6 * 4 + 24 * 3  # the head is tied
    sizes = by_tail(found)
    assert {name[2:]: size for name, size in sizes.items() if name.startswith("0.")} == {
        "linear_attn.in_proj_qkv": (6144, 2048),
        "linear_attn.in_proj_z": (2048, 2048),
        "linear_attn.in_proj_b": (16, 2048),
        "linear_attn.in_proj_a": (16, 2048),
        "linear_attn.out_proj": (2048, 2048),
        "mlp.gate_proj": (6144, 2048),
        "mlp.up_proj": (6144, 2048),
        "mlp.down_proj": (2048, 6144),
    }
    assert sizes["3.self_attn.q_proj"] == (4096, 2048)  # the gate of the output included
    assert sizes["3.self_attn.k_proj"] == sizes["3.self_attn.v_proj"] == (512, 2048)
    assert sizes["3.self_attn.o_proj"] == (2048, 2048)
    gate = next(one for one in found.linears if one.name.endswith("in_proj_a"))
    assert (gate.role, gate.parallel, gate.layers) == ("gdn_gate", "col", (0,))
    assert gate.fused_as.endswith("layers.0.linear_attn.in_proj_ba")


def test_llama_and_qwen3():
    found = shapes(LLAMA_3_8B)
    assert sum(one.weights for one in found.linears) == 7_504_658_432  # 8.03 B less embeddings
    assert found.linears[-1].name == "lm_head"
    sizes = by_tail(shapes(QWEN3_8B))
    assert sizes["35.self_attn.q_proj"] == (4096, 4096)
    assert sizes["35.self_attn.v_proj"] == (1024, 4096)


def test_experts():
    found = shapes(qwen3_5(2048, 32, layers=4, moe=True))
    sizes = by_tail(found)
    assert sizes["0.mlp.experts.gate_up_proj"] == (1024, 2048)
    assert sizes["0.mlp.gate"] == (256, 2048)
    assert sizes["0.mlp.shared_expert_gate"] == (1, 2048)
    each = shapes({**QWEN3_8B, "model_type": "qwen3_moe", "num_hidden_layers": 2,
                   "num_experts": 128, "moe_intermediate_size": 768})  # fmt: skip
    assert by_tail(each)["1.mlp.experts.127.down_proj"] == (4096, 768)


def test_vision():
    vision = {"depth": 2, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096,
              "deepstack_visual_indexes": [8, 16]}  # fmt: skip
    text = {key: value for key, value in QWEN3_8B.items() if key != "model_type"}
    found = shapes({"model_type": "qwen3_vl", "text_config": text, "vision_config": vision})
    towers = {one.name: (one.n, one.k) for one in found.linears if one.role == "vision"}
    assert towers["model.visual.blocks.1.mlp.linear_fc1"] == (4304, 1152)
    assert towers["model.visual.merger.linear_fc2"] == (4096, 4608)
    assert "model.visual.deepstack_merger_list.1.linear_fc1" in towers
    assert found.linears[0].name == "model.language_model.layers.0.self_attn.q_proj"


def test_configuration_and_headers_agree():
    """A checkpoint that a quantizer wrote: the same Linears by both ways (o_proj is left out)."""
    folder = CHECKPOINTS / "source-tiny-llama-f16"
    config = shapes(json.loads((folder / "config.json").read_text()))
    with_weights = open_with_encodings(folder)
    headers = shapes_of_container(with_weights)
    with_weights.close()
    wanted = {one.name: (one.n, one.k, one.role, one.parallel, one.fused_as)
              for one in config.linears}  # fmt: skip
    got = {one.name: (one.n, one.k, one.role, one.parallel, one.fused_as)
           for one in headers.linears}  # fmt: skip
    assert got.items() <= wanted.items()
    assert {name.rpartition(".")[2] for name in wanted.keys() - got.keys()} <= {"o_proj"}


@pytest.mark.parametrize(
    "name", ["autoround-w4a16", "autoround-w4a16-awq", "gptqmodel-gptq-w4g128-desc",
             "llmcompressor-w4a16_asym"],
)  # fmt: skip
def test_quantized_headers(name):
    container = open_with_encodings(CHECKPOINTS / name)
    found = shapes_of_container(container)
    container.close()
    assert len(found.linears) == 6
    assert all(one.quantized and one.bits == 4 and one.group == 128 for one in found.linears)
    assert {(one.n, one.k) for one in found.linears} == {
        (256, 256), (128, 256), (512, 256), (256, 512),
    }  # fmt: skip


def test_gguf_headers(tmp_path):
    rows = [("blk.0.attn_q.weight", 0, [64, 32], bytes(8192)),
            ("blk.0.ssm_alpha.weight", 0, [64, 16], bytes(4096)),
            ("blk.0.attn_norm.weight", 0, [64], bytes(256)),
            ("token_embd.weight", 0, [64, 8], bytes(2048))]  # fmt: skip
    path = tmp_path / "m.gguf"
    path.write_bytes(write_gguf({"general.architecture": "qwen35"}, rows))
    container = open_with_encodings(path)
    found = shapes_of_container(container)
    container.close()
    assert [(one.name, one.n, one.k, one.role) for one in found.linears] == [
        ("blk.0.attn_q", 32, 64, "attention"), ("blk.0.ssm_alpha", 16, 64, "gdn_gate"),
    ]  # fmt: skip


HOSTILE = [None, -1, 0, 1.5, "4096", True, [], {}, 1 << 40, 1 << 90, "\x1b[31m"]
NEEDED = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "intermediate_size", "linear_num_value_heads", "linear_num_key_heads",
          "linear_key_head_dim", "linear_value_head_dim"]  # fmt: skip


@pytest.mark.parametrize("key", NEEDED)
@pytest.mark.parametrize("value", HOSTILE, ids=repr)
def test_a_hostile_key_is_named(key, value):
    config = json.loads(json.dumps(QWEN3_5_2B))
    config["text_config"][key] = value
    with pytest.raises(InputError) as caught:
        shapes(config)
    assert f"text_config.{key}" in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("key", NEEDED)
def test_a_missing_key_is_named(key):
    config = json.loads(json.dumps(QWEN3_5_2B))
    del config["text_config"][key]
    with pytest.raises(InputError, match=f"text_config.{key} is missing"):
        shapes(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [("layer_types", ["full_attention"]), ("layer_types", [3] * 24), ("layer_types", "full"),
     ("layer_types", ["mamba"] * 24), ("full_attention_interval", 0)],
)  # fmt: skip
def test_other_keys(key, value):
    config = json.loads(json.dumps(QWEN3_5_2B))
    config["text_config"][key] = value
    with pytest.raises(InputError, match=key):
        shapes(config)


def test_unknown_architectures_are_not_guessed(tmp_path):
    report = ask(tmp_path, {"model_type": "gpt_oss", "hidden_size": 2880}, "sophgo:bm1684x")
    assert (report.verdict, report.exit_code()) == ("incomplete", 3)
    [skip] = report.coverage.skipped
    assert "gpt_oss" in skip.reason
    assert "qwen3_5_moe" in skip.reason


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False),
              st.text(max_size=6)),
    lambda inner: st.one_of(st.lists(inner, max_size=3),
                            st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=6,
)  # fmt: skip


@given(change=st.dictionaries(st.sampled_from([*NEEDED, "layer_types", "vocab_size"]), json_values),
       top=st.dictionaries(st.sampled_from(["text_config", "vision_config", "model_type", "dtype",
                                            "tie_word_embeddings", "quantization_config"]),
                           json_values))  # fmt: skip
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_configuration(tmp_path, change, top):
    config = json.loads(json.dumps(QWEN3_5_2B))
    config["text_config"] |= change
    ask(tmp_path, config | top, "sophgo:bm1684x")


TABLES = {
    ".csv": "name,N,K,role\na.up_proj,96,4096,\n\nb.gate,1,64,gate\n",
    ".json": '[{"name": "a.up_proj", "N": 96, "K": 4096}, {"layer": "b.gate", "n": 1, "k": 64}]',
    ".yaml": "shapes:\n- {name: a.up_proj, N: 96, K: 4096}\n- {layer: b.gate, N: 1, K: 64}\n",
}


@pytest.mark.parametrize("suffix", TABLES)
def test_tables(tmp_path, suffix):
    found = shapes_of_table(TABLES[suffix], "t", suffix)
    assert [(one.name, one.n, one.k) for one in found.linears] == [
        ("a.up_proj", 96, 4096), ("b.gate", 1, 64),
    ]  # fmt: skip
    path = tmp_path / f"t{suffix}"
    path.write_text(TABLES[suffix])
    report = ask(tmp_path, path, "sophgo:bm1684x@1.28.1")
    assert [finding.count for finding in report.findings] == [1, 1]


@pytest.mark.parametrize(
    ("suffix", "text"),
    [(".csv", ""), (".csv", "name,N\na,1\n"), (".csv", "name,N,K\na,-1,2\n"),
     (".csv", "name,N,K\na,1e9,2\n"), (".csv", "name,N,K\n,1,2\n"), (".csv", "name,N,K\na,1\n"),
     (".csv", "name,N,K\na," + "9" * 5000 + ",2\n"), (".csv", "name,N,K\n"),
     (".json", "[1]"), (".json", "[]"), (".json", "["), (".json", '[{"name": 3, "N": 1, "K": 1}]'),
     (".json", "[" * 100_000), (".yaml", "a: &a [1]\nb: *a\n"), (".yaml", "[" * 5000),
     (".yaml", "- {name: a, N: !!python/object:os.system 1, K: 2}"), (".yaml", "3"),
     (".yaml", "- {name: a, N: 2001-01-01, K: 2}"), (".yaml", "- {name: a, N: true, K: 2}")],
    ids=str,
)  # fmt: skip
def test_wrong_tables(suffix, text):
    with pytest.raises(InputError):
        shapes_of_table(text, "t", suffix)


def test_headers_only(tmp_path, monkeypatch):
    """Two hundred shards: what is read is the headers, to the byte."""
    names, total = {}, 0
    for shard in range(200):
        file = f"model-{shard + 1:05d}-of-00200.safetensors"
        tensors = [
            SafeTensor(f"model.layers.{shard}.mlp.{part}.weight", "BF16", [64, 128], bytes(16384))
            for part in ("up_proj", "gate_proj")
        ]
        data = write_safetensors(tensors)
        (tmp_path / file).write_bytes(data)
        total += len(data) - 2 * 16384
        names |= {tensor.name: file for tensor in tensors}
    index = {"metadata": {}, "weight_map": names}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    real, seen = MmapSource.read, {"bytes": 0}

    def read(self, offset, length):
        if self.name.endswith(".safetensors"):
            assert offset + length <= self.size - 2 * 16384 or length <= HEAD_BYTES
            seen["bytes"] += length
        return real(self, offset, length)

    monkeypatch.setattr(MmapSource, "read", read)
    report = ask(tmp_path, tmp_path, "sophgo:bm1684x")
    assert report.coverage.checked == 400
    assert report.result["fits"][0]["bytes_read"] == total
    assert report.coverage.bytes == 0
    assert seen["bytes"] <= total + 200 * HEAD_BYTES  # a look at what each file is, and its header
