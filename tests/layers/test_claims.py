"""What configurations say of each layer: fixtures, every method's own words, and lies."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qassay.containers.opening import open_container
from qassay.core.container import Container
from qassay.encodings.layers.claims import Claims, LayerClaim, claims_of

CHECKPOINTS = Path(__file__).parent.parent / "fixtures" / "checkpoints"
LAYER = "model.layers.0."
Q = f"{LAYER}self_attn.q_proj"
DOWN = f"{LAYER}mlp.down_proj"
OUTSIDE = ("model.embed_tokens", "model.norm", f"{LAYER}input_layernorm")


def read(quantization: Any, *, files: dict[str, Any] | None = None, **config: Any) -> Claims:
    extra: dict[str, Any] = {"config": {"quantization_config": quantization, **config}}
    if files is not None:
        extra["quant_configs"] = files
    return claims_of(Container(path="m", format="folder", extra=extra))


def facts(claim: LayerClaim) -> tuple[Any, ...]:
    return claim.quantized, claim.kind, claim.bits, claim.group_size, claim.symmetric


def compressed(weights: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    plain = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
             "group_size": 128}  # fmt: skip
    group = {"targets": ["Linear"], "weights": plain if weights is None else weights}
    return {"quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}  # fmt: skip


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "GEMM"}
ROUND = {"quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
         "data_type": "int", "packing_format": "auto_round:auto_gptq"}  # fmt: skip
FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64],
       "activation_scheme": "dynamic", "scale_fmt": "ue8m0"}  # fmt: skip
NVFP4 = {"quant_algo": "NVFP4", "group_size": 16, "kv_cache_quant_algo": "FP8",
         "exclude_modules": ["lm_head", "model.layers.3*", "*.k_proj"]}  # fmt: skip
SAMPLES = {
    "gptq": {**GPTQ, "dynamic": {"-:.*k_proj": {}, "+:.*v_proj": {"bits": 8}}},
    "awq": {**AWQ, "modules_to_not_convert": ["lm_head"]},
    "auto-round": {**ROUND, "extra_config": {Q: {"bits": 16}}, "block_name_to_quantize": "model"},
    "compressed": compressed(kv_cache_scheme={"num_bits": 8, "type": "float", "dynamic": False}),
    "fp8": {**FP8, "modules_to_not_convert": ["lm_head"]},
    "modelopt": {"quant_method": "modelopt", **NVFP4, "quantized_layers": {DOWN: NVFP4}},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
}

# Method, format, kind, bits, group, symmetric, act_order, activations, and what the head is.
EXPECTED: dict[str, tuple[Any, ...]] = {
    "autoround-w3a16": ("auto-round", "auto_round:auto_gptq", "int", 3, 128, True, None, None),
    "autoround-w4a16": ("auto-round", "auto_round:auto_gptq", "int", 4, 128, True, None, None),
    "autoround-w4a16-asym-gptq": ("gptq", "", "int", 4, 128, False, False, None),
    "autoround-w4a16-awq": ("awq", "gemm", "int", 4, 128, False, None, None),
    "autoround-fp8_block": (
        "auto-round", "auto_round:fp8", "float", 8, None, True, None, "dynamic"),
    "gptqmodel-gptq-w4g128-desc": ("gptq", "gptq", "int", 4, 128, True, True, None),
    "llmcompressor-fp8_block": (
        "compressed-tensors", "float-quantized", "float", 8, None, True, False, "dynamic"),
    "llmcompressor-mxfp4a16": (
        "compressed-tensors", "mxfp4-pack-quantized", "float", 4, 32, True, False, "none"),
    "llmcompressor-nvfp4a16": (
        "compressed-tensors", "nvfp4-pack-quantized", "float", 4, 16, True, False, "none"),
    "llmcompressor-w4a16": (
        "compressed-tensors", "pack-quantized", "int", 4, 128, True, False, "none"),
    "llmcompressor-w4a16_asym": (
        "compressed-tensors", "pack-quantized", "int", 4, 128, False, False, "none"),
}  # fmt: skip
UNREAD = {"bnb-nf4": "bitsandbytes", "bnb-nf4-dq": "bitsandbytes"}
UNCLAIMED = {"hqq-b4g64", "source-tiny-llama-f16"}


def test_every_fixture_is_accounted_for() -> None:
    assert {path.name for path in CHECKPOINTS.iterdir()} == {*EXPECTED, *UNREAD, *UNCLAIMED}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_fixture(name: str) -> None:
    claims = claims_of(open_container(CHECKPOINTS / name))
    assert claims.known
    assert claims.defects == ()
    assert claims.source == "config.json: quantization_config"
    for module in (Q, DOWN):
        one = claims.of(module)
        assert one.quantized is True
        found = (one.method, one.format, one.kind, one.bits, one.group_size, one.symmetric,
                 one.act_order, one.activations)  # fmt: skip
        assert found == EXPECTED[name]
        assert one.block == ((128, 128) if "fp8_block" in name else None)
    head = claims.of("lm_head")
    assert head.quantized is False
    assert head.because in ("lm_head", "block_name_to_quantize")
    assert [claims.of(module).quantized for module in OUTSIDE] == [None, None, None]


@pytest.mark.parametrize("name", sorted(UNREAD))
def test_fixture_of_a_method_that_is_not_read(name: str) -> None:
    claims = claims_of(open_container(CHECKPOINTS / name))
    assert (claims.method, claims.known, claims.of(Q).quantized) == (UNREAD[name], False, None)


@pytest.mark.parametrize("name", sorted(UNCLAIMED))
def test_fixture_without_a_configuration(name: str) -> None:
    claims = claims_of(open_container(CHECKPOINTS / name))
    assert (claims.method, claims.known, claims.of(Q)) == ("", True, LayerClaim())


@pytest.mark.parametrize(
    "method",
    ["hqq", "quanto", "torchao", "eetq", "aqlm", "spqr", "vptq", "higgs", "bitnet", "quark",
     "fp_quant", "my_own"],
)  # fmt: skip
def test_method_that_is_not_read_is_kept(method: str) -> None:
    claims = read({"quant_method": method, "bits": 4})
    assert (claims.method, claims.known, claims.of(Q).quantized) == (method, False, None)
    assert claims.of(Q).method == method


def test_mlx_has_a_key_of_its_own() -> None:
    config = {"quantization": {"group_size": 64, "bits": 4}}
    claims = claims_of(Container(path="m", format="folder", extra={"config": config}))
    assert (claims.method, claims.known) == ("mlx", False)


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
@pytest.mark.parametrize("outer", ["", "text_config"])
def test_where_a_configuration_may_stand(key: str, outer: str) -> None:
    config: dict[str, Any] = {key: compressed()}
    config = {outer: config} if outer else config
    claims = claims_of(Container(path="m", format="folder", extra={"config": config}))
    assert facts(claims.of(Q)) == (True, "int", 4, 128, True)
    assert claims.source == f"config.json: {outer + '.' if outer else ''}{key}"


# GPTQ


def test_gptq_formats() -> None:
    assert read({**GPTQ, "checkpoint_format": "gptq_v2"}).of(Q).format == "gptq_v2"
    assert read({**GPTQ, "is_marlin_format": True}).of(Q).format == "marlin"
    (defect,) = read({**GPTQ, "format": "gptq", "checkpoint_format": "gptq_v2"}).defects
    assert defect.code == "Q106"


def test_gptq_dynamic_leaves_alone_and_overrides() -> None:
    rules = {r"-:.*\.mlp\..*": {}, r"+:.*\.0\..*q_proj": {"bits": 8, "group_size": 32},
             r".*k_proj": {"sym": False}}  # fmt: skip
    of = read({**GPTQ, "dynamic": rules}).of
    assert (of(DOWN).quantized, of(DOWN).because) == (False, r"-:.*\.mlp\..*")
    assert facts(of(Q)) == (True, "int", 8, 32, True)
    assert facts(of(f"{LAYER}self_attn.k_proj")) == (True, "int", 4, 128, False)
    assert facts(of(f"{LAYER}self_attn.v_proj")) == (True, "int", 4, 128, True)


@pytest.mark.parametrize(("stated", "claimed"), [(True, True), (False, False), (None, None)])
def test_gptq_head(stated: bool | None, claimed: bool | None) -> None:
    assert read({**GPTQ, "lm_head": stated}).of("lm_head").quantized is claimed


def test_gptq_modules_in_block() -> None:
    of = read({**GPTQ, "modules_in_block_to_quantize": [["self_attn.q_proj"]]}).of
    assert (of(Q).quantized, of(DOWN).quantized) == (True, False)


def test_routers_vision_and_the_like_are_not_claimed() -> None:
    of = read(GPTQ).of
    for module in ("model.layers.0.mlp.gate", "model.layers.0.block_sparse_moe.router",
                   "model.visual.blocks.0.attn.qkv", "model.layers.61.eh_proj",
                   "model.layers.0.linear_attn.conv1d"):  # fmt: skip
        assert of(module).quantized is None, module
    assert of("model.layers.0.mlp.experts.7.gate_proj").quantized is True


# AWQ


def test_awq() -> None:
    of = read({**AWQ, "modules_to_not_convert": ["visual", "mlp.gate"]}).of
    assert facts(of(Q)) == (True, "int", 4, 64, False)
    assert of(Q).format == "gemm"
    assert of("model.visual.blocks.0.fc").quantized is False
    # AutoAWQ takes `mlp.gate` for a part of `mlp.gate_proj`, transformers does not.
    assert (of(f"{LAYER}mlp.gate_proj").quantized, of(f"{LAYER}mlp.gate_proj").because) == (
        None,
        "mlp.gate",
    )
    assert of(f"{LAYER}mlp.gate").quantized is False


def test_awq_early_file() -> None:
    files = {"quant_config.json": {"w_bit": 4, "q_group_size": 32, "zero_point": False}}
    claims = claims_of(Container(path="m", format="folder", extra={"quant_configs": files}))
    assert (claims.method, claims.source) == ("awq", "quant_config.json")
    assert facts(claims.of(Q)) == (True, "int", 4, 32, True)


def test_awq_zero_point_against_sym() -> None:
    (defect,) = read({**AWQ, "sym": True}).defects
    assert (defect.code, defect.path) == ("Q106", "m/config.json")


# AutoRound


def test_auto_round_overrides() -> None:
    extra = {Q: {"bits": 16}, r".*k_proj": {"bits": 8, "group_size": -1},
             "lm_head": {"bits": 4}}  # fmt: skip
    of = read({**ROUND, "extra_config": extra, "block_name_to_quantize": "model.layers"}).of
    assert (of(Q).quantized, of(Q).because) == (False, Q)
    assert facts(of(f"{LAYER}self_attn.k_proj")) == (True, "int", 8, -1, True)
    assert of("lm_head").quantized is True
    assert of(DOWN).quantized is True
    assert of("model.visual.blocks.0.fc").quantized is False


def test_auto_round_blocks_and_activations() -> None:
    config = {**ROUND, "to_quant_block_names": "model.layers.1,model.layers.2", "act_bits": 8,
              "act_dynamic": True, "data_type": "mx_fp", "group_size": 16}  # fmt: skip
    claims = read(config)
    assert claims.of("model.layers.2.mlp.up_proj").activations == "dynamic"
    assert claims.of("model.layers.20.mlp.up_proj").quantized is False
    (defect,) = claims.defects
    assert (defect.code, defect.expected, defect.found) == ("Q106", 32, 16)


# compressed-tensors


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({"strategy": "channel", "num_bits": 8, "type": "int"}, ("int", 8, -1, None)),
        ({"strategy": "tensor", "num_bits": 8, "type": "float"}, ("float", 8, 0, None)),
        ({"strategy": "block", "num_bits": 8, "type": "float", "block_structure": [128, 64]},
         ("float", 8, None, (128, 64))),
        ({"group_size": 64, "num_bits": 5, "type": "INT"}, ("int", 5, 64, None)),
    ],
)  # fmt: skip
def test_compressed_strategies(weights: dict[str, Any], expected: tuple[Any, ...]) -> None:
    claim = read(compressed(weights)).of(Q)
    assert (claim.kind, claim.bits, claim.group_size, claim.block) == expected


@pytest.mark.parametrize(
    ("order", "index"),
    [("group", True), ("dynamic", True), ("weight", False), ("static", False), (None, False),
     (True, True)],
)  # fmt: skip
def test_compressed_actorder(order: Any, index: bool) -> None:
    assert read(compressed({"actorder": order})).of(Q).act_order is index


@pytest.mark.parametrize(
    ("activations", "word"),
    [(None, "none"), ({"dynamic": True}, "dynamic"), ({"dynamic": False}, "static"),
     ({"dynamic": "local"}, "static")],
)  # fmt: skip
def test_compressed_activations(activations: Any, word: str) -> None:
    config = compressed()
    config["config_groups"]["group_0"]["input_activations"] = activations
    assert read(config).of(Q).activations == word


def test_compressed_groups_by_name_expression_and_class() -> None:
    groups = {
        "a": {"targets": ["Linear"], "weights": {"num_bits": 4}},
        "b": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8}, "format": "x"},
        "c": {"targets": [Q], "weights": {"num_bits": 6}},
    }
    claims = read(compressed(config_groups=groups, ignore=["re:.*v_proj$", "lm_head"]))
    of = claims.of
    assert [of(DOWN).bits, of(f"{LAYER}self_attn.k_proj").bits, of(Q).bits] == [4, 8, 6]
    assert (of(f"{LAYER}self_attn.k_proj").format, of(DOWN).format) == ("x", "pack-quantized")
    assert of(f"{LAYER}self_attn.v_proj").because == "re:.*v_proj$"
    assert of(f"{LAYER}self_attn.v_proj").quantized is False
    assert of(Q).source == "quantization_config.config_groups.c"


def test_compressed_layers_that_no_target_means() -> None:
    groups = {"a": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4}}}
    of = read(compressed(config_groups=groups)).of
    assert (of(DOWN).quantized, of(Q).quantized) == (True, False)


def test_compressed_head() -> None:
    assert read(compressed(ignore=[])).of("lm_head").quantized is True
    assert read(compressed(ignore=[]), tie_word_embeddings=True).of("lm_head").quantized is None


def test_compressed_ignore_is_exact() -> None:
    of = read(compressed(ignore=[f"{LAYER}self_attn"])).of
    assert of(Q).quantized is True


def test_compressed_kv_cache_and_dense() -> None:
    claims = read(SAMPLES["compressed"])
    assert claims.kv_cache == {"num_bits": 8, "type": "float", "dynamic": False}
    assert read(compressed(format="dense")).of(Q).quantized is None


@pytest.mark.parametrize(
    ("layout", "change", "key"),
    [
        ("mxfp4-pack-quantized", {"scale_dtype": "torch.float8_e4m3fn"}, "scale_dtype"),
        ("mxfp4-pack-quantized", {"group_size": 16}, "group_size"),
        ("nvfp4-pack-quantized", {"num_bits": 8, "group_size": 16}, "num_bits"),
        ("nvfp4-pack-quantized", {"group_size": 32}, "group_size"),
        ("nvfp4-pack-quantized", {"group_size": 16, "type": "int"}, "type"),
        ("", {"is_mx": True, "scale_dtype": "torch.float8_e4m3fn"}, "scale_dtype"),
        ("pack-quantized", {"group_size": 0}, "group_size"),
        ("pack-quantized", {"group_size": -128}, "group_size"),
    ],
)
def test_compressed_contradictions(layout: str, change: dict[str, Any], key: str) -> None:
    weights = {"num_bits": 4, "type": "float", "group_size": 32, **change}
    (defect,) = read(compressed(weights, format=layout)).defects
    assert defect.code == "Q106"
    assert defect.data["key"].endswith(f"weights.{key}")


# FP8, MXFP4


def test_fp8() -> None:
    of = read({**FP8, "modules_to_not_convert": ["lm_head", f"{LAYER}mlp.gate"]}).of
    claim = of(Q)
    assert facts(claim) == (True, "float", 8, None, True)
    assert (claim.block, claim.scale_dtype, claim.activations) == ((128, 64), "ue8m0", "dynamic")
    assert of(f"{LAYER}mlp.gate").quantized is False
    assert of(f"{LAYER}mlp.gate_proj").quantized is True
    assert of("lm_head").quantized is False


def test_fbgemm() -> None:
    config = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": [f"{LAYER}self_attn"]}
    of = read(config).of
    assert (of(DOWN).group_size, of(DOWN).activations) == (-1, "dynamic")
    assert of(Q).quantized is False


def test_mxfp4_means_experts_only() -> None:
    of = read(SAMPLES["mxfp4"]).of
    claim = of(f"{LAYER}mlp.experts.gate_up_proj")
    assert facts(claim) == (True, "float", 4, 32, True)
    assert (of(Q).quantized, of(DOWN).quantized) == (False, None)


# modelopt


@pytest.mark.parametrize("form", ["file", "config"])
def test_modelopt(form: str) -> None:
    if form == "file":
        files = {"hf_quant_config.json": {"producer": {"name": "modelopt"}, "quantization": NVFP4}}
        claims = claims_of(Container(path="m", format="folder", extra={"quant_configs": files}))
    else:
        config = {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": NVFP4[
            "exclude_modules"], "kv_cache_scheme": {"type": "float", "num_bits": 8},
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float",
                                                      "group_size": 16}}}}  # fmt: skip
        claims = read(config)
    assert claims.defects == ()
    assert claims.kv_cache is not None
    assert (claims.kv_cache["type"], claims.kv_cache["num_bits"]) == ("float", 8)
    of = claims.of
    assert facts(of(Q)) == (True, "float", 4, 16, True)
    assert (of(Q).format, of(Q).activations) == ("NVFP4", "static")
    assert of("lm_head").quantized is False
    assert (of("model.layers.3.mlp.up_proj").because, of("model.layers.4.mlp.up_proj").quantized) \
        == ("model.layers.3*", True)  # fmt: skip
    assert of(f"{LAYER}self_attn.k_proj").because == "*.k_proj"


def test_modelopt_mixed() -> None:
    layers = {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16},
              Q: {"quant_algo": "FP8"}}  # fmt: skip
    config = {
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "quantized_layers": layers,
    }
    of = read(config).of
    assert facts(of("model.layers.0.mlp.experts.3.up_proj")) == (True, "float", 4, 16, True)
    assert facts(of(Q)) == (True, "float", 8, 0, True)
    assert of(DOWN).quantized is False


def test_modelopt_contradictions() -> None:
    base = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}
    assert [d.found for d in read(base).defects] == [32]
    group = {"weights": {"num_bits": 8, "type": "float"}}
    config = {**base, "group_size": 16, "config_groups": {"group_0": group}}
    (defect,) = read(config).defects
    assert (defect.expected, defect.found) == (4, 8)


@pytest.mark.parametrize(
    ("algo", "expected"),
    [("FP8", ("float", 8, 0)), ("fp8_pb_wo", ("float", 8, None)), ("W4A16_AWQ", ("int", 4, 128)),
     ("W8A8_SQ_PER_CHANNEL", ("int", 8, -1)), ("SOMETHING", (None, None, 128))],
)  # fmt: skip
def test_modelopt_algorithms(algo: str, expected: tuple[Any, ...]) -> None:
    claim = read({"quant_method": "modelopt", "quant_algo": algo, "group_size": 128}).of(Q)
    assert (claim.kind, claim.bits, claim.group_size) == expected


# Names


@pytest.mark.parametrize(
    ("entry", "parts"),
    [
        ("self_attn.qkv_proj", ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
        ("mlp.gate_up_proj", ["mlp.gate_proj", "mlp.up_proj"]),
        ("linear_attn.in_proj_ba", ["linear_attn.in_proj_b", "linear_attn.in_proj_a"]),
        ("linear_attn.in_proj_qkvz", ["linear_attn.in_proj_qkv", "linear_attn.in_proj_z"]),
    ],
)
def test_fused_names(entry: str, parts: list[str]) -> None:
    of = read(compressed(ignore=[LAYER + entry])).of
    assert [of(LAYER + part).quantized for part in parts] == [False] * len(parts)
    assert of(LAYER + parts[0]).because == LAYER + entry
    assert of(DOWN).quantized is True
    of = read(compressed(ignore=[LAYER + part for part in parts])).of
    assert of(LAYER + entry).quantized is False
    # Some of the parts: a runtime that joins them cannot load it; nothing is claimed.
    of = read(compressed(ignore=[LAYER + parts[0]])).of
    assert of(LAYER + entry).quantized is None


def test_a_pattern_for_one_part_does_not_mean_the_others() -> None:
    of = read(compressed(ignore=[r"re:.*v_proj$"])).of
    parts = [of(f"{LAYER}self_attn.{part}_proj").quantized for part in "qkv"]
    assert parts == [True, True, False]
    of = read(compressed(ignore=[r"re:.*qkv_proj$"])).of
    assert of(Q).quantized is False


@pytest.mark.parametrize("one", ["model.", "language_model.model.", "model.language_model.", ""])
@pytest.mark.parametrize("two", ["model.", "language_model.model.", "model.language_model.", ""])
@pytest.mark.parametrize("pattern", [False, True])
def test_wrappers_in_front(one: str, two: str, pattern: bool) -> None:
    entry = f"{one}layers.7.mlp.up_proj"
    ignore = [f"re:^{entry}$".replace(".", r"\.")] if pattern else [entry]
    of = read(compressed(ignore=ignore)).of
    assert of(f"{two}layers.7.mlp.up_proj").quantized is False
    assert of(f"{two}layers.77.mlp.up_proj").quantized is True
    assert of(f"visual.{two}layers.7.mlp.up_proj").quantized is not False


@pytest.mark.parametrize(
    "pattern", [r"(a|aa)+$", "(.*.*.*.*)*x", "(" * 50 + "a" + ")" * 50, "a{1,99999}", "x" * 2000,
                r"(?i)lm_head", r"(.)\1", "[", "*", "(?<=a)b"],
)  # fmt: skip
def test_hostile_pattern_is_refused_or_harmless(pattern: str) -> None:
    claims = read(compressed(ignore=[f"re:{pattern}"]))
    claim = claims.of("model.layers.0." + "a" * 200)
    if claims.defects:
        assert claim.quantized is None
        assert [d.code for d in claims.defects] == ["Q106"]
    else:
        assert claim.quantized is True


def test_too_many_patterns_are_said_to_be() -> None:
    claims = read(compressed(ignore=[f"re:.*x{i}" for i in range(5000)]))
    assert any("too many patterns" in defect.message for defect in claims.defects)
    assert len(claims.defects) <= 32
    assert claims.of(Q).quantized is None


def test_long_names_are_not_matched() -> None:
    of = read(compressed()).of
    assert of("model.layers.0." + "a" * 300).quantized is None
    assert of("a." * 500 + "b").quantized is None


def test_rules_count_in_their_order() -> None:
    rules = {r"+:.*q_proj": {"bits": 8}, r"-:.*self_attn.*": {}, r"+:.*(?=x)": {"bits": 2}}
    claims = read({**GPTQ, "dynamic": rules})
    assert claims.of(Q).bits == 8
    assert claims.of(f"{LAYER}self_attn.k_proj").quantized is False
    assert claims.of(DOWN).quantized is None  # the rule that is not read may mean it
    first = {r"+:.*(?=x)": {"bits": 2}, **rules}
    assert read({**GPTQ, "dynamic": first}).of(Q).quantized is None


# Values


@pytest.mark.parametrize("value", [True, "4", 1e99, -4, 0, 99, [4], {"a": 1}, 4.0, float("nan")])
@pytest.mark.parametrize("config", [GPTQ, AWQ], ids=["gptq", "awq"])
def test_bits_of_the_wrong_kind(config: dict[str, Any], value: Any) -> None:
    claims = read({**config, "bits": value})
    assert claims.of(Q).bits is None
    assert claims.of(Q).quantized is True
    (defect,) = claims.defects
    assert (defect.code, defect.data["key"]) == ("Q106", "quantization_config.bits")


@pytest.mark.parametrize("value", [[1], "gptq", 3, True])
def test_configuration_that_is_none(value: Any) -> None:
    claims = read(value)
    assert claims.known is False
    assert [defect.code for defect in claims.defects] == ["Q106"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["Linear", "re:.*", "re:(", "*", Q, "gptq", "NVFP4", "e4m3"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=5) | st.sampled_from(["weights", "bits", "targets"]), inner),
    max_leaves=8,
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else (
        enumerate(value) if isinstance(value, list) else ())  # fmt: skip
    for key, inner in items:
        found += _places(inner, (*path, key))
    return found


@settings(max_examples=400, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(SAMPLES)), lie=JSON)
def test_any_json_in_place_of_any_value(data: st.DataObject, name: str, lie: Any) -> None:
    config = json.loads(json.dumps(SAMPLES[name]))
    *way, last = data.draw(st.sampled_from(_places(config)))
    holder = config
    for key in way:
        holder = holder[key]
    holder[last] = lie
    claims = read(config, files={"quantize_config.json": SAMPLES["gptq"]})
    for module in (Q, DOWN, "lm_head", "", "\x00\n", *OUTSIDE):
        claim = claims.of(module)
        assert claim.quantized in (True, False, None)
        assert claim.bits is None or type(claim.bits) is int
    for defect in claims.defects:
        assert defect.message.isprintable()


# Files


def test_two_files_that_disagree() -> None:
    files = {"quantize_config.json": {"bits": 8, "group_size": 128, "desc_act": True, "sym": True}}
    claims = read(GPTQ, files=files)
    assert facts(claims.of(Q)) == (True, "int", 4, 128, True)
    messages = sorted(defect.message for defect in claims.defects)
    assert messages == [
        "bits is 4 in config.json and 8 in quantize_config.json",
        "desc_act is false in config.json and true in quantize_config.json",
    ]
    assert {(d.code, d.path) for d in claims.defects} == {("Q106", "m/quantize_config.json")}


def test_two_files_that_name_different_methods() -> None:
    (defect,) = read(GPTQ, files={"quantization_config.json": {**ROUND, "sym": True}}).defects
    assert "quant_method is 'gptq'" in defect.message


def test_copies_agree_and_repeat_nothing() -> None:
    bad = {**GPTQ, "bits": "4"}
    assert read(GPTQ, files={"quantize_config.json": GPTQ}).defects == ()
    assert len(read({**bad, "bits": 0}, files={}).defects) == 1


def test_folder_reads_the_files_of_quantizers(tmp_path: Path) -> None:
    source = CHECKPOINTS / "autoround-w4a16-awq" / "model.safetensors"
    (tmp_path / "model.safetensors").write_bytes(source.read_bytes())
    (tmp_path / "quant_config.json").write_text('{"w_bit": 4, "q_group_size": 128}')
    (tmp_path / "hf_quant_config.json").write_text("[1]")
    (tmp_path / "quantize_config.json").write_text("[" * 100_000)
    container = open_container(tmp_path)
    assert container.extra["quant_configs"] == {
        "quant_config.json": {"w_bit": 4, "q_group_size": 128}
    }
    assert sorted((d.code, Path(d.path).name) for d in container.defects) == [
        ("Q003", "hf_quant_config.json"),
        ("Q003", "quantize_config.json"),
    ]
    assert claims_of(container).of(Q).group_size == 128


def test_readers_are_imported_when_asked_for() -> None:
    script = (
        "import sys; from qassay.core.container import Container;"
        "from qassay.encodings.layers.claims import claims_of;"
        "claims_of(Container(path='m', format='gguf'));"
        "assert not [m for m in sys.modules if 'claims_gptq' in m or 'claims_comp' in m]"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_ten_thousand_experts_take_seconds() -> None:
    ignore = ["lm_head", *[f"model.layers.{i}.mlp.gate" for i in range(60)], "re:.*self_attn.*",
              r"re:.*\.mlp\.shared_expert_gate$"]  # fmt: skip
    of = read(compressed(ignore=ignore)).of
    names = [f"model.layers.{i}.mlp.experts.{j}.{k}_proj" for i in range(20) for j in range(170)
             for k in ("gate", "up", "down")]  # fmt: skip
    assert all(of(name).quantized for name in names)
    machines = [patterns.patterns for patterns in of._of._left._together("")]  # type: ignore[attr-defined]
    assert all(machine.work < 20_000 for machine in machines)
