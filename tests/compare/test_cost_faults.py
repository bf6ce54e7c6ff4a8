"""A float model against a quantized one with one fault planted: each is named, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from packings import AWQ, GPTQ_CONFIG, NAME, Matrix, save

from qassay.testing.safetensors_writer import write_safetensors

OTHER = NAME.replace("up", "gate")
SHAPES = [(64, 256, 32), (192, 256, 64), (128, 512, 128)]


def weights(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    spread = rng.uniform(0.5, 2, (rows, 1)) * 0.02
    return (rng.normal(size=(rows, columns)) * spread).astype(np.float32)


def rounded(source: np.ndarray, group: int, *, symmetric: bool = False) -> Matrix:
    """Return the source rounded to the nearest of 4 bits, as round-to-nearest quantizers do."""
    groups = source.reshape(source.shape[0], -1, group)
    if symmetric:
        scales = (np.abs(groups).max(axis=2) / 7.5).astype(np.float16)
        zeros = np.full(scales.shape, 8)
    else:
        low, high = np.minimum(groups.min(axis=2), 0), np.maximum(groups.max(axis=2), 0)
        scales = ((high - low) / 15).astype(np.float16)
        zeros = np.clip(np.rint(-low / scales), 0, 15).astype(int)
    codes = np.rint(groups / scales[:, :, None].astype(np.float32)) + zeros[:, :, None]
    return Matrix(np.clip(codes, 0, 15).astype(int).reshape(source.shape), zeros, scales, group)


def floats(path: Any, tensors: dict[str, np.ndarray]) -> Any:
    path.mkdir(parents=True)
    entries = [(f"{n}.weight", "F32", list(w.shape), w.tobytes()) for n, w in tensors.items()]
    (path / "model.safetensors").write_bytes(write_safetensors(entries))
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture
def against(tmp_path, compare) -> Callable[..., tuple[list[dict[str, Any]], dict[str, Any]]]:
    """Compare a float weight with a GPTQ matrix; return findings and the layer."""

    def run(source: np.ndarray, matrix: Matrix, **more: Any):
        others = more.get("others", {})
        a = floats(tmp_path / "a", {NAME: source, **{n: w for n, (w, _) in others.items()}})
        layers = {NAME: matrix.gptq(), **{n: m.gptq() for n, (_, m) in others.items()}}
        config = json.loads(json.dumps(GPTQ_CONFIG))
        config["group_size"] = matrix.group
        _, report = compare(a, save(tmp_path / "b", layers, config))
        layer = next(x for x in report["result"]["layers"] if x["name"].startswith(NAME))
        return report["findings"], layer

    return run


def swapped_rows(m: Matrix) -> Matrix:
    order = np.arange(len(m.codes))
    order[[5, 40]] = order[[40, 5]]
    return replace(m, codes=m.codes[order], zeros=m.zeros[order], scales=m.scales[order])


def dealt(m: Matrix) -> Matrix:
    order = np.arange(len(m.codes)).reshape(-1, 32).T.reshape(-1)
    return replace(m, codes=m.codes[order], zeros=m.zeros[order], scales=m.scales[order])


def tiles(part: np.ndarray, order: list[int]) -> np.ndarray:
    return part.reshape(-1, 8, part.shape[1])[:, order].reshape(part.shape)


FAULTS: dict[str, tuple[Callable[[Matrix], Matrix], str, str]] = {
    "zeros one lower": (lambda m: replace(m, zeros=m.zeros - 1), "Q605", "1 lower"),
    "zeros one higher": (lambda m: replace(m, zeros=m.zeros + 1), "Q605", "1 higher"),
    "nibbles swapped": (
        lambda m: replace(m, codes=m.codes.reshape(-1, 2)[:, ::-1].reshape(m.codes.shape)),
        "Q606", "two nibbles of each byte",
    ),
    "AWQ order missing in codes": (
        lambda m: replace(m, codes=tiles(m.codes, AWQ)), "Q606", "AWQ",
    ),
    "AWQ order missing in zeros": (
        lambda m: replace(m, zeros=tiles(m.zeros, AWQ)), "Q606", "in zero points",
    ),
    "two rows swapped": (swapped_rows, "Q603", "swapped: 5 and 40"),
    "channels not dealt back": (dealt, "Q603", "whole rows are permuted"),
    "rows rolled": (
        lambda m: replace(
            m, codes=np.roll(m.codes, 1, 0), zeros=np.roll(m.zeros, 1, 0),
            scales=np.roll(m.scales, 1, 0),
        ),
        "Q603", "rolled by",
    ),
    "columns permuted": (
        lambda m: replace(m, codes=m.codes[:, np.random.default_rng(3).permutation(
            m.codes.shape[1])]),
        "Q603", "columns are permuted",
    ),
    "groups rolled": (
        lambda m: replace(m, scales=np.roll(m.scales, 1, 1), zeros=np.roll(m.zeros, 1, 1)),
        "Q604", "rolled by 1 group",
    ),
    "zeros rolled": (
        lambda m: replace(m, zeros=np.roll(m.zeros, -1, 1)), "Q604", "zero points are rolled",
    ),
    "scales doubled": (
        lambda m: replace(m, scales=m.scales * np.float16(2)), "Q613", "2 times as large",
    ),
    "column lost": (
        lambda m: replace(m, codes=np.where(
            np.arange(m.codes.shape[1]) == 7, np.repeat(m.zeros, m.group, 1), m.codes)),
        "Q601", "1 column decode",
    ),
    "row lost": (
        lambda m: replace(m, codes=np.where(
            np.arange(len(m.codes))[:, None] == 9, np.repeat(m.zeros, m.group, 1), m.codes)),
        "Q601", "1 row decode",
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("symmetric", [False, True])
def test_rounding_to_nearest_is_no_finding(shape, symmetric, against):
    source = weights(*shape[:2])
    findings, layer = against(source, rounded(source, shape[2], symmetric=symmetric))
    assert findings == []
    assert (layer["relation"], layer["transformations"]) == ("quantized", [])
    assert 0.8 < layer["cost"]["expected"]["ratio"] < 1.2
    assert layer["cost"]["expected"]["code_ratio"] < 1.02
    assert layer["cost"]["max_steps"]["value"] <= 1.01


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_named(name, shape, against):
    plant, code, words = FAULTS[name]
    source = weights(*shape[:2])
    sound = rounded(source, shape[2])
    sound = replace(sound, zeros=np.clip(sound.zeros, 1, 14))
    source = np.where(np.abs(source - sound.values()) < np.repeat(
        sound.scales.astype(np.float32), shape[2], 1), source, sound.values())  # fmt: skip
    findings, layer = against(source, plant(sound))
    assert [(x["code"], words in x["message"]) for x in findings] == [(code, True)]
    assert findings[0]["severity"] == "error"
    if code != "Q601":
        assert layer["relation"] == "equal-up-to"
        assert layer["cost_once_undone"]["expected"]["ratio"] < 1.2
        assert layer["cost"]["expected"]["ratio"] > 1.2
