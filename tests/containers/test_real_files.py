"""Real files: no defect in a sound one, and the same contents as other people's readers give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qassay.containers import MetadataArray, open_container
from qassay.core.errors import InputError

GGUF = (
    "real/gguf-libgguf/*.gguf",
    "real/slices/*.gguf",
    "real/github/llama-2-tiny-random.gguf",
    "real/github/weight-inspect-empty.gguf",
)
SAFETENSORS = (
    "real/checkpoints/*/model.safetensors",
    "real/mlx/*.safetensors",
    "real/github/*.safetensors",
)


def find(fixtures: Path, *patterns: str) -> list[Path]:
    found = [path for pattern in patterns for path in sorted(fixtures.glob(pattern))]
    assert len(found) >= len(patterns)
    return found


def test_sound_files_and_folders_have_no_defect(fixtures: Path) -> None:
    folders = ("real/checkpoints/*", "real/mlx", "real/slices", "real/gguf-libgguf")
    for path in find(fixtures, *GGUF, *SAFETENSORS, *folders):
        container = open_container(path)
        assert container.defects == [], path
        assert container.skipped == [], path
        assert all(tensor.readable for tensor in container.tensors), path
        assert path.is_file() or (path / "config.json").is_file() is ("config" in container.extra)


def test_gguf_contents_equal_those_of_gguf_py(fixtures: Path) -> None:
    gguf = pytest.importorskip("gguf")
    for path in find(fixtures, *GGUF):
        ours, theirs = open_container(path), gguf.GGUFReader(path)
        assert ours.extra["alignment"] == theirs.alignment
        assert len(ours.tensors) == len(theirs.tensors), path
        for tensor, other in zip(ours.tensors, theirs.tensors, strict=True):
            assert tensor.name == other.name
            assert tensor.type.label == int(other.tensor_type)
            assert tensor.shape == tuple(int(axis) for axis in other.shape[::-1])
            assert tensor.offset == int(other.data_offset)
            assert tensor.nbytes == int(other.n_bytes)
            assert np.array_equal(tensor.raw(), other.data.reshape(-1).view(np.uint8))
        own_fields = {"GGUF.version", "GGUF.tensor_count", "GGUF.kv_count"}
        assert list(ours.metadata) == [key for key in theirs.fields if key not in own_fields]
        for key, value in ours.metadata.items():
            plain: Any = list(value) if isinstance(value, MetadataArray) else value
            assert plain == theirs.fields[key].contents(), key


def test_safetensors_contents_equal_those_of_safetensors(fixtures: Path) -> None:
    safetensors = pytest.importorskip("safetensors")
    for path in find(fixtures, *SAFETENSORS):
        ours = open_container(path)
        raw = safetensors.deserialize(path.read_bytes())
        theirs = dict(raw)
        assert {t.name for t in ours.tensors} == set(theirs)
        for tensor in ours.tensors:
            other = theirs[tensor.name]
            assert tensor.shape == tuple(other["shape"])
            assert tensor.type.label == other["dtype"]
            assert tensor.raw().tobytes() == bytes(other["data"])
        with safetensors.safe_open(path, "np") as opened:
            assert ours.metadata == (opened.metadata() or {})


def test_wrong_real_files(fixtures: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_container(fixtures / "real/github/lfs-pointer.gguf")
    assert caught.value.found == "a Git LFS pointer that stands for a file of 514976 bytes"
    container = open_container(fixtures / "real/github/ollama-6-bytes.gguf")
    assert [(d.code, d.byte_offset) for d in container.defects] == [("Q001", 4)]


def test_a_folder_of_other_formats_says_which(fixtures: Path) -> None:
    with pytest.raises(InputError) as caught:
        open_container(fixtures / "real/onnx-ort")
    assert ".onnx" in str(caught.value.found)
