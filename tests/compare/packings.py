"""Packers written down once more, apart from the package's own: what the tests compare."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors

AWQ = [0, 2, 4, 6, 1, 3, 5, 7]
WORDS = {"<i4": "I32", "<i8": "I64", "<f2": "F16", "<f4": "F32", "|u1": "U8", "<u2": "BF16"}


def nibbles(codes: np.ndarray, axis: int, order: list[int] | None = None) -> np.ndarray:
    """Return 4-bit codes packed eight to an int32 word along `axis`."""
    moved = np.moveaxis(codes.astype(np.uint32), axis, -1)
    words = moved.reshape(*moved.shape[:-1], -1, 8)[..., order or list(range(8))]
    packed = (words << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32)
    return np.moveaxis(packed, -1, axis).view(np.int32)


@dataclass(frozen=True)
class Matrix:
    """A quantized matrix: codes `[N, K]`, zero points and scales `[N, G]`."""

    codes: np.ndarray
    zeros: np.ndarray
    scales: np.ndarray
    group: int

    @classmethod
    def random(
        cls, rows: int = 64, columns: int = 128, group: int = 32, *, symmetric: bool = False,
        seed: int = 0,
    ) -> Matrix:  # fmt: skip
        rng = np.random.default_rng(seed)
        shape = (rows, columns // group)
        zeros = np.full(shape, 8) if symmetric else rng.integers(1, 15, shape)
        scales = rng.uniform(0.5, 2, shape).astype(np.float16) / np.float16(64)
        return cls(rng.integers(0, 16, (rows, columns)), zeros, scales.astype(np.float16), group)

    def values(self) -> np.ndarray:
        spread = lambda part: np.repeat(part, self.group, axis=1)  # noqa: E731
        scales = spread(self.scales.astype(np.float32))
        return (self.codes - spread(self.zeros)).astype(np.float32) * scales

    def gptq(self, *, version: int = 1, g_idx: np.ndarray | None = None) -> dict[str, np.ndarray]:
        stored = (self.zeros - (1 if version == 1 else 0)) & 15
        columns = self.codes.shape[1]
        index = np.arange(columns) // self.group if g_idx is None else g_idx
        return {
            "qweight": nibbles(self.codes.T, 0),
            "qzeros": nibbles(stored.T, 1),
            "scales": np.ascontiguousarray(self.scales.T),
            "g_idx": index.astype(np.int32),
        }

    def awq(
        self, codes: list[int] | None = AWQ, zeros: list[int] | None = AWQ
    ) -> dict[str, np.ndarray]:
        return {
            "qweight": nibbles(self.codes.T, 1, codes),
            "qzeros": nibbles(self.zeros.T, 1, zeros),
            "scales": np.ascontiguousarray(self.scales.T),
        }

    def compressed(self) -> dict[str, np.ndarray]:
        return {
            "weight_packed": nibbles(self.codes, 1),
            "weight_scale": self.scales,
            "weight_zero_point": nibbles(self.zeros, 0),
            "weight_shape": np.array(self.codes.shape, np.int64),
        }

    def q4_0(self) -> bytes:
        blocks = self.codes.reshape(-1, 32).astype(np.uint8)
        packed = blocks[:, :16] | (blocks[:, 16:] << 4)
        scales = np.ascontiguousarray(self.scales).reshape(-1, 1).view(np.uint8)
        return np.concatenate([scales, packed], axis=1).tobytes()


GPTQ_CONFIG = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False,
               "desc_act": False, "checkpoint_format": "gptq"}  # fmt: skip
GPTQ_V2 = {**GPTQ_CONFIG, "checkpoint_format": "gptq_v2"}
AWQ_CONFIG = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True,
              "version": "gemm"}  # fmt: skip
PACK_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32,
    }}},
    "ignore": [],
}  # fmt: skip
NAME = "model.layers.0.mlp.up_proj"
GGUF_NAME = "blk.0.ffn_up.weight"


def save(
    folder: Path, parts: dict[str, dict[str, np.ndarray]], config: dict[str, Any] | None = None
) -> Path:
    """Write a folder: tensors by module and part name, and config.json."""
    folder.mkdir()
    tensors = [
        (
            f"{module}.{part}" if not part.startswith("_") else f"{module}{part}",
            WORDS[array.dtype.str] if array.dtype.str != "|i1" else "F8_E4M3",
            list(array.shape),
            np.ascontiguousarray(array).tobytes(),
        )
        for module, members in parts.items()
        for part, array in members.items()
    ]
    (folder / "model.safetensors").write_bytes(write_safetensors(tensors))
    document: dict[str, Any] = {"architectures": ["LlamaForCausalLM"]}
    if config is not None:
        document["quantization_config"] = config
    (folder / "config.json").write_text(json.dumps(document))
    return folder


def save_gguf(path: Path, tensors: list[Any], metadata: dict[str, Any] | None = None) -> Path:
    path.write_bytes(write_gguf(metadata or {}, tensors))
    return path
