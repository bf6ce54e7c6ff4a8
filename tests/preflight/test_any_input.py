"""No float, of whatever bits, makes the preflight fail or warn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.runtimes.targets import known_targets
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

WIDTHS = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8, "F8_E4M3": 1, "F8_E5M2": 1, "I32": 4}
SHAPES = [[0, 32], [], [5], [3, 7], [2, 256], [3, 2, 512], [4, 288], [2, 33]]


@pytest.mark.parametrize("dtype", WIDTHS)
def test_random_bits(dtype: str, tmp_path: Path, kernel_set: str) -> None:
    rng = np.random.default_rng(WIDTHS[dtype])
    path = tmp_path / "random.safetensors"
    path.write_bytes(
        write_safetensors(
            SafeTensor(
                f"model.layers.{number}.mlp.down_proj.weight",
                dtype,
                shape,
                rng.integers(0, 256, math.prod(shape) * WIDTHS[dtype], np.uint8).tobytes(),
            )
            for number, shape in enumerate(SHAPES)
        )
    )
    report = qassay.check(path, to=known_targets())
    assert report.complete
    json.dumps(report.to_dict(), allow_nan=False)
    codes = {finding.code for finding in report.findings}
    assert ("Q505" in codes) is (dtype != "I32")


def test_a_quantized_model_is_not_quantized_again() -> None:
    folder = Path(__file__).resolve().parents[2] / "examples"
    report = qassay.check(folder / "minilm-layer0.gguf", to="Q8_0")
    targets = report.to_dict()["result"]["targets"]
    assert targets["ggml.q8_0"]["stays"]["not floats"] > 0
