"""The command: exit codes, the text people read, metadata, and inputs that are not sound."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from packings import GGUF_NAME, GPTQ_CONFIG, NAME, Matrix, save, save_gguf

from qassay.cli.main import cli
from qassay.rules.base import ComparisonRule
from qassay.rules.registry import OF_COMPARISONS, all_rules
from qassay.run.check import check
from qassay.run.options import CheckOptions
from qassay.testing.safetensors_writer import write_safetensors


def text(*args):
    return CliRunner().invoke(cli, ["compare", *map(str, args)])


@pytest.fixture
def two(tmp_path):
    matrix = Matrix.random()
    shifted = replace(matrix, zeros=(matrix.zeros + 1) & 15)
    a = save(tmp_path / "a", {NAME: matrix.gptq()}, GPTQ_CONFIG)
    b = save(tmp_path / "b", {NAME: shifted.gptq()}, {**GPTQ_CONFIG, "damp_percent": 0.1})
    return a, b


def test_text_says_what_and_what_to_do(two):
    done = text(*two)
    lines = done.stdout.splitlines()
    assert done.exit_code == 1
    assert any(line.startswith("error Q605 zero-point-shifted") for line in lines)
    assert any("zero points are 1 higher (modulo 16)" in line for line in lines)
    assert "  equal up to what is named below" in lines
    assert any(line.strip().startswith("config.quantization_config.damp_percent") for line in lines)
    assert lines[-1] == "findings: 1 error"


def test_metadata_differs_and_is_no_finding(two, compare, tmp_path):
    a, _ = two
    config = {**GPTQ_CONFIG, "damp_percent": 0.1}
    other = save(tmp_path / "c", {NAME: Matrix.random().gptq()}, config)
    code, report = compare(a, other)
    assert (code, report["findings"]) == (0, [])
    key = "config.quantization_config.damp_percent"
    assert report["result"]["metadata"] == {key: [None, 0.1]}


def test_gguf_metadata_is_compared_by_value(tmp_path, compare):
    data = Matrix.random(symmetric=True).q4_0()
    tensor = (GGUF_NAME, 2, [128, 64], data)
    words = {"general.architecture": "llama", "tokenizer.ggml.tokens": ["a", "b"]}
    a = save_gguf(tmp_path / "a.gguf", [tensor], words)
    assert (
        compare(a, save_gguf(tmp_path / "b.gguf", [tensor], words))[1]["result"]["metadata"] == {}
    )
    other = {**words, "tokenizer.ggml.tokens": ["a", "c"]}
    differs = compare(a, save_gguf(tmp_path / "c.gguf", [tensor], other))[1]["result"]["metadata"]
    assert differs == {"tokenizer.ggml.tokens": [["a", "b"], ["a", "c"]]}


def test_exit_codes_follow_the_options(two, compare):
    assert compare(*two)[0] == 1
    assert compare(*two, "--exit-zero")[0] == 0
    assert compare(*two, "--ignore", "Q605")[0] == 0
    assert compare(*two, "--select", "zero-point-shifted")[0] == 1
    done = text(*two, "--select", "Q201")
    assert (done.exit_code, "nothing would be compared" in done.stderr) == (2, True)
    assert text(two[0]).exit_code == 2


def test_one_path_twice(two, compare):
    code, report = compare(two[0], two[0])
    assert (code, report["result"]["relation"]) == (0, "equal")
    assert len(report["inputs"]) == 2


def test_an_input_that_cannot_be_read(two, compare, tmp_path):
    page = tmp_path / "page.gguf"
    page.write_text("<!DOCTYPE html><html>")
    for pair in ((two[0], page), (page, two[0])):
        code, report = compare(*pair)
        assert (code, report["verdict"]) == (3, "incomplete")
        assert report["result"]["relation"] == "not-compared"
        [skip] = report["coverage"]["skipped"]
        assert "HTML" in skip["reason"]
    assert compare(two[0], tmp_path / "missing")[0] == 3


def test_nothing_in_either(tmp_path, compare):
    empty = save_gguf(tmp_path / "e.gguf", [])
    code, report = compare(empty, empty)
    assert (code, report["result"]["relation"]) == (3, "not-compared")


def test_a_truncated_file_is_not_equal(tmp_path, compare):
    tensor = (GGUF_NAME, 2, [128, 64], Matrix.random(symmetric=True).q4_0())
    a = save_gguf(tmp_path / "a.gguf", [tensor])
    cut = tmp_path / "b.gguf"
    cut.write_bytes(a.read_bytes()[:-700])
    code, report = compare(a, cut)
    assert (code, report["result"]["relation"]) == (3, "not-compared")
    assert any("structure" in skip["reason"] for skip in report["coverage"]["skipped"])


@pytest.mark.parametrize("shape", [[0, 64], [128, 0], [128], [1, 1, 1, 1]])
def test_odd_shapes_are_no_traceback(tmp_path, compare, shape):
    matrix = Matrix.random(symmetric=True)
    size = int(np.prod(shape))
    odd = save_gguf(tmp_path / "b.gguf", [(GGUF_NAME, 0, shape, bytes(4 * size))])
    a = save_gguf(tmp_path / "a.gguf", [(GGUF_NAME, 2, [128, 64], matrix.q4_0())])
    for pair in ((a, odd), (odd, a)):
        code, report = compare(*pair)
        assert code in (1, 3)
        assert report["result"]["relation"] != "equal"


def test_names_are_escaped(tmp_path):
    evil = "blk.0.\x1b[31mffn_up.weight"
    a = save_gguf(tmp_path / "a.gguf", [(evil, 2, [128, 64], Matrix.random().q4_0())])
    b = save_gguf(tmp_path / "b.gguf", [(evil, 2, [128, 64], Matrix.random(seed=1).q4_0())])
    done = text(a, b)
    assert done.exit_code == 1
    assert "\x1b" not in done.stdout


def test_nan_and_inf_survive_the_json(tmp_path, compare):
    matrix = Matrix.random(symmetric=True)
    scales = matrix.scales.copy()
    scales[0, 0], scales[1, 1] = np.nan, np.inf
    a = save_gguf(tmp_path / "a.gguf", [(GGUF_NAME, 2, [128, 64], matrix.q4_0())])
    other = replace(matrix, scales=scales)
    b = save_gguf(tmp_path / "b.gguf", [(GGUF_NAME, 2, [128, 64], other.q4_0())])
    code, report = compare(a, b)
    [layer] = report["result"]["layers"]
    assert (code, layer["difference"]["scales"]["different"]) == (1, 2)
    assert layer["difference"]["one_sided"] >= 32
    assert layer["difference"]["first"]["values"][1] == "NaN"


def test_float_tensors_of_one_dtype_are_compared_exactly(tmp_path, compare):
    rng = np.random.default_rng(0)
    values = rng.normal(0, 1, (6, 10)).astype(np.float32)
    other = values.copy()
    other[4, 3] += np.float32(0.5)
    other[5, 9] -= np.float32(0.25)
    shape = [10, 6]
    a = save_gguf(tmp_path / "a.gguf", [("x.weight", 0, shape, values.tobytes())])
    b = save_gguf(tmp_path / "b.gguf", [("x.weight", 0, shape, other.tobytes())])
    code, report = compare(a, b)
    told = report["result"]["layers"][0]["difference"]
    assert (code, told["values"]["different"]) == (1, 2)
    assert (told["first"]["row"], told["first"]["column"]) == (4, 3)
    assert told["largest_steps"] == pytest.approx(0.5, rel=1e-6)
    half = save_gguf(
        tmp_path / "c.gguf", [("x.weight", 1, shape, values.astype(np.float16).tobytes())]
    )
    code, report = compare(a, half)
    [layer] = report["result"]["layers"]
    assert (code, layer["relation"]) == (0, "equal-up-to")
    assert [each["kind"] for each in layer["transformations"]] == ["rounded"]


def test_one_added_to_a_norm_is_a_difference_inside_one_format(tmp_path, compare):
    norm = np.linspace(0.5, 1.5, 64, dtype=np.float32)
    files = [
        save_gguf(tmp_path / f"{at}.gguf", [("blk.0.attn_norm.weight", 0, [64], data.tobytes())])
        for at, data in enumerate((norm, norm + np.float32(1)))
    ]
    assert compare(*files)[0] == 1
    parts = {"model.layers.0.input_layernorm": {"weight": norm}}
    folder = save(tmp_path / "hf", parts, None)
    code, report = compare(folder, files[1])
    assert code == 0
    assert [each["kind"] for each in report["result"]["transformations"]] == ["plus-one"]


def test_rules_of_comparisons_run_in_no_check(two):
    ran = check(two[0], CheckOptions()).rules
    assert ran
    assert not set(ran) & set(OF_COMPARISONS)
    declared = {rule.code for rule in all_rules() if issubclass(rule, ComparisonRule)}
    assert declared == set(OF_COMPARISONS)


def test_same_report_for_any_slab(two, compare, monkeypatch):
    from qassay.comparison import direct, plain, weights

    first = compare(*two)
    monkeypatch.setattr(weights, "SLAB", 128 * 8)
    monkeypatch.setattr(plain, "SLAB", 64)
    assert direct.slabs is weights.slabs
    assert json.dumps(compare(*two)) == json.dumps(first)


def test_hostile_words_in_a_scale_tensor(tmp_path, compare):
    """`<name>.scale` of a wrong size is a tensor like any other."""
    tensor = (GGUF_NAME, 40, [128, 64], bytes(64 * 2 * 36))
    odd = ("blk.0.ffn_up.scale", 0, [3], struct.pack("<3f", 1, 2, 3))
    a = save_gguf(tmp_path / "a.gguf", [tensor, odd])
    b = save_gguf(tmp_path / "b.gguf", [tensor])
    code, report = compare(a, b)
    assert code == 1
    assert [finding["code"] for finding in report["findings"]] == ["Q612"]


def two_shards(folder, *, without=False):
    """Write a folder with one weight in each of two shards; `without` the second one."""
    folder.mkdir()
    data = Matrix.random(symmetric=True).q4_0()
    for at, name in enumerate((GGUF_NAME, "blk.0.ffn_down.weight")):
        told = {"split.no": at, "split.count": 2, "split.tensors.count": 2}
        if not (at and without):
            path = folder / f"m-0000{at + 1}-of-00002.gguf"
            save_gguf(path, [(name, 2, [128, 64], data)], told)
    return folder


def test_a_tensor_of_a_missing_shard_is_not_called_lost(tmp_path, compare):
    """Nothing is known of it: that is no finding about the model, and not clean either."""
    whole = two_shards(tmp_path / "whole")
    half = two_shards(tmp_path / "half", without=True)
    for pair in ((whole, half), (half, whole)):
        code, report = compare(*pair)
        assert (code, report["findings"], report["verdict"]) == (3, [], "incomplete")
        relations = {one["name"]: one["relation"] for one in report["result"]["layers"]}
        assert relations["blk.0.ffn_down.weight"] == "not-compared"
        assert any("was not read whole" in skip["reason"] for skip in report["coverage"]["skipped"])


def test_tensors_behind_a_header_that_breaks_off_are_not_called_lost(tmp_path, compare):
    whole = two_shards(tmp_path / "whole") / "m-00001-of-00002.gguf"
    for size in (4, 20, 60):
        cut = tmp_path / f"{size}.gguf"
        cut.write_bytes(whole.read_bytes()[:size])
        code, report = compare(whole, cut)
        assert (code, report["findings"]) == (3, [])
        assert report["result"]["relation"] == "not-compared"


@pytest.mark.parametrize(
    ("one", "two", "code"),
    [
        ([0, 64], [0, 64], 0),
        ([0, 64], [0, 32], 1),
        ([64, 1], [1, 64], 1),
        ([64, 1], [64], 0),
        ([64], [1, 64], 0),
        ([4, 16], [2, 32], 1),
        ([1, 4, 16], [4, 16], 0),
        ([2, 2, 16], [4, 16], 1),
    ],
)
def test_shapes(tmp_path, compare, one, two, code):
    """An axis of 1 that one side leaves out is no difference; a transposed vector is one."""
    values = np.arange(64, dtype=np.float32)
    files = [tmp_path / "a.safetensors", tmp_path / "b.safetensors"]
    for path, shape in zip(files, (one, two), strict=True):
        data = values[: int(np.prod(shape))].tobytes()
        path.write_bytes(write_safetensors([("x.weight", "F32", shape, data)]))
    got, report = compare(*files)
    assert (got, report["result"]["relation"]) == (code, "different" if code else "equal")


def test_text_measures_the_quantized_side_wherever_it_stands(tmp_path):
    checkpoints = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
    done = text(checkpoints / "autoround-w4a16", checkpoints / "source-tiny-llama-f16")
    assert done.exit_code == 0
    table = done.stdout.partition("What quantizing cost")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in table.splitlines()[2:3]] == ["gptq.int4"]


def test_text_asks_whether_two_models_are_the_same(two, tmp_path):
    question = "are these the same model?"
    other = {f"model.layers.{at}.mlp.gate_proj": Matrix.random().gptq() for at in (3, 4)}
    assert question not in text(*two).stdout
    assert question in text(two[0], save(tmp_path / "c", other, GPTQ_CONFIG)).stdout
