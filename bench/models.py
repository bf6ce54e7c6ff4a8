"""Makes the model files that the benchmarks read: real quantizer output, tiled to size."""

from __future__ import annotations

from pathlib import Path

import libgguf
import numpy as np
from gguf import GGMLQuantizationType

from qassay.testing.gguf_writer import GgufTensor, build_gguf

K = 4096
MB = 1 << 20
TYPES = {"Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "Q4_0": 2, "F16": 1}


def encoded(kind: str, rows: int) -> bytes:
    """Return `rows` rows of K normal weights (sd 0.02), written by libgguf."""
    weights = np.random.default_rng(1234).normal(0, 0.02, (rows, K)).astype(np.float32)
    return bytes(libgguf.quantize_rows(weights, GGMLQuantizationType[kind]).tobytes())


def plan(total: int) -> list[tuple[str, int]]:
    """Return (type, bytes) of the tensors of a file of about `total` bytes, mostly Q8_0.

    Q4_K, Q6_K, Q4_0 and F16 get a sixteenth each (256 MB of 4 GB), Q8_0 the rest.
    """
    small = total // 16
    return [
        *(("Q8_0", total // 16) for _ in range(12)),
        *((kind, small) for kind in ("Q4_K", "Q6_K", "Q4_0", "F16")),
    ]


def make_gguf(path: Path, total: int) -> Path:
    """Write a GGUF file of about `total` bytes at `path`, unless it is there already."""
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    base = {kind: encoded(kind, 512) for kind in TYPES}
    tensors, offset = [], 0
    for number, (kind, size) in enumerate(plan(total)):
        rows = max(1, size // (len(base[kind]) // 512))
        tensors.append((kind, rows, f"blk.{number}.ffn_up.weight", offset))
        used = rows * (len(base[kind]) // 512)
        offset += -(-used // 32) * 32
    header = build_gguf(
        {"general.architecture": "llama", "general.alignment": np.uint32(32).item()},
        [
            GgufTensor(name, TYPES[kind], (K, rows), b"", offset=at)
            for kind, rows, name, at in tensors
        ],
    )
    unfinished = path.with_suffix(".part")
    with unfinished.open("wb") as file:
        file.write(header.data[: header.data_offset])
        for kind, rows, _, at in tensors:
            file.write(b"\0" * (header.data_offset + at - file.tell()))
            row = len(base[kind]) // 512
            left = rows * row
            while left:
                left -= file.write(base[kind][: min(left, len(base[kind]))])
        file.write(b"\0" * (-file.tell() % 32))
    unfinished.rename(path)
    return path
