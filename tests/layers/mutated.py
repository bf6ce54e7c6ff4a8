"""A checkpoint folder in memory, to be changed in one place and written again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qassay.encodings.layers import assemble
from qassay.encodings.layers.words import pack, unpack
from qassay.encodings.registry import for_stored_type, open_with_encodings
from qassay.testing.safetensors_writer import write_safetensors

CHECKPOINTS = Path(__file__).resolve().parent.parent / "fixtures" / "checkpoints"
DOWN = "model.layers.0.mlp.down_proj"
Q = "model.layers.0.self_attn.q_proj"
_VIEWS = {"I32": "<i4", "I64": "<i8", "F16": "<f2", "BF16": "<u2", "F32": "<f4", "U8": "u1",
          "F8_E4M3": "u1", "I8": "i1"}  # fmt: skip


class Checkpoint:
    """Tensors, configuration and files of a folder.

    Attributes:
        tensors: Dtype and array of each tensor, BF16 and 8-bit floats as bit patterns.
        config: `config.json`.
        others: Configurations of quantizers beside it, by file name.
        files: The shard of each tensor, where there is more than one; also what the index says.
        lies: What the index says instead.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        folder = CHECKPOINTS / name
        raw = (folder / "model.safetensors").read_bytes()
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + length])
        header.pop("__metadata__", None)
        self.tensors: dict[str, tuple[str, np.ndarray]] = {}
        for tensor, entry in header.items():
            begin, end = entry["data_offsets"]
            data = np.frombuffer(raw, np.uint8, end - begin, 8 + length + begin)
            array = data.view(_VIEWS[entry["dtype"]]).reshape(entry["shape"]).copy()
            self.tensors[tensor] = (entry["dtype"], array)
        self.config = json.loads((folder / "config.json").read_text())
        self.others = {
            path.name: json.loads(path.read_text()) for path in folder.glob("quant*_config.json")
        }
        self.files: dict[str, str] = {}
        self.lies: dict[str, str] = {}

    def configs(self) -> Iterator[dict[str, Any]]:
        """Yield every copy of the quantization configuration."""
        yield self.config["quantization_config"]
        yield from self.others.values()

    def array(self, part: str, layer: str = DOWN) -> np.ndarray:
        return self.tensors[f"{layer}.{part}"][1]

    def has(self, part: str, layer: str = DOWN) -> bool:
        return f"{layer}.{part}" in self.tensors

    def put(self, part: str, array: np.ndarray, layer: str = DOWN) -> None:
        name = f"{layer}.{part}"
        dtype = self.tensors[name][0]
        self.tensors[name] = (dtype, np.ascontiguousarray(array))

    def first(self, *parts: str, layer: str = DOWN) -> str:
        """Return the first of some parts that a layer has."""
        return next(part for part in parts if self.has(part, layer))

    def codes(self) -> str:
        return self.first("qweight", "weight_packed", "weight")

    def scales(self) -> str:
        return self.first("scales", "weight_scale", "weight_scale_inv")

    def zeros(self) -> str:
        return self.first("qzeros", "weight_zero_point")

    def write(self, folder: Path) -> Path:
        folder.mkdir()
        shards: dict[str, list[Any]] = {}
        for name, (dtype, array) in self.tensors.items():
            file = self.files.get(name, "model.safetensors")
            entry = (name, dtype, list(array.shape), np.ascontiguousarray(array).tobytes())
            shards.setdefault(file, []).append(entry)
        for file, entries in shards.items():
            (folder / file).write_bytes(write_safetensors(entries))
        (folder / "config.json").write_text(json.dumps(self.config))
        for name, config in self.others.items():
            (folder / name).write_text(json.dumps(config))
        if self.files:
            weight_map = {n: self.files.get(n, "model.safetensors") for n in self.tensors}
            weight_map.update(self.lies)
            document = {"metadata": {}, "weight_map": weight_map}
            (folder / "model.safetensors.index.json").write_text(json.dumps(document))
        return folder


def decoded(folder: Path) -> dict[str, np.ndarray]:
    """Return the weights that a folder holds, by module: layers decoded, and plain floats."""
    container = open_with_encodings(folder)
    try:
        assembly = assemble(container)
        found = {
            layer.module: layer.encoding.unpack(layer).dequantize() for layer in assembly.layers
        }
        for stored in assembly.loose:
            known = for_stored_type(stored.type)
            if stored.name.endswith(".weight") and not stored.part_of and known is not None:
                values = known.dequantize(stored.raw()).reshape(stored.shape)
                found[stored.name.removesuffix(".weight")] = values
    finally:
        container.close()
    return found


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Tell whether two folders hold the same weights, bit for bit (any NaN equals any other)."""
    return one.keys() == other.keys() and all(
        one[name].shape == other[name].shape
        and np.array_equal(one[name], other[name], equal_nan=True)
        for name in one
    )


def shifted(words: np.ndarray, bits: int, by: int, axis: int) -> np.ndarray:
    """Return packed zero points, each `by` more; `axis` is the one along which they are packed."""
    count = words.shape[axis] * 32 // bits
    codes = (unpack(words, bits, count, axis=axis).astype(np.int64) + by) & ((1 << bits) - 1)
    return pack(codes, bits, axis=axis)


def swapped(array: np.ndarray) -> np.ndarray:
    """Return an array with the halves of each byte swapped."""
    raw = np.ascontiguousarray(array).view(np.uint8)
    return ((raw << 4) | (raw >> 4)).astype(np.uint8).view(array.dtype).reshape(array.shape)


def reordered(words: np.ndarray) -> np.ndarray:
    """Return words of AWQ with their nibbles in natural order of channels."""
    lanes = [0, 2, 4, 6, 1, 3, 5, 7]
    nibbles = words.view(np.uint32)[..., None] >> (4 * np.arange(8, dtype=np.uint32)) & 15
    natural = np.empty_like(nibbles)
    natural[..., lanes] = nibbles
    packed = (natural << (4 * np.arange(8, dtype=np.uint32))).sum(axis=-1, dtype=np.uint32)
    return packed.view(np.int32)
