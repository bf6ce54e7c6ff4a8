"""Checkpoints packed by hand, and where the fixtures are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from qassay.testing.safetensors_writer import write_safetensors

TPU = Path(__file__).resolve().parents[1] / "fixtures" / "tpu"
CHECKPOINTS = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"


def pack_words(codes: np.ndarray) -> np.ndarray:
    """Return int32 [rows, n / 8] of codes [rows, n]: code 8 w + i in nibble i of word w."""
    rows, count = codes.shape
    words = np.zeros((rows, count // 8), np.uint32)
    for place in range(8):
        words |= codes[:, place::8].astype(np.uint32) << np.uint32(4 * place)
    return words.view(np.int32)


DTYPES = {"int32": "I32", "int64": "I64", "float32": "F32", "float16": "F16", "int8": "I8",
          "uint8": "U8"}  # fmt: skip


def checkpoint(folder: Path, arrays: dict[str, np.ndarray], config: Any = None) -> Path:
    """Write a folder with one safetensors file and a config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = [
        (name, DTYPES[str(array.dtype)], list(array.shape), np.ascontiguousarray(array).tobytes())
        for name, array in arrays.items()
    ]
    (folder / "model.safetensors").write_bytes(write_safetensors(tensors, {"format": "pt"}))
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def stored(folder: Path, file: str = "model.safetensors") -> dict[str, np.ndarray]:
    """Return a file's arrays as the library of the format's authors reads them."""
    from safetensors.numpy import load_file

    return load_file(folder / file)
