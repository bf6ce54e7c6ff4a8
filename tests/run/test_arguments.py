"""The functions of `import qassay` refuse what they cannot take, and say what they could."""

from __future__ import annotations

from pathlib import Path

import pytest

import qassay
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(write_gguf({}, [("a", 0, (8,), b"1" * 32)]))
    return path


@pytest.mark.parametrize("call", [qassay.open, qassay.check])
@pytest.mark.parametrize("given", ["", None, 3])
def test_no_path(call, given):
    with pytest.raises(qassay.UsageError, match="path"):
        call(given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jobs": 10**20}, "jobs"),
        ({"jobs": 1.5}, "jobs"),
        ({"jobs": "2"}, "jobs"),
        ({"jobs": True}, "jobs"),
        ({"jobs": 0}, "jobs"),
        ({"chunk_bytes": 2.0}, "chunk_bytes"),
        ({"select": None}, "list"),
        ({"select": [1]}, "no rule"),
        ({"select": ["Q"], "ignore": ["Q"]}, "nothing would be checked"),
        ({"ignore": "Q"}, "nothing would be checked"),
        ({"severities": {"Q3": "error"}}, "whole codes"),
        ({"severities": {3: "error"}}, "whole codes"),
        ({"severities": {"Q301": 5}}, "severity of Q301"),
        ({"severities": {"Q301": "bad"}}, "severity of Q301"),
        ({"severities": ["Q301"]}, "by code"),
    ],
    ids=str,
)
def test_arguments_out_of_range(path, arguments, message):
    with pytest.raises(qassay.UsageError, match=message):
        qassay.check(path, **arguments)


def test_arguments_in_range(path):
    report = qassay.check(path, jobs=1, select=["Q3"], severities={"Q301": "error"})
    assert report.verdict == "clean"


@pytest.mark.parametrize("shape", [[0, 1 << 62], [1 << 62, 0], [0, 5]])
def test_no_values_in_an_absurd_shape(tmp_path, shape):
    path = tmp_path / "m.safetensors"
    path.write_bytes(write_safetensors([("z", "F32", shape, b"")]))
    with qassay.open(path) as model:
        if max(shape) < 1 << 40:
            assert model.tensors["z"].dequantize().shape == tuple(shape)
        else:
            with pytest.raises(qassay.NotDecodableError, match="shape"):
                model.tensors["z"].dequantize()
