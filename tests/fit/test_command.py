"""The command, `check --on`, and checkpoints that quantizers wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from fit_models import QWEN3_5_2B, qwen3_5
from jsonschema import Draft202012Validator

from qassay.cli.main import cli

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
SCHEMA = json.loads(
    (
        Path(__file__).parents[2] / "src" / "qassay" / "report" / "schema" / "report-v1.json"
    ).read_text()
)
TEXT = ("-f", "text")


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN3_5_2B))
    return path


def run(*words):
    done = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=True)
    assert "Traceback" not in done.output
    return done


def document(*words):
    done = run(*words, "-f", "json")
    report = json.loads(done.stdout)
    Draft202012Validator(SCHEMA).validate(report)
    return done.exit_code, report


def test_text_says_what_why_and_what_to_do(config):
    done = run("fit", "config.json", "--on", "sophgo:bm1684x@1.28.1", "--to", "w4bf16")
    assert done.exit_code == 1
    for part in ("36 Linears", "in_proj_a", "invalid scale channel", "no group size helps",
                 "pad N from 16 to 64", "of configuration",
                 "186 of 186"):  # fmt: skip
        assert part in " ".join(done.stdout.split()), part


def test_json_follows_the_schema(config):
    code, report = document("fit", "config.json", "--on", "sophgo:bm1684x@1.28.1", "--to", "w4bf16")
    assert (code, report["command"], report["verdict"]) == (1, "fit", "findings")
    [told] = report["result"]["fits"]
    assert told["on"] == "sophgo:bm1684x@1.28.1"
    assert told["bytes_read"] == config.stat().st_size
    assert sum(row["count"] for row in told["layers"]) == told["linears"] == 186
    assert report["result"]["rules"] == ["Q701", "Q702", "Q703", "Q704"]


def test_a_folder_with_nothing_but_a_configuration(config):
    code, report = document("fit", ".", "--on", "sophgo:bm1684x", "--to", "w4bf16")
    assert code == 0
    assert [finding["code"] for finding in report["findings"]] == ["Q703"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on", "sophgo:bm1684x"), "nothing says what the floats shall become"),
        (("--on", "sophgo:bm1684x", "--to", "q4"), "no mode"),
        (("--on", "sophgo:bm1"), "no such Sophgo chip"),
        (("--on", "sophgo:bm1684x@new"), "no version"),
        (("--on", "sophgo"), "wants a chip"),
        (("--on", "other:x"), "no such runtime"),
        ((), "--on"),
        (("--on", "sophgo:bm1684x", "--to", "w4bf16", "--tp", "0"), "--tp"),
        (("--on", "sophgo:bm1684x", "--to", "w4bf16", "--select", "Q2"), "no rule is left"),
    ],
)
def test_usage_errors(config, words, said):
    done = run("fit", "config.json", *words)
    assert done.exit_code == 2
    assert said in done.output


@pytest.mark.parametrize("text", ["", "{", "[", '"x"', "3", "{}", '{"model_type": 3}', "{} {}",
                                  '{"model_type": "mamba"}', "\xff"])  # fmt: skip
def test_what_cannot_be_read_is_not_checked(config, text):
    config.write_bytes(text.encode("latin-1"))
    code, report = document("fit", "config.json", "--on", "sophgo:bm1684x", "--to", "w4bf16")
    assert (code, report["verdict"]) == (3, "incomplete")
    assert report["coverage"]["skipped"]


def test_a_missing_file(config):
    code, _ = document("fit", "nowhere.json", "--on", "sophgo:bm1684x", "--to", "w4bf16")
    assert code == 3


FOUND = {
    "gptqmodel-gptq-w4g128-desc": ["sophgo.act-order"],
    "autoround-w3a16": ["sophgo.code-width"],
    "autoround-w4a16": [],
    "autoround-w4a16-asym-gptq": [],
    "autoround-w4a16-awq": [],
    "llmcompressor-w4a16": [],
    "llmcompressor-w4a16_asym": [],
    "llmcompressor-fp8_block": ["sophgo.ct-integers"],
}


@pytest.mark.parametrize("name", FOUND)
def test_checkpoints_that_quantizers_wrote(name):
    _, report = document("fit", CHECKPOINTS / name, "--on", "sophgo:bm1684x")
    assert [finding["data"]["rule"] for finding in report["findings"]] == FOUND[name]
    assert not report["coverage"]["skipped"]


def test_awq_is_made_w4f16():
    _, report = document(
        "fit", CHECKPOINTS / "autoround-w4a16-awq", "--on", "sophgo:bm1684x", "--to", "w4bf16"
    )
    [finding] = report["findings"]
    assert (finding["code"], finding["data"]["rule"]) == ("Q703", "sophgo.awq-half")


def test_what_is_not_understood_is_not_checked():
    code, report = document("fit", CHECKPOINTS / "bnb-nf4", "--on", "sophgo:bm1684x")
    assert (code, report["verdict"], report["findings"]) == (3, "incomplete", [])


@pytest.mark.parametrize("name", ["gptqmodel-gptq-w4g128-desc", "autoround-w3a16",
                                  "llmcompressor-w4a16", "source-tiny-llama-f16"])  # fmt: skip
def test_check_finds_the_same(name):
    words = (CHECKPOINTS / name, "--on", "sophgo:bm1684@1.28.1", "--select", "Q7", "--to", "w4bf16")
    _, by_fit = document("fit", *words)
    _, by_check = document("check", *words)
    assert by_fit["findings"]
    assert by_check["findings"] == by_fit["findings"]
    assert by_check["coverage"]["bytes"] > 0


def test_check_without_a_runtime_asks_none_of_these_rules():
    _, report = document("check", CHECKPOINTS / "autoround-w3a16")
    assert not any(code.startswith("Q7") for code in report["result"]["rules"])


def test_groups_of_compressed_tensors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = qwen3_5(2048, 32, layers=4)
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group",
               "group_size": 128}  # fmt: skip
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {
            "group_0": {"targets": ["re:.*mlp.*"], "weights": weights},
            "group_1": {"targets": ["re:.*self_attn.*", "re:.*linear_attn.*"], "weights": weights},
        },
        "ignore": ["lm_head"],
    }  # fmt: skip
    Path("config.json").write_text(json.dumps(config))
    code, report = document("fit", "config.json", "--on", "sophgo:bm1688")
    assert code == 1
    [finding] = report["findings"]
    assert finding["data"]["rule"] == "sophgo.ct-one-group"
    assert finding["data"]["error"] == "Only support one group config now"
    assert finding["data"]["stage"] == "export"
