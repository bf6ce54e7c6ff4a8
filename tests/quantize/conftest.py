"""Float models to quantize, and ways to run the command line on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner, Result

import qassay
from qassay.cli.main import cli
from qassay.testing.gguf_writer import Typed, write_gguf
from qassay.testing.safetensors_writer import write_safetensors

ROOT = str(Path(qassay.__file__).parent.parent)
SCHEMA = json.loads((files("qassay.report") / "schema" / "report-v1.json").read_text("utf-8"))


def weights(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((rows, columns)) * 0.02).astype(np.float32)


def bfloat(values: np.ndarray) -> bytes:
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, without settings of whoever runs the tests."""
    for name in list(os.environ):
        if name.startswith("QASSAY_") or name == "NO_COLOR":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Callable[..., Result]:
    """Run `qassay quantize` in this process."""

    def call(*args: object, code: int | None = 0) -> Result:
        words = ["quantize", *map(str, args)]
        result = CliRunner().invoke(cli, words, prog_name="qassay")
        unexpected = result.exception
        assert unexpected is None or isinstance(unexpected, SystemExit), result.exc_info
        assert code is None or result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def document(run: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    """Run it and return the JSON report, checked against the schema."""

    def call(*args: object, code: int = 0) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(run(*args, "-f", "json", code=code).stdout)
        jsonschema.validate(made, SCHEMA, cls=jsonschema.Draft202012Validator)
        return made

    return call


@pytest.fixture
def spawn() -> Callable[..., subprocess.Popen[bytes]]:
    """Start `qassay quantize` in a process of its own."""

    def call(*args: object, **more: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "qassay", "quantize", *map(str, args)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": ROOT},
            **more,
        )

    return call


@pytest.fixture(name="weights")
def _weights() -> Callable[..., np.ndarray]:
    """Return what makes seeded weights: (rows, columns, seed)."""
    return weights


@pytest.fixture
def floats(tmp_path: Path) -> Path:
    """A safetensors file with every kind of float, a norm, awkward rows, experts and integers."""
    up, down = weights(96, 512), weights(8, 256, 1)
    tensors = [
        ("up.weight", "F32", [96, 512], up.tobytes()),
        ("down.weight", "F16", [8, 256], down.astype("<f2").tobytes()),
        ("gate.weight", "BF16", [8, 256], bfloat(down)),
        ("wide.weight", "F64", [8, 256], down.astype("<f8").tobytes()),
        ("experts.weight", "F32", [3, 4, 256], weights(12, 256, 2).tobytes()),
        ("narrow.weight", "F32", [5, 96], weights(5, 96, 3).tobytes()),
        ("odd.weight", "F32", [5, 33], weights(5, 33, 4).tobytes()),
        ("norm.weight", "BF16", [256], bfloat(np.abs(weights(1, 256, 5)))),
        ("scalar", "F32", [], np.float32(0.5).tobytes()),
        ("position_ids", "I64", [1, 8], np.arange(8, dtype="<i8").tobytes()),
    ]
    path = tmp_path / "floats.safetensors"
    path.write_bytes(write_safetensors(tensors, align=64))
    return path


METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "general.name": "tiny ☃",
    "general.alignment": 64,
    "general.file_type": 1,
    "llama.block_count": 1,
    "llama.rope.freq_base": 10000.0,
    "some.bool": True,
    "some.u8": Typed(0, 7),
    "some.i64": Typed(11, -(1 << 40)),
    "some.f64": Typed(12, 1e-300),
    "tokenizer.ggml.tokens": [f"token {n} ☃" for n in range(500)],
    "tokenizer.ggml.scores": [float(n) for n in range(500)],
    "nested": Typed(9, [Typed(9, [1, 2], 4), Typed(9, [3], 4)], 9),
    "empty": Typed(9, [], 8),
}


@pytest.fixture
def gguf_floats(tmp_path: Path) -> Path:
    """A GGUF file of floats with metadata of every kind and an alignment of its own."""
    axes, values = (256, 8), weights(8, 256)
    path = tmp_path / "floats.gguf"
    path.write_bytes(
        write_gguf(
            METADATA,
            [
                ("blk.0.ffn_up.weight", 0, axes, values.tobytes()),
                ("blk.0.ffn_down.weight", 1, axes, values.astype("<f2").tobytes()),
                ("blk.0.attn_norm.weight", 0, (256,), np.abs(values[0]).tobytes()),
                ("blk.0.bias", 1, (256,), values[1].astype("<f2").tobytes()),
            ],
            alignment=64,
        )
    )
    return path


@pytest.fixture
def one_tensor(tmp_path: Path) -> Callable[..., Path]:
    """Write float32 weights as the only tensor, `a.weight`, of a safetensors file."""

    def call(values: np.ndarray, name: str = "one.safetensors") -> Path:
        tensor = ("a.weight", "F32", list(values.shape), values.astype("<f4").tobytes())
        (tmp_path / name).write_bytes(write_safetensors([tensor], align=64))
        return tmp_path / name

    return call
