"""Metadata is untrusted: whatever it holds, Q110 compares what it can and never raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qassay.run.check import check
from qassay.run.options import CheckOptions
from qassay.testing.content import healthy
from qassay.testing.gguf_writer import GgufTensor, Typed, write_gguf
from qassay.testing.recipes import Case, run_case

KEYS = (
    "general.type",
    "tokenizer.ggml.tokens",
    "split.count",
    "general.alignment",
    *(
        f"llama.{key}"
        for key in (
            "vocab_size",
            "embedding_length",
            "block_count",
            "feed_forward_length",
            "expert_count",
            "nextn_predict_layers",
            "attention.head_count",
            "attention.head_count_kv",
            "attention.key_length",
            "attention.value_length",
        )
    ),
)
NAMES = (
    ("token_embd.weight", (32, 4)),
    ("output.weight", (32, 4)),
    ("output_norm.weight", (32,)),
    ("blk.0.attn_norm.weight", (32,)),
    ("blk.999999999.ffn_norm.weight", (32,)),
    (f"blk.{'9' * 50}.ffn_norm.weight", (32,)),
    ("blk.0.attn_q.weight", (32, 8)),
    ("blk.7.ffn_up.weight", (32, 8)),
    ("blk.0.ffn_up_exps.weight", (32, 2, 2)),
)
numbers = st.one_of(
    st.integers(0, 2**64 - 1).map(lambda n: Typed(10, n)),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: Typed(11, n)),
    st.integers(0, 64),
    st.booleans(),
    st.floats(width=32),
    st.floats().map(lambda n: Typed(12, n)),
)
values = st.one_of(
    numbers,
    st.text(max_size=8),
    st.lists(st.integers(0, 2**32 - 1), max_size=9).map(lambda many: Typed(9, many, 4)),
    st.lists(st.floats(width=32), max_size=9).map(lambda many: Typed(9, many, 6)),
    st.lists(st.text(max_size=3), max_size=9).map(lambda many: Typed(9, many, 8)),
)


def tensors():
    from qassay.encodings import by_id

    for name, axes in NAMES:
        count = 1
        for axis in axes:
            count *= axis
        yield GgufTensor(name, 0, axes, healthy(by_id("f32"), count).tobytes())


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(metadata=st.dictionaries(st.sampled_from(KEYS), values))
def test_any_gguf_metadata(tmp_path: Path, metadata):
    path = tmp_path / "model.gguf"
    path.write_bytes(write_gguf({"general.architecture": "llama", **metadata}, tensors()))
    result = check(path, CheckOptions(jobs=1))
    assert not result.facts.crashed


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
CONFIG_KEYS = (
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_nextn_predict_layers",
    "text_config",
)


@pytest.mark.parametrize("nested", [False, True])
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(config=st.dictionaries(st.sampled_from(CONFIG_KEYS), json_values))
def test_any_config(tmp_path_factory, nested, config):
    whole = {"model_type": "llama", **config}
    recipe = {
        "files": {
            "config.json": {"json": {"text_config": whole} if nested else whole},
            "model.safetensors": {
                "container": "safetensors",
                "tensors": [
                    {"name": "model.embed_tokens.weight", "encoding": "f32", "shape": [4, 8]},
                    {"name": "model.layers.3.mlp.up_proj.weight", "encoding": "f32",
                     "shape": [4, 8]},
                ],
            },
        },
        "expect": [],
    }  # fmt: skip
    result = run_case(Case("Q110", "any", recipe), tmp_path_factory.mktemp("config"))
    assert not result.facts.crashed
