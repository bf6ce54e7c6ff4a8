"""Public bug reports that comparing a quantized file with its float source decides.

Built here: rows of the project's collection whose capability includes three-way or roundtrip, as
far as the weights alone show it; a test is called after its row. Not built:

F9, F12, G6, I5, K9, K11, O4, P11, Q1, Q5, Q8 to Q11, S7: outputs of a device are needed.
A9 (HQQ), M1, M2 (bitsandbytes), N1 (MLX), O2 (ONNX): a family or container that is not read.
E8, F4, P8, P12, G7, P1, L7, S5, K8, S2: no fault of the numbers in a file (sizes; which layers to
quantize; what was folded into the float model before; a policy; a reader).
H4: needs the simulated model; K7 and L6 are legal codes that only cost more.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "compare"))

from packings import GPTQ_CONFIG, GPTQ_V2, NAME, Matrix, save, save_gguf
from test_cost_faults import floats, rounded, weights

from qassay.cli.main import cli
from qassay.testing.safetensors_writer import write_safetensors

GGUF = "blk.0.ffn_up.weight"


def compare(a: Path, b: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    result = CliRunner().invoke(cli, ["compare", str(a), str(b), "-f", "json"])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    report = json.loads(result.stdout)
    return report["findings"], report["result"]["layers"][0]


def gptq(tmp_path: Path, source: np.ndarray, matrix: Matrix, **more: Any) -> Any:
    config = {**GPTQ_CONFIG, "group_size": matrix.group, **more.pop("config", {})}
    a = floats(tmp_path / "a", {NAME: source})
    return compare(a, save(tmp_path / "b", {NAME: matrix.gptq(**more)}, config))


def plain(tmp_path: Path, one: np.ndarray, two: np.ndarray) -> Any:
    words = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
    paths = []
    for name, values in (("a", one), ("b", two)):
        path = tmp_path / f"{name}.safetensors"
        entry = ("w", words[str(values.dtype)], list(values.shape), values.tobytes())
        path.write_bytes(write_safetensors([entry]))
        paths.append(path)
    return compare(*paths)


@pytest.mark.parametrize(
    ("version", "label", "way"), [(2, "gptq", "higher"), (1, "gptq_v2", "lower")]
)
def test_f1_f2_f3_zero_points_by_the_other_convention(version, label, way, tmp_path):
    source = weights(64, 256)
    matrix = rounded(source, 32, symmetric=True)
    config = {"checkpoint_format": label, "sym": True}
    [finding], layer = gptq(tmp_path, source, matrix, version=version, config=config)
    assert (finding["code"], f"1 {way}" in finding["message"]) == ("Q605", True)
    assert layer["cost_once_undone"]["expected"]["ratio"] < 1.2


def test_f10_g3_a_sound_file_is_cleared_in_either_convention(tmp_path):
    source = weights(64, 256)
    matrix = rounded(source, 32)
    assert gptq(tmp_path, source, matrix)[0] == []
    v2 = save(tmp_path / "c", {NAME: matrix.gptq(version=2)}, GPTQ_V2)
    assert compare(tmp_path / "a", v2)[0] == []


def test_f13_scales_of_the_other_group(tmp_path):
    source = weights(64, 256)
    source[:, ::1] *= np.repeat([1, 1000], 128)[None, :]
    matrix = rounded(source.astype(np.float32), 128)
    swapped = replace(matrix, scales=matrix.scales[:, ::-1], zeros=matrix.zeros[:, ::-1])
    [finding], layer = gptq(tmp_path, source.astype(np.float32), swapped)
    assert finding["code"] == "Q604"
    assert layer["cost"]["expected"]["ratio"] > 5


def test_j2_only_zeros(tmp_path):
    source = weights(64, 256)
    matrix = rounded(source, 32)
    lost = replace(matrix, codes=np.repeat(matrix.zeros, 32, axis=1))
    [finding], _ = gptq(tmp_path, source, lost)
    assert (finding["code"], finding["severity"]) == ("Q601", "error")


def test_k6_nibbles_of_split_halves_for_adjacent_pairs(tmp_path):
    source = weights(64, 128)
    matrix = rounded(source, 32, symmetric=True)
    # Byte j holds codes 2j and 2j + 1, as other packers have it; ggml's reader takes j and j + 16.
    blocks = matrix.codes.reshape(-1, 16, 2)
    mixed = np.concatenate([blocks[:, :, 0], blocks[:, :, 1]], axis=1).reshape(64, 128)
    a = floats(tmp_path / "a", {NAME: source})
    b = save_gguf(tmp_path / "b.gguf", [(GGUF, 2, [128, 64], replace(matrix, codes=mixed).q4_0())],
                  {"general.architecture": "llama"})  # fmt: skip
    [finding], _ = compare(a, b)
    assert finding["code"] == "Q606"
    assert "elements 2j and 2j + 1 are read as elements j and j + 16" in finding["message"]


def test_k1_factor_of_all_scales(tmp_path):
    source = weights(64, 256)
    matrix = rounded(source, 32)
    [finding], _ = gptq(tmp_path, source, replace(matrix, scales=matrix.scales * np.float16(32)))
    assert (finding["code"], finding["data"]["factor"]) == ("Q613", 32)


def test_l8_one_scale_for_halves_of_unlike_size(tmp_path):
    source = weights(64, 256)
    source[32:] *= np.float32(1e-3)
    matrix = rounded(source, 256)
    coarse = matrix.scales.copy()
    coarse[32:] = coarse[:32].max()
    zeros = np.full_like(matrix.zeros, 8)
    wide = np.repeat(coarse.astype(np.float32), 256, axis=1)
    codes = np.clip(np.rint(source / wide) + 8, 0, 15).astype(int)
    findings, layer = gptq(tmp_path, source, Matrix(codes, zeros, coarse, 256))
    assert [x["code"] for x in findings] == ["Q601"]
    assert layer["cost"]["rows"]["ratio"][-1] > 4


def test_q4_rows_interleaved_for_a_kernel(tmp_path):
    source = weights(64, 256)
    m = rounded(source, 32)
    order = np.arange(64).reshape(8, 8).T.reshape(-1)
    moved = replace(m, codes=m.codes[order], zeros=m.zeros[order], scales=m.scales[order])
    [finding], _ = gptq(tmp_path, source, moved)
    assert (finding["code"], finding["data"]["order"]) == ("Q603", order.tolist())


@pytest.mark.parametrize("rounding", ["even", "away"])
def test_s1_halves_rounded_to_even_or_away_are_both_sound(rounding, tmp_path):
    source = np.tile(np.array([127, 0.5, 1.5, 2.5, *range(28)], np.float32), (4, 1))
    codes = np.rint(source) if rounding == "even" else np.floor(source + 0.5)
    rows = np.concatenate(
        [np.full((4, 2), [0x00, 0x3C], np.uint8), codes.astype(np.int8).view(np.uint8)], axis=1
    )
    a = floats(tmp_path / "a", {NAME: source})
    b = save_gguf(tmp_path / "b.gguf", [(GGUF, 8, [32, 4], rows.tobytes())],
                  {"general.architecture": "llama"})  # fmt: skip
    assert compare(a, b)[0] == []


def test_c2_c3_what_f16_does_to_bf16(tmp_path):
    source = np.full((4, 64), 0.5, ml_dtypes.bfloat16)
    source[1, 3], source[2, 4], source[3, 5] = 1e5, 1e-6, 1e-9
    with np.errstate(over="ignore"):
        half = source.astype(np.float32).astype(np.float16)
    [finding], layer = plain(tmp_path, source, half)
    assert (finding["code"], finding["data"]["kind"], finding["count"]) == ("Q617", "born", 1)
    assert layer["encodings"] == ["bf16", "f16"]


def test_c2_an_infinity_that_was_there_is_told_apart(tmp_path):
    source = np.full((4, 64), 0.5, np.float32)
    source[1, 3], source[2, 2] = 7e4, np.inf
    with np.errstate(over="ignore"):
        findings, _ = plain(tmp_path, source, source.astype(np.float16))
    assert {x["data"]["kind"]: x["count"] for x in findings} == {"born": 1, "both": 1}


def test_c5_subnormals_flushed_to_zero(tmp_path):
    source = np.tile(np.array([6.0e-5, 3e-5, 1e-6, 0.5], np.float32), (4, 16))
    half = source.astype(np.float16)
    assert plain(tmp_path, source, half)[0] == []
    flushed = np.where(np.abs(half) < np.float16(6.1035e-5), np.float16(0), half)
    findings, _ = plain(tmp_path, source, flushed.astype(np.float16))
    assert [x["code"] for x in findings] == ["Q601"]
    assert findings[0]["data"]["kind"] == "columns-lost"


def test_s4_bytes_taken_for_values(tmp_path):
    source = weights(4, 8).astype(ml_dtypes.bfloat16)
    other = source.view(np.uint8).astype(np.float32)
    findings, layer = plain(tmp_path, source, other)
    assert ([x["code"] for x in findings], layer["relation"]) == (["Q611"], "different")
    assert "shapes differ" in findings[0]["message"]
