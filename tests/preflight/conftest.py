"""Checking an array as if it were a model's only weight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qassay
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

Check = Callable[..., "list[qassay.Finding]"]
DTYPES = {"float32": "F32", "float16": "F16", "float64": "F64"}


def write(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    """Write arrays as a safetensors file."""
    path.write_bytes(
        write_safetensors(
            SafeTensor(name, DTYPES[values.dtype.name], list(values.shape), values.tobytes())
            for name, values in tensors.items()
        )
    )
    return path


@pytest.fixture(scope="session")
def save() -> Callable[[Path, dict[str, np.ndarray]], Path]:
    """Return the function that writes arrays as a safetensors file."""
    return write


@pytest.fixture
def preflight(tmp_path: Path) -> Check:
    """Return a function that checks an array for a target and returns the findings of Q5."""

    def run(values: Any, to: str, **options: Any) -> list[qassay.Finding]:
        weights = np.atleast_2d(np.asarray(values))
        if weights.dtype.name not in DTYPES:
            weights = weights.astype(np.float32)
        path = write(tmp_path / "one.safetensors", {"weight": np.ascontiguousarray(weights)})
        report = qassay.check(path, to=to, select=["Q5"], **options)
        assert report.complete
        return list(report.findings)

    return run
