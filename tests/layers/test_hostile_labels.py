"""Rules about labels, set against configurations and companions that hold anything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mutated import DOWN, Checkpoint

from qassay.run.check import check
from qassay.run.options import CheckOptions

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 3, 1 << 70, 0.5, "", "x" * 300, "\x1b[31m\n", [], [0, 0], [-1, 128],
    ["re:("], {}, {"a": {}}, [[[]]],
)  # fmt: skip
NAMES = ("autoround-w4a16-asym-gptq", "llmcompressor-nvfp4a16", "autoround-fp8_block")


def _keys(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(document, dict):
        for key, value in document.items():
            yield (*path, key)
            yield from _keys(value, (*path, key))


def _put(document: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        document = document[key]
    document[path[-1]] = value


@pytest.mark.parametrize("name", NAMES)
def test_any_value_under_any_key(name: str, tmp_path: Path) -> None:
    model = Checkpoint(name)
    model.others.clear()
    folder = model.write(tmp_path / "model")
    original = json.dumps(model.config["quantization_config"])
    tried = 0
    for number, path in enumerate(_keys(json.loads(original))):
        for value in ODD[number % 2 :: 2]:
            changed = json.loads(original)
            _put(changed, path, value)
            model.config["quantization_config"] = changed
            (folder / "config.json").write_text(json.dumps(model.config))
            result = check(folder, CheckOptions(select=("Q1",)))
            assert result.facts.crashed == [], (path, value)
            assert all("\x1b" not in each.message for each in result.findings)
            tried += 1
    assert tried > 100


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (0, 5), (2, 2, 2), (1,) * 9])
def test_companions_of_any_shape(name: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    for at, part in enumerate(Checkpoint(name).tensors):
        if not part.startswith(f"{DOWN}."):
            continue
        model = Checkpoint(name)
        dtype, array = model.tensors[part]
        model.tensors[part] = (dtype, np.zeros(shape, array.dtype))
        result = check(model.write(tmp_path / str(at)), CheckOptions())
        assert result.facts.crashed == [], part
        named = {each.data.get("layer") for each in result.findings if each.severity > 1}
        assert DOWN in named or not result.complete, part


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-45, 3e38])
def test_any_global_scale(value: float, tmp_path: Path) -> None:
    model = Checkpoint("llmcompressor-nvfp4a16")
    model.put("weight_global_scale", np.array([value], np.float32))
    result = check(model.write(tmp_path / "model"), CheckOptions())
    assert result.facts.crashed == []
    assert any(each.data.get("layer") == DOWN for each in result.findings if each.severity > 1)
