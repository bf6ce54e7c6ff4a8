"""`inspect` on checkpoints: families, shapes and bits of each layer, from headers alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from qassay.cli.main import cli

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"
# folder: encoding, group, rows of a group, symmetric by headers, act-order, claimed method
EXPECTED: dict[str, tuple[str, int, int, bool | None, bool | None, str]] = {
    "autoround-w3a16": ("gptq.int3", 128, 1, None, False, "auto-round"),
    "autoround-w4a16": ("gptq.int4", 128, 1, None, False, "auto-round"),
    "autoround-w4a16-awq": ("awq.int4", 128, 1, None, False, "awq"),
    "autoround-w4a16-asym-gptq": ("gptq.int4", 128, 1, None, False, "gptq"),
    "gptqmodel-gptq-w4g128-desc": ("gptq.int4", 128, 1, None, True, "gptq"),
    "llmcompressor-w4a16": ("compressed.pack.int4", 128, 1, True, False, "compressed-tensors"),
    "llmcompressor-w4a16_asym": (
        "compressed.pack.int4",
        128,
        1,
        False,
        False,
        "compressed-tensors",
    ),
    "llmcompressor-fp8_block": ("fp8.e4m3", 128, 128, True, False, "compressed-tensors"),
    "autoround-fp8_block": ("fp8.e4m3", 128, 128, True, False, "auto-round"),
    "llmcompressor-nvfp4a16": ("nvfp4", 16, 1, True, False, "compressed-tensors"),
    "llmcompressor-mxfp4a16": ("mxfp4", 32, 1, True, False, "compressed-tensors"),
}


def inspect(folder: Path, *more: str) -> str:
    result = CliRunner().invoke(cli, ["inspect", str(folder), *more], prog_name="qassay")
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("folder", EXPECTED)
def test_each_layer(folder: str) -> None:
    document: dict[str, Any] = json.loads(inspect(CHECKPOINTS / folder, "-f", "json"))
    layers = {each["module"]: each for each in document["result"]["layers"]}
    assert len(layers) == 6  # q, k, v, gate, up, down
    for name, shape in (("self_attn.k_proj", [128, 256]), ("mlp.down_proj", [256, 512])):
        layer = layers[f"model.layers.0.{name}"]
        found = tuple(
            layer[key] for key in ("encoding", "group", "group_rows", "symmetric", "act_order")
        )
        assert (*found, layer["claim"]["method"]) == EXPECTED[folder]
        assert layer["shape"] == shape
        stored = sum(
            each["bytes"]
            for each in document["tensors"]
            if each["name"] in {part["name"] for part in layer["parts"].values()}
        )
        assert layer["bits_per_weight"] == stored * 8 / (shape[0] * shape[1])


def test_sums_count_weights_not_words() -> None:
    document = json.loads(inspect(CHECKPOINTS / "autoround-w4a16", "-f", "json"))
    types = document["result"]["types"]
    # q 256x256, k and v 128x256, gate, up and down 512x256
    assert types["gptq.int4"]["weights"] == (256 + 128 + 128 + 3 * 512) * 256
    assert types["gptq.int4"]["tensors"] == 18
    assert "I32" not in types
    assert 4.1 < types["gptq.int4"]["bits_per_weight"] < 4.2


def test_table_says_what_people_say() -> None:
    text = inspect(CHECKPOINTS / "llmcompressor-fp8_block")
    row = next(line for line in text.splitlines() if "k_proj" in line and "fp8.e4m3" in line)
    assert "[128, 256]" in row
    assert "128 x 128" in row
    assert "F8_E4M3, BF16" in row
    text = inspect(CHECKPOINTS / "autoround-w4a16")
    row = next(line for line in text.splitlines() if "k_proj" in line and "gptq.int4" in line)
    assert row.split()[6] == "yes"  # symmetric, as the configuration says


def test_not_read_stays_packed() -> None:
    document = json.loads(inspect(CHECKPOINTS / "bnb-nf4", "-f", "json"))
    assert "layers" not in document["result"]
    assert document["result"]["types"]["U8"]["bits_per_weight"] is None
