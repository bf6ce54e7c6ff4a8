"""What the words of `--to` mean."""

from __future__ import annotations

import pytest

import qassay
from qassay.core.errors import UsageError
from qassay.encodings import by_id
from qassay.runtimes.targets import FALLBACKS, parse_targets, target
from qassay.runtimes.targets_recipes import RECIPES, Layout, keeps_float, role_of

LAYERS = 32
SHAPES = {
    "attn_q": (4096, 4096),
    "attn_k": (1024, 4096),
    "attn_v": (1024, 4096),
    "attn_output": (4096, 4096),
    "ffn_gate": (14336, 4096),
    "ffn_up": (14336, 4096),
    "ffn_down": (4096, 14336),
}
LLAMA = {
    "token_embd.weight": (128256, 4096),
    "output.weight": (128256, 4096),
    **{f"blk.{i}.{part}.weight": shape for i in range(LAYERS) for part, shape in SHAPES.items()},
}
HUGGING_FACE = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def counts(recipe: str, tensors: dict[str, tuple[int, ...]] = LLAMA) -> dict[str, int]:
    layout = Layout.of(tensors.items())
    found: dict[str, int] = {}
    for name, shape in tensors.items():
        kind = RECIPES[recipe](name, shape, layout).removeprefix("ggml.")
        found[kind] = found.get(kind, 0) + 1
    return found


# Llama-3-8B: of 32 layers, llama-quantize gives the more bits to 16 (the first and last eighth,
# and every third between); the counts are those its published files have.
@pytest.mark.parametrize(
    ("recipe", "wanted"),
    [
        ("Q4_K_M", {"q4_k": 193, "q6_k": 33}),
        ("Q5_K_M", {"q5_k": 193, "q6_k": 33}),
        ("Q4_K_S", {"q4_k": 217, "q5_k": 8, "q6_k": 1}),
        ("Q5_K_S", {"q5_k": 225, "q6_k": 1}),
        ("Q3_K_S", {"q3_k": 225, "q6_k": 1}),
        ("Q3_K_M", {"q3_k": 129, "q4_k": 92, "q5_k": 4, "q6_k": 1}),
        ("Q3_K_L", {"q3_k": 129, "q5_k": 96, "q6_k": 1}),
        ("Q2_K_M", {"q2_k": 129, "q3_k": 64, "q4_k": 32, "q6_k": 1}),
    ],
)
def test_recipes_of_llama_3_8b(recipe, wanted):
    assert counts(recipe) == wanted


@pytest.mark.parametrize("recipe", RECIPES)
def test_names_of_hugging_face_mean_the_same(recipe):
    renamed = {"model.embed_tokens.weight": LLAMA["token_embd.weight"],
               "lm_head.weight": LLAMA["output.weight"]}  # fmt: skip
    for i in range(LAYERS):
        for part, shape in SHAPES.items():
            renamed[f"model.layers.{i}.{HUGGING_FACE[part]}.weight"] = shape
    assert counts(recipe, renamed) == counts(recipe)


def test_an_embedding_that_is_the_output_as_well():
    tensors = {name: shape for name, shape in LLAMA.items() if name != "output.weight"}
    assert counts("Q4_K_M", tensors) == {"q4_k": 192, "q6_k": 33}


@pytest.mark.parametrize(
    "name",
    ["blk.0.attn_norm.weight", "model.layers.0.mlp.gate.weight", "blk.0.ffn_gate_inp.weight",
     "embeddings.position_embeddings.weight", "token_types.weight", "model.norm.weight"],
)  # fmt: skip
def test_stays_float(name):
    assert keeps_float(name, (8, 256))


def test_roles():
    assert role_of("encoder.layer.3.attention.output.dense.weight") == "o"
    assert role_of("encoder.layer.3.output.dense.weight") == "down"
    assert role_of("blk.3.ffn_down_exps.weight") == "down"
    assert role_of("blk.3.attn_q.weight") == ""


def test_words():
    assert target("q8_0").word == "ggml.q8_0"
    assert target("GGML.Q8_0").word == "ggml.q8_0"
    assert target("q4_k_m").word == "Q4_K_M"
    assert target("W4BF16").word == "sophgo.w4bf16"
    assert [each.word for each in parse_targets(["Q8_0,f16", "q8_0"])] == ["ggml.q8_0", "f16"]


@pytest.mark.parametrize("word", ["Q9_9", "i8", "\x1b[31m"])
def test_a_word_that_means_nothing(word):
    with pytest.raises(UsageError, match="no target") as caught:
        target(word)
    assert "\x1b" not in str(caught.value)
    assert "Q4_K_M" in (caught.value.expected or "")


def test_group_size_is_checked():
    with pytest.raises(UsageError, match="group-size"):
        parse_targets(["w4bf16"], 0)


def test_api_takes_words(tmp_path):
    with pytest.raises(UsageError, match="no target"):
        qassay.check(tmp_path, to="nonsense")


def test_fall_backs_have_shorter_blocks():
    for name, instead in FALLBACKS.items():
        assert by_id(instead).block < by_id(name).block


def test_a_type_whose_scales_no_engine_foretells_is_no_target() -> None:
    for word in ("NVFP4", "ggml.nvfp4"):
        with pytest.raises(UsageError, match="no target called") as refused:
            target(word)
        assert "nvfp4" not in str(refused.value.expected)
