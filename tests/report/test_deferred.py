"""A part of a document that is made when somebody looks at it."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.comparison.cost.facts import _worst
from qassay.report import of_compare
from qassay.report.deferred import Deferred
from qassay.testing.safetensors_writer import write_safetensors


def _made(calls: list[int]) -> dict[str, int]:
    calls.append(1)
    return {"a": 1}


def test_it_is_made_once_and_only_when_asked_for() -> None:
    calls: list[int] = []
    part = Deferred(partial(_made, calls))
    assert calls == []
    assert dict(part) == {"a": 1}
    assert part["a"] == len(part) == 1
    assert calls == [1]


@pytest.fixture
def report(tmp_path: Path) -> qassay.Report:
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    for name in ("a", "b"):
        tensors = [("model.layers.0.mlp.up_proj.weight", "F32", [8, 8], values.tobytes())]
        (tmp_path / f"{name}.safetensors").write_bytes(write_safetensors(tensors))
    return qassay.compare(tmp_path / "a.safetensors", tmp_path / "b.safetensors")


def test_a_comparison_makes_its_part_for_the_document_alone(
    report: qassay.Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = report.to_dict()
    assert document["result"]["layers"][0]["relation"] == "equal"
    assert pickle.loads(pickle.dumps(report)).to_dict() == document
    monkeypatch.setattr(of_compare, "_result", None)
    assert report.to_dict() == document


@pytest.mark.parametrize("bad", [[], [np.nan] * 3, [np.nan] * 60, [np.inf] * 12])
def test_the_worst_rows_are_those_of_a_full_sort(bad: list[float]) -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 9, 64).astype(np.float64)  # ties
    values[rng.permutation(64)[: len(bad)]] = bad
    assert _worst(values).tolist() == np.argsort(-values, kind="stable")[:8].tolist()
    assert _worst(values[:5]).tolist() == np.argsort(-values[:5], kind="stable").tolist()
