"""Families that are not read are never clean, and never decoded as something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from mutated import CHECKPOINTS

from qassay.cli.main import cli
from qassay.encodings.layers import assemble
from qassay.encodings.registry import open_with_encodings
from qassay.testing.safetensors_writer import write_safetensors

NAME = "model.layers.0.mlp.up_proj"
WORDS = {"uint8": "U8", "int8": "I8", "uint32": "U32", "int32": "I32", "float32": "F32",
         "float16": "F16", "int64": "I64"}  # fmt: skip
RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (64, 32), dtype=np.uint8)
STATE = np.frombuffer(json.dumps({"quant_type": "nf4", "blocksize": 64}).encode(), np.uint8)


def halves(*shape: int) -> np.ndarray:
    return RNG.uniform(0.01, 0.02, shape).astype(np.float16)


FAMILIES: dict[str, tuple[dict[str, np.ndarray], dict[str, Any] | None]] = {
    "bitsandbytes 4 bit": (
        {
            f"{NAME}.weight": BYTES.reshape(-1, 1),
            f"{NAME}.weight.absmax": halves(64).astype(np.float32),
            f"{NAME}.weight.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
            f"{NAME}.weight.quant_state.bitsandbytes__nf4": STATE,
        },
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
    ),
    "bitsandbytes 8 bit": (
        {
            f"{NAME}.weight": BYTES.view(np.int8),
            f"{NAME}.SCB": halves(64).astype(np.float32),
            f"{NAME}.weight_format": np.zeros((), np.uint8),
        },
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
    ),
    "mlx": (
        {
            f"{NAME}.weight": BYTES.view(np.uint32),
            f"{NAME}.scales": halves(64, 2),
            f"{NAME}.biases": halves(64, 2),
        },
        None,
    ),
    "hqq": (
        {
            f"{NAME}.W_q": BYTES,
            f"{NAME}.scale": halves(64, 1),
            f"{NAME}.zero": halves(64, 1),
            f"{NAME}.nbits": np.array(4, np.int64),
        },
        None,
    ),
    "quanto": (
        {f"{NAME}.weight._data": BYTES, f"{NAME}.weight._scale": halves(64, 1)},
        {"quant_method": "quanto", "weights": "int8"},
    ),
    "torchao": (
        {f"{NAME}._weight_qdata": BYTES.view(np.int8), f"{NAME}._weight_scale": halves(2, 64)},
        {"quant_method": "torchao"},
    ),
    "quark": (
        {
            "model.layers.0.mlp.experts.gate_up_proj": BYTES.reshape(2, 32, 32),
            "model.layers.0.mlp.experts.gate_up_proj_scale": BYTES[:8].reshape(2, 32, 4),
        },
        {"quant_method": "quark"},
    ),
    "invented": (
        {f"{NAME}.rotated": BYTES, f"{NAME}.magnitudes": halves(64, 2)},
        {"quant_method": "spin-x", "bits": 4},
    ),
    "invented, without a configuration": (
        {f"{NAME}.rotated": BYTES, f"{NAME}.magnitudes": halves(64, 2)},
        None,
    ),
}


def write(folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any] | None) -> Path:
    folder.mkdir()
    entries = [
        (name, WORDS[array.dtype.name], list(array.shape), np.ascontiguousarray(array).tobytes())
        for name, array in tensors.items()
    ]
    (folder / "model.safetensors").write_bytes(write_safetensors(entries))
    if config is not None:
        (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return folder


def run(folder: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(cli, ["check", str(folder), "-f", "json"], prog_name="qassay")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_that_is_not_read(family: str, tmp_path: Path) -> None:
    tensors, config = FAMILIES[family]
    folder = write(tmp_path / "model", tensors, config)
    code, document = run(folder)
    assert (code, document["verdict"]) == (3, "incomplete")
    skipped = {skip["name"] for skip in document["coverage"]["skipped"]}
    codes = {name for name, array in tensors.items() if array.ndim > 1 and array.dtype.kind in "iu"}
    assert codes <= skipped
    assert [each for each in document["findings"] if each["severity"] != "info"] == []
    container = open_with_encodings(folder)
    assert assemble(container).layers == []
    container.close()


@pytest.mark.parametrize("name", ["bnb-nf4", "bnb-nf4-dq", "hqq-b4g64"])
def test_what_other_tools_wrote(name: str) -> None:
    code, document = run(CHECKPOINTS / name)
    assert (code, document["verdict"]) == (3, "incomplete")
    assert {each["severity"] for each in document["findings"]} == {"info"}
    skipped = {skip["name"] for skip in document["coverage"]["skipped"]}
    assert any("q_proj" in name for name in skipped)
    assert not any(
        str(tensor["encoding"]).startswith(("gptq", "awq")) for tensor in document["tensors"]
    )


@pytest.mark.parametrize(
    "tensors",
    [
        {"h.0.attn.bias": np.tri(8, dtype=np.uint8)[None, None],
         "h.0.attn.masked_bias": np.full(2, -1e4, np.float32)},
        {"embeddings.position_ids": np.arange(8)[None].astype(np.int32),
         "embeddings.weight": halves(8, 32)},
        {"table": BYTES},
        {"layer.index": np.arange(64), "layer.weight": halves(8, 32)},
    ],
    ids=["causal mask", "positions", "integers alone", "one axis"],
)  # fmt: skip
def test_plain_integers_of_a_float_model_are_checked(
    tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    code, document = run(write(tmp_path / "model", tensors, None))
    assert (code, document["verdict"]) == (0, "clean")


def test_a_plain_cast_beside_something_else_is_checked(tmp_path: Path) -> None:
    entries = [
        (f"{NAME}.weight", "F8_E4M3", [64, 32], (BYTES & 0x3F).tobytes()),
        (f"{NAME}.lora_A", "F16", [8, 32], halves(8, 32).tobytes()),
    ]
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(write_safetensors(entries))
    code, document = run(folder)
    assert (code, document["verdict"]) == (0, "clean")
