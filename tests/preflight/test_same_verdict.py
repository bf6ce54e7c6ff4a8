"""Chunks, threads and kernels do not show in the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qassay

ALL = "Q8_0,Q4_0,Q4_1,Q4_K,Q6_K,MXFP4,IQ4_XS,IQ4_NL,F16,f8_e4m3,w4bf16,Q4_K_M"


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory, save: Callable[..., Path]) -> Path:
    """Return floats of every size, with zeros, outliers, NaN and infinities among them."""
    rng = np.random.default_rng(5)
    tensors = {}
    for dtype in (np.float32, np.float16, np.float64):
        for name, shape in (("a.weight", (24, 768)), ("exps.weight", (3, 8, 512))):
            with np.errstate(all="ignore"):
                rows = rng.standard_normal(shape)
                rows *= 2.0 ** rng.integers(-60, 40, (*shape[:-1], 1))
                blocks = rows.reshape(-1, 32)
                blocks *= np.where(rng.random((blocks.shape[0], 1)) < 0.3, 1e-7, 1.0)
                blocks[rng.random(blocks.shape[0]) < 0.1] = 0
                rows[rng.random(shape) < 0.001] = np.nan
                rows[rng.random(shape) < 0.001] = np.inf
                rows[rng.random(shape) < 0.001] = 6e6
                tensors[f"{np.dtype(dtype).name}.{name}"] = rows.astype(dtype)
    tensors["odd.weight"] = rng.standard_normal((9, 97)).astype(np.float32)
    tensors["one_sided.weight"] = (1 + rng.random((9, 128))).astype(np.float32)
    return save(tmp_path_factory.mktemp("troubled") / "troubled.safetensors", tensors)


def rendered(path: Path, **options: object) -> str:
    return json.dumps(qassay.check(path, to=ALL, **options).to_dict())  # type: ignore[arg-type]


@pytest.mark.slow
def test_report_is_the_same_however_it_is_read(troubled, monkeypatch):
    monkeypatch.setenv("QASSAY_KERNELS", "reference")
    truth = rendered(troubled, jobs=1)
    codes = {each["code"] for each in json.loads(truth)["findings"]}
    assert {"Q501", "Q502", "Q503", "Q504", "Q505", "Q506"} <= codes
    for kernels, jobs, chunk in (
        ("reference", 3, 5000), ("fast", 1, 1 << 20), ("fast", 2, 1500), ("fast", 4, 1),
    ):  # fmt: skip
        monkeypatch.setenv("QASSAY_KERNELS", kernels)
        assert rendered(troubled, jobs=jobs, chunk_bytes=chunk) == truth, (kernels, jobs, chunk)
