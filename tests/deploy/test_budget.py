"""`qassay budget`: published numbers, sizes of real checkpoints, errors of the compiler."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from by_hand import CHECKPOINTS, TPU, checkpoint

from qassay.encodings.layers import assemble
from qassay.encodings.registry import open_with_encodings
from qassay.runtimes.budgets import DEFAULT, known, scheme
from qassay.runtimes.sophgo.bfloat16 import of_bf16
from qassay.runtimes.sophgo.mlir import read_mlir
from qassay.runtimes.sophgo.packing import unpack
from qassay.runtimes.sophgo.weight_file import weights_of

PUBLISHED = ("budget", "--shape", "96,4096", "--to", "w4", "--group-size", "64,128",
             "--on", "sophgo:bm1684x")  # fmt: skip


def test_the_published_numbers_in_one_command(document, run):
    code, report = document(*PUBLISHED)
    assert code == 0
    result = report["result"]
    first, second = result["encodings"]
    assert (first["formula"], first["bits_per_weight"], second["bits_per_weight"]) == (
        "4 + 24/g", 4.375, 4.1875,
    )  # fmt: skip
    assert (round(first["ratio"], 2), round(second["ratio"], 2)) == (3.66, 3.82)
    [shape] = result["shapes"]
    assert (shape["n"], shape["padded"]) == (96, 128)
    assert round(shape["more"] * 100) == 33
    assert [one["shape"] for one in shape["scales"]] == [[96, 64], [96, 32]]
    # 96 * 4096 weights, and a third more where they are padded
    assert (first["bytes"], first["padded"]) == (215040, 286720)
    assert first["as_compiled"] == 96 * 4096 * 2  # 1.30.2 makes it a 16-bit MatMul
    text = run(*PUBLISHED).stdout
    for words in ("4.375", "4.1875", "3.66", "3.82", "+33.3%", "[96, 64]", "[96, 32]", "128"):
        assert words in text, words


def test_the_older_compiler_aborts(document, run):
    line = (*PUBLISHED[:-1], "sophgo:bm1684x@1.28.1")
    _, report = document(*line)
    assert [(one["aborts"], one["as_compiled"]) for one in report["result"]["encodings"]] == [
        (1, None), (1, None),
    ]  # fmt: skip
    assert "aborts" in run(*line).stdout


@pytest.mark.parametrize(
    ("word", "group", "bits"),
    [
        ("w4", 32, 4.75), ("w8", 64, 8.375), ("sophgo.w4f16", 128, 4.1875),
        ("gptq.int4", 128, 4.15625), ("gptq.int3", 128, 3 + 19 / 128), ("gptq.int8", 32, 8.75),
        ("awq", 64, 4.3125), ("compressed.pack.int4", 128, 4.125), ("w8a16", 128, 8.125),
        ("compressed.pack.int4-asym", 128, 4.15625),
        ("nvfp4", None, 4.5), ("mxfp4", None, 4.25), ("mxfp8", None, 8.25),
        ("fp8", None, 8 + 32 / 16384),
        ("Q4_0", None, 4.5), ("q8_0", None, 8.5), ("Q4_K", None, 4.5), ("ggml.q6_k", None, 6.5625),
        ("Q2_K", None, 2.625), ("IQ4_XS", None, 4.25), ("ggml.mxfp4", None, 4.25),
        ("bf16", None, 16), ("f16", None, 16),
    ],
)  # fmt: skip
def test_bits_a_weight(word, group, bits):
    assert scheme(word).bits_per_weight(group) == pytest.approx(bits, abs=1e-12)


STORED = [
    ("autoround-w4a16", "gptq.int4", 0), ("autoround-w4a16-asym-gptq", "gptq.int4", 32),
    ("autoround-w3a16", "gptq.int3", 0), ("autoround-w4a16-awq", "awq.int4", 0),
    ("gptqmodel-gptq-w4g128-desc", "gptq.int4", 32), ("llmcompressor-w4a16_asym",
                                                      "compressed.pack.int4-asym", 0),
    ("llmcompressor-w4a16", "compressed.pack.int4", 0), ("llmcompressor-nvfp4a16", "nvfp4", 0),
    ("llmcompressor-mxfp4a16", "mxfp4", 0),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "word", "index"), STORED)
def test_the_formula_is_what_tools_store(tool, word, index):
    """`index` is g_idx, 32 bits an input feature, which the formula leaves out."""
    container = open_with_encodings(CHECKPOINTS / tool)
    layers = assemble(container).layers
    assert layers
    for layer in layers:
        stored = 8 * sum(
            part.nbytes for name, part in layer.parts.items() if not name.startswith("input_")
        )
        expected = scheme(word).bits_per_weight(layer.group, layer.weights) * layer.weights
        assert stored - index * layer.columns == pytest.approx(expected)
    container.close()


QWEN = {
    "model_type": "qwen3_5_text", "hidden_size": 2048, "num_hidden_layers": 24,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
    "intermediate_size": 6144, "linear_num_value_heads": 16, "linear_num_key_heads": 16,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "full_attention_interval": 4,
    "vocab_size": 248320, "tie_word_embeddings": True,
}  # fmt: skip


def test_a_configuration_alone(document, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN))
    line = ("budget", path, "--to", "w4", "--group-size", "64,128", "--on")
    code, report = document(*line, "sophgo:bm1684x")
    assert code == 0, report
    result = report["result"]
    [bad] = [one for one in result["shapes"] if one["padded"] != one["n"]]
    assert (bad["n"], bad["k"], bad["count"], bad["padded"], bad["more"]) == (16, 2048, 36, 64, 3.0)
    small = 16 * 2048 * 36
    for one, group in zip(result["encodings"], (64, 128), strict=True):
        bits = 4 + 24 / group
        assert one["misfit_weights"] == small
        assert one["bytes"] == math.ceil(result["weights"] * bits / 8)
        assert one["as_compiled"] == math.ceil(one["bytes"] + small * (16 - bits) / 8)
        assert one["padded"] == math.ceil(one["bytes"] + 3 * small * bits / 8)
    _, report = document(*line, "sophgo:bm1684x@1.28.1")
    assert {one["aborts"] for one in report["result"]["encodings"]} == {36}
    _, report = document(*line, "sophgo:cv184x")
    assert {one["misfit_weights"] for one in report["result"]["encodings"]} == {0}


def test_a_model_and_what_is_kept(document, tmp_path):
    rng = np.random.default_rng(4)
    arrays = {
        "model.layers.0.mlp.up_proj.weight": rng.standard_normal((64, 320)).astype(np.float16),
        "lm_head.weight": rng.standard_normal((100, 320)).astype(np.float16),
        "model.norm.weight": np.ones(320, np.float16),
    }
    source = checkpoint(tmp_path / "a", arrays)
    code, report = document("budget", source, "--to", "w4,Q4_K,Q4_0", "--group-size", "64,128")
    assert code == 0, report
    found = {(one["encoding"], one["group_size"]): one for one in report["result"]["encodings"]}
    kept, rest = 100 * 320 * 16, 64 * 320
    assert found["sophgo.w4bf16", 64]["bytes"] == math.ceil((kept + rest * 4.375) / 8)
    # 320 is no multiple of 128, nor of 256: 16 bits, and what llama-quantize takes for Q4_K
    assert found["sophgo.w4bf16", 128]["bytes"] == (kept + rest * 16) // 8
    assert found["ggml.q4_k", None]["bytes"] == math.ceil((kept + rest * 5.5) / 8)
    assert found["ggml.q4_0", None]["misfit_weights"] == 0
    assert found["ggml.q4_0", None]["kept_weights"] == 100 * 320
    assert {one["padded"] for one in report["result"]["encodings"]} == {None}


def test_measured_errors_are_those_of_the_compiler(document, tmp_path):
    folder = TPU / "bm1684x-1.30.2"
    with np.load(folder / "f32_n128_k256_w.npz") as kept:
        weight = kept["weight"].T.copy()  # the compiler's is [K, N]
    module = read_mlir(folder / "f32_n128_k256_bm1684x_w4bf16_tpu.mlir")
    [record] = module.linears
    with weights_of(module, folder) as weights:
        codes = unpack(weights.read(record.weight.name), 4)
        scales = of_bf16(weights.read(record.scale.name))
        zeros = weights.read(record.zero_point.name)
    group = record.q_group_size
    each = codes.astype(np.int16) - np.repeat(zeros, group, 1)
    theirs = each.astype(np.float32) * np.repeat(scales, group, 1)
    error = theirs.astype(np.float64) - weight
    source = checkpoint(tmp_path / "a", {"model.layers.0.mlp.up_proj.weight": weight})
    code, report = document("budget", source, "--measure", "--to", "w4,gptq", "--group-size", group)
    assert code == 0
    ours, other = report["result"]["measured"]
    assert ours["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)
    assert ours["max_error"] == pytest.approx(np.abs(error).max(), rel=1e-9)
    signal = 10 * np.log10(np.sum(weight.astype(np.float64) ** 2) / np.sum(error**2))
    assert ours["snr_db"] == pytest.approx(signal, rel=1e-9)
    assert ours["weights"] == weight.size
    assert (other["rmse"], "calibration" in other["reason"]) == (None, True)


def test_measured_in_pieces_is_the_same(document, monkeypatch):
    line = ("budget", CHECKPOINTS / "source-tiny-llama-f16", "--measure",
            "--to", "w4,w8,Q4_K,Q8_0,bf16,f16")  # fmt: skip
    _, whole = document(*line)
    from qassay.run import budget_measure

    monkeypatch.setattr(budget_measure, "CHUNK_WEIGHTS", 8192)
    _, pieces = document(*line)
    found = whole["result"]["measured"]
    for one, two in zip(found, pieces["result"]["measured"], strict=True):
        assert one["rmse"] == pytest.approx(two["rmse"], rel=1e-12)
        assert (one["weights"], one["max_error"]) == (two["weights"], two["max_error"])
    errors = [one["rmse"] for one in found if one["encoding"] == "sophgo.w4bf16"]
    assert errors == sorted(errors)  # larger groups, larger errors
    assert len(errors) == 3
    assert found[-1]["rmse"] == 0
    assert found[-1]["snr_db"] == "Infinity"  # the weights are f16


def test_weights_that_are_not_finite_are_left_out_and_said(document, tmp_path):
    good = np.random.default_rng(5).standard_normal((64, 64)).astype(np.float32)
    bad = good.copy()
    bad[3, 3] = np.nan
    source = checkpoint(tmp_path / "a", {"a.up_proj.weight": bad, "b.up_proj.weight": good})
    code, report = document("budget", source, "--measure", "--to", "w4", "--group-size", "64")
    assert (code, report["verdict"]) == (3, "incomplete")
    assert report["result"]["measured"][0]["weights"] == good.size
    assert report["coverage"]["skipped"][0]["name"] == "a.up_proj.weight"


def test_numbers_alone(document, run):
    code, report = document("budget", "--params", "1.5B")
    assert code == 0
    assert report["result"]["weights"] == 1_500_000_000
    shown = {one["encoding"] for one in report["result"]["encodings"]}
    assert shown == set(DEFAULT)
    one = next(each for each in report["result"]["encodings"] if each["group_size"] == 64)
    assert one["bytes"] == 1_500_000_000 * 4.375 / 8
    assert "4 + 24/g" in run("budget", "--params", "1500000000").stdout


def test_every_word_that_is_named_has_a_cost():
    for word in known():
        found = scheme(word)
        assert found.bits_per_weight(64) > 0
        assert found.formula()
        assert scheme(found.id) == found


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], "name one of"),
        (["--params", "1B", "--shape", "1,2"], "name one of"),
        (["--params", "x"], "number of weights"),
        (["--params", "0"], "number of weights"),
        (["--params", "1B", "--on", "sophgo:bm1684x"], "needs shapes"),
        (["--params", "1B", "--measure"], "needs MODEL"),
        (["--shape", "5"], "N,K"),
        (["--shape", "0,4"], "N,K"),
        (["--params", "1B", "--group-size", "0"], "above 0"),
        (["--params", "1B", "--group-size", "x,64"], "above 0"),
        (["--params", "1B", "--to", "int5"], "no cost known"),
        (["--shape", "1,64", "--on", "vllm"], "Sophgo"),
    ],
)
def test_usage(run, line, words):
    result = run("budget", *line)
    assert result.exit_code == 2
    assert words in result.stderr


def test_inputs_that_hold_no_weights(document, run, tmp_path):
    code, report = document("budget", tmp_path / "no")
    assert (code, report["verdict"]) == (3, "incomplete")
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    result = run("budget", tmp_path / "config.json", "--measure")
    assert result.exit_code == 2
    assert "needs the weights" in result.stderr
    result = run("budget", CHECKPOINTS / "autoround-w4a16", "--measure")
    assert result.exit_code == 2
    assert "float weights" in result.stderr
