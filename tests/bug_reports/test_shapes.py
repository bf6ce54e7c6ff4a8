"""Public bug reports about shapes: each row built, and the verdict of `fit` checked.

Rows about TPU-MLIR, and rows of sections D and P about shapes of Llama, Qwen2, Qwen3, Qwen3.5,
Qwen3-Next and Qwen3-VL; a test is called after its row. P6 is issue 269, to which issues 275 and
250 belong. Rows D1, D2, D4, D6 and D7 are about ggml's blocks: they are told by `check --to`
(Q505), and the one whose verdict is an axis of a Llama stands here as well.

P6's reporter suspects K. Run with the real compiler the cause is N: K that groups do not divide
stays a plain MatMul without an error, and N = 16 aborts for every group size. Both are tested.

What cannot be built yet, and why:

D8, D9: MLX has no catalog yet. The shape of D8 (4304 columns in Qwen3-VL's vision tower) is built,
    and TPU-MLIR, which keeps vision at 16 bits, must not complain about it.
D10: an embedding that a converter leaves at 16 bits; it needs MLX's checkpoints.
D12: vLLM has no catalog yet; same shape as D8.
P1, P5, P11: outputs of a running model, not shapes.
P2: Ascend has no catalog yet.
P8: which layers lose most at 4 bits is no shape. That TPU-MLIR's converter keeps the head at 16
    bits, as its vendor advises, is tested.
P10: OpenVINO has no catalog yet.
P12: Qwen3.5's linear-attention layers at 4 bits: quality, not shape.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qassay.cli.main import cli
from qassay.testing.gguf_writer import write_gguf

QWEN3_5_2B = {
    "model_type": "qwen3_5", "dtype": "bfloat16", "tie_word_embeddings": True,
    "text_config": {
        "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 6144,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "linear_key_head_dim": 128,
        "linear_value_head_dim": 128, "vocab_size": 248320,
    },
}  # fmt: skip
"""Its config.json, as far as shapes go."""

QWEN3_VL_8B = {
    "model_type": "qwen3_vl", "tie_word_embeddings": False,
    "text_config": {
        "dtype": "bfloat16", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 12288, "vocab_size": 151936,
    },
    "vision_config": {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 4096,
        "deepstack_visual_indexes": [8, 16, 24],
    },
}  # fmt: skip
GATES = [
    f"model.language_model.layers.{layer}.linear_attn.in_proj_{which}"
    for layer in range(24)
    if (layer + 1) % 4
    for which in "ba"
]


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("QASSAY_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def fit() -> Callable[..., tuple[int, dict[str, Any]]]:
    def call(model: dict[str, Any] | str, *words: str) -> tuple[int, dict[str, Any]]:
        path = "t.csv" if isinstance(model, str) else "config.json"
        Path(path).write_text(model if isinstance(model, str) else json.dumps(model))
        done = CliRunner().invoke(cli, ["fit", path, *words, "-f", "json"], prog_name="qassay")
        assert done.exception is None or isinstance(done.exception, SystemExit)
        return done.exit_code, json.loads(done.stdout)

    return call


class TestTpuMlir:
    @pytest.mark.parametrize("group_size", ["64", "128"])
    def test_p6_n_does_not_fill_the_lanes(self, group_size: str, fit: Callable[..., Any]) -> None:
        words = ("--on", "sophgo:bm1684x@1.28.1", "--to", "w4bf16", "--group-size", group_size)
        code, report = fit(QWEN3_5_2B, *words)
        [finding] = report["findings"]
        assert (code, finding["code"], finding["count"]) == (1, "Q701", 36)
        assert finding["data"]["layers"] == GATES
        assert {int(name.split(".")[3]) for name in GATES} >= {2, 8, 18, 21}  # as reported
        assert finding["data"]["error"] == "invalid scale channel"
        [group] = [way for way in finding["data"]["remedies"] if way["kind"] == "group-size"]
        assert not group["helps"]
        assert fit(QWEN3_5_2B, "--on", "sophgo:bm1684x@1.28.1", "--to", "bf16")[0] == 0

    def test_p6_k_that_groups_do_not_divide(self, fit: Callable[..., Any]) -> None:
        """The input that the row describes: no abort, and no 4 bits either."""
        words = ("--on", "sophgo:bm1684x@1.28.1", "--to", "w4bf16", "--group-size", "128")
        code, report = fit("name,N,K\nmodel.layers.0.mlp.down_proj,64,192\n", *words)
        [finding] = report["findings"]
        assert (code, finding["code"], finding["severity"]) == (0, "Q703", "warning")
        assert "K = 192 is no multiple of the group size 128" in finding["message"]
        [group] = [way for way in finding["data"]["remedies"] if way["kind"] == "group-size"]
        assert (group["helps"], group["group_sizes"]) == (True, [32, 64])

    def test_issue_275_layers_that_the_checkpoint_keeps(self, fit: Callable[..., Any]) -> None:
        kept = {"bits": 16, "data_type": "float"}
        published = {
            **QWEN3_5_2B,
            "quantization_config": {
                "quant_method": "auto-round", "bits": 4, "group_size": 128, "sym": True,
                "data_type": "int", "packing_format": "auto_round:auto_gptq",
                "block_name_to_quantize": "model.language_model.layers",
                "extra_config": dict.fromkeys(GATES, kept),
            },
        }  # fmt: skip
        code, report = fit(published, "--on", "sophgo:bm1688@1.28.1")
        [finding] = report["findings"]
        assert (code, finding["code"], finding["count"]) == (1, "Q701", 36)
        assert finding["data"]["weights"] == "again"
        code, report = fit(published, "--on", "sophgo:bm1688@v1.28.beta.0-37-gdf2b86866-20260522")
        assert not [each for each in report["findings"] if each["code"] == "Q701"]
        code, report = fit(published, "--on", "sophgo:bm1688@1.30.2")
        assert (code, report["verdict"], report["findings"]) == (0, "clean", [])

    def test_p8_the_head_stays_at_16_bits(self, fit: Callable[..., Any]) -> None:
        code, report = fit(QWEN3_VL_8B, "--on", "sophgo:bm1684x", "--to", "w4bf16")
        assert (code, report["findings"]) == (0, [])
        [fits] = report["result"]["fits"]
        [head] = [row for row in fits["layers"] if row["name"] == "lm_head"]
        assert "16 bits" in head["outcome"]["weights"]


@pytest.mark.parametrize("chip", ["bm1684x", "bm1688"])
def test_d8_d12_4304_columns_of_a_vision_tower(chip: str, fit: Callable[..., Any]) -> None:
    """Groups of 32, 64 and 128 do not divide 4304: it matters only where vision is quantized."""
    assert [4304 % group for group in (16, 32, 64, 128)] == [0, 16, 16, 80]
    code, report = fit(QWEN3_VL_8B, "--on", f"sophgo:{chip}", "--to", "w4bf16")
    assert (code, report["findings"], report["coverage"]["skipped"]) == (0, [], [])
    [fits] = report["result"]["fits"]
    rows = {row["name"]: row for row in fits["layers"]}
    down = rows["model.visual.blocks.*.mlp.linear_fc2"]
    assert (down["n"], down["k"], down["count"]) == (1152, 4304, 27)
    assert "vision tower" in down["outcome"]["weights"]
    # The same shape outside of a vision tower has no group size that helps.
    _, report = fit("name,N,K\nmodel.layers.0.mlp.down_proj,1152,4304\n", "--on",
                    f"sophgo:{chip}", "--to", "w4bf16")  # fmt: skip
    [finding] = report["findings"]
    assert finding["code"] == "Q703"
    [group] = [way for way in finding["data"]["remedies"] if way["kind"] == "group-size"]
    assert (group["helps"], group["group_sizes"]) == (False, [])


def test_d4_a_vocabulary_on_the_row_axis_only() -> None:
    """49,954 rows are fine for 256-blocks; 49,954 columns are not."""
    for shape, told in (((49954, 256), []), ((4, 49954), ["Q505"])):
        data = bytes(4 * shape[0] * shape[1])
        tensor = ("output.weight", 0, shape[::-1], data)
        Path("m.gguf").write_bytes(write_gguf({"general.architecture": "llama"}, [tensor]))
        words = ["check", "m.gguf", "--to", "Q4_K", "--select", "Q505", "-f", "json"]
        done = CliRunner().invoke(cli, words, prog_name="qassay")
        assert [each["code"] for each in json.loads(done.stdout)["findings"]] == told
