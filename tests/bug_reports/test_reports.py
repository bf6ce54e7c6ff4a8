"""Public bug reports of GGUF quantizers: each input built, each verdict checked.

Sections A (quantizers that write NaN or abort), B (importance files) and C (range of f16 and
bf16) of the project's collection; a test is called after its row. What cannot be built as it was
reported, and what stands in for it:

A2, A5, A7: IQ4_NL, IQ2_XS, IQ2_S and IQ2_M have no quantizer here, so their bytes are not made.
    What goes wrong is in the input: the importance file and the weights are judged for those
    types, and types that are written get the same input.
A8: IQ1_S_R4 and IQ1_M_R4 are types of ik_llama.cpp that GGUF readers elsewhere do not have; the
    cause was never established. An expert of zeros goes through every type that is written.
A9: HQQ on CUDA is not a program that this version follows. The same groups, all weights alike, go
    through the types that store a minimum, which have the same division by a range of zero.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import qassay
from qassay.cli.main import cli
from qassay.encodings import by_id
from qassay.encodings.base import BlockEncoding
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.imatrix_writer import write_imatrix, write_legacy_imatrix
from qassay.testing.safetensors_writer import write_safetensors

NAME = "blk.0.ffn_down.weight"
EXPERTS = "blk.0.ffn_up_exps.weight"
WRITTEN = sorted(
    name for name in qassay.engine("ggml").routes if issubclass(by_id(name), BlockEncoding)
)
WITH_IMPORTANCE = [name for name in WRITTEN if qassay.engine("ggml").routes[name].takes_importance]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("QASSAY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Callable[..., tuple[int, dict[str, Any]]]:
    def call(*args: str) -> tuple[int, dict[str, Any]]:
        result = CliRunner().invoke(cli, [*args, "-f", "json"], prog_name="qassay")
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, json.loads(result.stdout)

    return call


def normal(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 0.02).astype(np.float32)


def model(weights: np.ndarray, name: str = NAME, path: str = "m.gguf") -> str:
    """Write a GGUF model of one F32 tensor."""
    tensor = (name, 0, weights.shape[::-1], np.ascontiguousarray(weights, "<f4").tobytes())
    Path(path).write_bytes(write_gguf({"general.architecture": "llama"}, [tensor]))
    return path


def bf16(*values: float) -> str:
    """Write a safetensors model of one row of bfloat16 numbers."""
    numbers = np.array([*values, *[0.5] * (32 - len(values))], np.float32)
    bits = (numbers.view(np.uint32) + 0x7FFF + (numbers.view(np.uint32) >> 16 & 1)) >> 16
    raw = bits.astype("<u2").tobytes()
    Path("m.safetensors").write_bytes(write_safetensors([("w.weight", "BF16", [1, 32], raw)]))
    return "m.safetensors"


def importance(sums: np.ndarray, counts: list[float] | None = None, name: str = NAME) -> str:
    Path("i.gguf").write_bytes(write_imatrix({name: (sums, counts or [512.0])}))
    return "i.gguf"


def codes(document: dict[str, Any], least: str = "info") -> list[str]:
    order = ["info", "warning", "error"]
    return [
        each["code"]
        for each in document["findings"]
        if order.index(each["severity"]) >= order.index(least)
    ]


def scales(raw: np.ndarray, encoding: type[BlockEncoding]) -> np.ndarray:
    """Return every stored scale and minimum of some blocks, as float64."""
    blocks = encoding.as_blocks(np.ascontiguousarray(raw).reshape(-1))
    found = []
    for field in encoding.scale_fields.values():
        size = field.nbytes
        bits = blocks[:, field.offset : field.offset + size]
        if size == 2:
            found.append(np.ascontiguousarray(bits).view("<f2").astype(np.float64).reshape(-1))
    return np.concatenate(found) if found else np.zeros(0)


def quantized(rows: np.ndarray, to: str, mass: np.ndarray | None = None) -> np.ndarray:
    return np.asarray(qassay.engine("ggml").quantize(rows, to, mass)).reshape(-1)


class TestA:
    def test_a2_no_importance_mass(self, run: Callable[..., Any]) -> None:
        weights = np.full((1, 256), 1e-11, np.float32)
        sums = np.ones(256, np.float32)
        sums[32:64] = 0
        _, document = run("check", model(weights), "--imatrix", importance(sums), "--to", "IQ4_NL")
        messages = {each["code"]: each["message"] for each in document["findings"]}
        assert "no importance mass" in messages["Q507"]
        assert "become zero" in messages["Q502"]
        for to in WITH_IMPORTANCE:
            raw = quantized(weights, to, np.zeros(256, np.float32))
            assert np.isfinite(scales(raw, by_id(to))).all(), to
            assert np.isfinite(by_id(to).dequantize(raw)).all(), to

    def test_a3_zeros_to_q6_k(self, run: Callable[..., Any]) -> None:
        code, document = run("check", model(np.zeros((2, 256), np.float32)), "--to", "Q6_K")
        assert (code, codes(document, "warning")) == (0, [])
        q6_k = by_id("Q6_K")
        raw = quantized(np.zeros((1, 256), np.float32), "Q6_K")
        assert scales(raw, q6_k).tobytes() == np.float64(0.0).tobytes()  # +0.0
        assert not q6_k.dequantize(raw).any()

    def test_a3_a_nan_scale_is_an_error_with_its_place(self, run: Callable[..., Any]) -> None:
        q6_k = by_id("Q6_K")
        raw = quantized(normal(4, 512), "Q6_K")
        raw[5 * q6_k.block_bytes + 208 :][:2] = [0x00, 0x7E]
        tensor = (NAME, 14, (512, 4), raw.tobytes())
        Path("q.gguf").write_bytes(write_gguf({"general.architecture": "llama"}, [tensor]))
        code, document = run("check", "q.gguf")
        [finding] = [each for each in document["findings"] if each["code"] == "Q201"]
        assert code == 1
        assert (finding["tensor"], finding["severity"]) == (NAME, "error")
        assert (finding["location"]["row"], finding["location"]["block"]) == (2, 5)

    def test_a4_nan_in_the_source(self, run: Callable[..., Any]) -> None:
        weights = normal(1, 256)
        weights[0, 100] = np.nan
        code, document = run("check", model(weights), "--to", "Q6_K")
        assert code == 1
        assert set(codes(document, "error")) == {"Q401", "Q504"}

    def test_a4_weights_near_the_least_float(self) -> None:
        raw = quantized(np.full((1, 256), 1e-40, np.float32), "Q6_K")
        assert scales(raw, by_id("Q6_K")).tolist() == [0.0]

    def test_a5_signed_zeros_and_one_nan_of_importance(self, run: Callable[..., Any]) -> None:
        zeros = np.zeros((1, 256), np.float32)
        zeros[0, ::2] = -0.0
        for to in WRITTEN:
            assert not np.any(scales(quantized(zeros, to), by_id(to))), to
            assert not by_id(to).dequantize(quantized(zeros, to)).any(), to
        assert codes(run("check", model(zeros), "--to", ",".join(WRITTEN))[1], "warning") == []
        sums = np.ones(256, np.float32)
        sums[17] = np.nan
        words = ("quantize", model(zeros), "q.gguf", "--imatrix", importance(sums), "--to", "Q2_K")
        code, document = run(*words)
        assert (code, codes(document, "error")) == (1, ["Q507"])
        assert not Path("q.gguf").exists()

    @pytest.mark.parametrize("bad", [np.nan, 0.0])
    def test_a7_the_importance_is_to_blame(self, bad: float, run: Callable[..., Any]) -> None:
        path = importance(np.full(512, bad, np.float32))
        _, document = run("check", model(normal(4, 512)), "--imatrix", path, "--to", "Q2_K")
        blamed = [each for each in document["findings"] if each["severity"] != "info"]
        assert [(each["code"], each["path"]) for each in blamed] == [("Q507", "i.gguf")]

    @pytest.mark.parametrize("to", WRITTEN)
    def test_a8_an_expert_of_zeros(self, to: str) -> None:
        weights = normal(3, 2, 256)
        weights[1] = 0
        for expert in weights:
            raw = quantized(expert, to)
            assert np.isfinite(scales(raw, by_id(to))).all()
            assert np.isfinite(by_id(to).dequantize(raw)).all()
        path = model(weights, EXPERTS)
        assert qassay.check(path, to=to, select="Q5").findings == ()

    @pytest.mark.parametrize("to", ["Q4_1", "Q5_1"])
    @pytest.mark.parametrize("value", [9.0, -9.0])
    def test_a9_weights_all_alike(self, to: str, value: float) -> None:
        weights = np.full((2, 32), value, np.float32)
        back = by_id(to).dequantize(quantized(weights, to))
        assert np.array_equal(back, weights.reshape(-1))
        assert qassay.check_array(weights, to=to) == []


class TestB:
    @pytest.mark.parametrize("to", ["Q2_K", "Q4_K", "Q5_K", "Q3_K", "Q6_K"])
    def test_b2_tiny_weights_with_importance(self, to: str) -> None:
        for weights in (np.full((1, 256), 1e-18, np.float32), normal(1, 256) * np.float32(5e-17)):
            for mass in (np.ones(256, np.float32), np.linspace(1e-6, 1e3, 256, dtype="f4")):
                raw = quantized(weights, to, mass)
                assert np.isfinite(scales(raw, by_id(to))).all()
                assert np.isfinite(by_id(to).dequantize(raw)).all()

    @pytest.mark.parametrize("legacy", [False, True])
    def test_b4_one_nan_among_2048(self, legacy: bool, run: Callable[..., Any]) -> None:
        sums = np.ones(2048, np.float32)
        sums[1234] = np.nan
        path = importance(sums)
        if legacy:
            path = "i.dat"
            Path(path).write_bytes(write_legacy_imatrix({NAME: (sums, 4)}))
        code, document = run("check", path)
        assert code == 1
        [finding] = [each for each in document["findings"] if each["code"] == "Q507"]
        assert (finding["tensor"], finding["location"]["column"]) == (NAME, 1234)
        weights = model(normal(2, 2048))
        code, document = run("quantize", weights, "q.gguf", "--imatrix", path, "--to", "Q4_K")
        assert (code, document["result"]["quantize"]["refused"]) == (1, ["Q507"])
        assert not Path("q.gguf").exists()

    def test_b5_one_of_256_experts_never_ran(self, run: Callable[..., Any]) -> None:
        weights = normal(256, 1, 256)
        sums = np.random.default_rng(1).random((256, 256), np.float32) ** 3
        counts = [512.0] * 256
        counts[200] = 0
        sums[200] = 0
        path = importance(sums, counts, EXPERTS)
        words = ("quantize", model(weights, EXPERTS), "q.gguf", "--imatrix", path, "--to", "Q4_K")
        code, document = run(*words)
        assert code == 0
        [finding] = [each for each in document["findings"] if each["code"] == "Q507"]
        assert "expert 200 uncalibrated" in finding["message"]
        assert finding["severity"] == "warning"
        with qassay.open("q.gguf") as made:
            stored = made.tensors[EXPERTS].raw().reshape(256, -1)
        for expert in (0, 199, 200, 201, 255):
            mass = sums[expert] / np.float32(512)
            if expert == 200:
                mass = np.ones(256, np.float32)  # 1 for that expert only
            assert np.array_equal(stored[expert], quantized(weights[expert], "Q4_K", mass))

    def test_b6_missing_tensors_are_listed_up_front(self, run: Callable[..., Any]) -> None:
        tensors = [
            (f"blk.0.ffn_{part}.{expert}.weight", 0, (64, 2), normal(2, 64).tobytes())
            for part in ("gate", "up", "down")
            for expert in range(4)
        ]
        Path("m.gguf").write_bytes(write_gguf({"general.architecture": "llama"}, tensors))
        entries = {
            tensor[0]: (np.ones(64, np.float32), [512.0])
            for tensor in tensors
            if ".3." not in tensor[0]
        }
        Path("i.gguf").write_bytes(write_imatrix(entries))
        _, document = run("check", "m.gguf", "--imatrix", "i.gguf")
        [finding] = document["findings"]
        assert finding["code"] == "Q507"
        assert finding["data"]["tensors"] == [
            "blk.0.ffn_gate.3.weight",
            "blk.0.ffn_up.3.weight",
            "blk.0.ffn_down.3.weight",
        ]


class TestC:
    @pytest.mark.parametrize(("value", "safe"), [(65519.0, True), (65520.0, False)])
    def test_c1_the_end_of_f16(self, value: float, safe: bool) -> None:
        weights = normal(1, 64)
        weights[0, 7] = value
        found = qassay.check_array(weights, to="F16", on_bad="return")
        assert [each.code for each in found] == ([] if safe else ["Q501"])

    def test_c1_a_detour_over_f16(self, run: Callable[..., Any]) -> None:
        source = bf16(1e5)
        code, document = run("check", source, "--to", "F16")
        [finding] = [each for each in document["findings"] if each["code"] == "Q501"]
        assert code == 1
        assert "BF16" in finding["help"]
        assert run("check", source, "--to", "Q8_0")[0] == 0  # straight from bf16 nothing is lost
        detour = normal(1, 64)
        detour[0, 0] = np.inf
        code, document = run("check", model(detour, "blk.0.attn_q.weight"), "--to", "Q8_0")
        assert (code, set(codes(document, "error"))) == (1, {"Q401", "Q504"})

    def test_c2_infinite_already_or_made_so(self, run: Callable[..., Any]) -> None:
        weights = normal(2, 64)
        weights[0, 5], weights[1, 6] = 7e4, np.inf
        _, document = run("check", model(weights), "--to", "F16")
        found = {each["code"]: each for each in document["findings"] if each["severity"] == "error"}
        assert set(found) == {"Q401", "Q501"}
        assert (found["Q501"]["count"], found["Q501"]["location"]["column"]) == (1, 5)
        assert (found["Q401"]["count"], found["Q401"]["location"]["column"]) == (1, 6)

    def test_c3_what_f16_makes_of_bf16(self, run: Callable[..., Any]) -> None:
        source = bf16(1e5, 1e-6, 1e-9)
        words = ("quantize", source, "q.gguf", "--to", "F16", "--allow", "Q401,Q501")
        _, document = run(*words)
        before, after = (tensor["values"] for tensor in document["tensors"])
        assert (before["inf"], before["subnormal"], before["zero"]) == (0, 0, 0)
        assert after["inf"] == 1  # overflow
        assert after["subnormal"] == 1  # 1e-6
        assert after["zero"] == 1  # 1e-9
        assert document["result"]["quantize"]["totals"]["nonfinite_result"] == 1

    def test_c4_subnormals_of_bf16_and_f16(self, run: Callable[..., Any]) -> None:
        code, document = run("quantize", bf16(1e-39, 3e-6, 5e-8), "q.gguf", "--to", "F16")
        assert code == 0
        before, after = (tensor["values"] for tensor in document["tensors"])
        assert (before["subnormal"], before["zero"]) == (1, 0)  # 1e-39
        assert (after["subnormal"], after["zero"]) == (2, 1)
        kept = run("quantize", "m.safetensors", "kept.gguf", "--to", "BF16")[1]
        assert [tensor["values"]["zero"] for tensor in kept["tensors"]] == [0, 0]

    def test_c5_an_encoder_without_subnormals(self) -> None:
        values = np.array([6.0e-5, 3e-5, 1e-6, 5.96e-8], np.float32)
        ours = by_id("f16").dequantize(quantized(values, "f16"))
        assert (ours != 0).all()
        assert np.array_equal(ours, values.astype(np.float16).astype(np.float32))
        # The engine that had this fault: a scale of 3e-5 takes its block along.
        block = np.zeros((1, 32), np.float32)
        block[0, 0] = 127 * np.float32(3e-5)
        for engine, alive in (("kestrel-legacy", False), ("kestrel", True)):
            raw = np.asarray(qassay.engine(engine).quantize(block, "Q8_0")).reshape(-1)
            assert by_id("Q8_0").dequantize(raw).any() == alive
