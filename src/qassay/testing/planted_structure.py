"""Structural faults, each in a small file of its own, beside its sound twin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qassay.core.finding import Severity
from qassay.encodings.registry import by_id
from qassay.testing.content import healthy
from qassay.testing.gguf_writer import BuiltGguf, GgufTensor, Typed, build_gguf
from qassay.testing.planted import Fault, Pair
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR
_WIDTH, _TOKENS = 64, 12
_Q8_0, _Q4_0, _F32 = 8, 2, 0
_LAST_BYTES = _TOKENS * _WIDTH * 4


def _tensor(name: str, number: int, encoding: str, rows: int, columns: int) -> GgufTensor:
    kind = by_id(encoding)
    data = healthy(kind, rows * columns // kind.block, "random", len(name))
    return GgufTensor(name, number, (columns, rows), data.tobytes())


def _model() -> list[GgufTensor]:
    """Return the tensors of a tiny model that matches `_METADATA`."""
    return [
        _tensor("token_embd.weight", _Q8_0, "ggml.q8_0", _TOKENS, _WIDTH),
        _tensor("blk.0.ffn_up.weight", _Q4_0, "ggml.q4_0", 6, _WIDTH),
        _tensor("blk.0.ffn_down.weight", _F32, "f32", _WIDTH, 6),
        # Floats, so that data found at a wrong offset is still sound by itself.
        _tensor("output.weight", _F32, "f32", _TOKENS, _WIDTH),
    ]


_METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.embedding_length": _WIDTH,
    "llama.block_count": 1,
    "llama.feed_forward_length": 6,
    "tokenizer.ggml.tokens": [f"token {index}" for index in range(_TOKENS)],
}


@dataclass(slots=True)
class _Broken:
    """A broken GGUF file under construction: the tiny model, then changes to it."""

    tensors: list[GgufTensor]
    metadata: dict[str, Any]
    more: dict[str, Any]

    @classmethod
    def start(cls) -> _Broken:
        return cls(_model(), dict(_METADATA), {})

    def change(self, index: int, **parts: Any) -> None:
        self.tensors[index] = replace(self.tensors[index], **parts)

    def build(self) -> BuiltGguf:
        return build_gguf(self.metadata, self.tensors, **self.more)


def _sound() -> BuiltGguf:
    return build_gguf(_METADATA, _model())


def _place(built: BuiltGguf, name: str, part: str = "data") -> int:
    return built.fields[f"tensor:{name}:{part}"]


_Planted = tuple[str, bytes, list[Fault]]


def _of_data() -> Iterator[_Planted]:
    """Yield faults of where the data lies."""
    sound = _sound()
    last = _place(sound, "output.weight")
    at_offset = {t.name: _place(sound, str(t.name), "offset") for t in _model()}
    yield (
        "cut inside the last tensor",
        sound.data[: last + 100],
        [Fault("Q001", ERROR, "output.weight", byte_offset=last)],
    )
    down = _place(sound, "blk.0.ffn_down.weight")
    yield (
        "cut before two tensors",
        sound.data[: down + 8],
        [
            Fault("Q001", ERROR, "blk.0.ffn_down.weight", byte_offset=down),
            Fault("Q001", ERROR, "output.weight", byte_offset=last),
        ],
    )
    broken = _Broken.start()
    broken.change(3, offset=1 << 40)
    yield (
        "offset past the end",
        broken.build().data,
        [
            Fault("Q001", ERROR, "output.weight", byte_offset=sound.data_offset + (1 << 40)),
            Fault("Q008", WARNING, "blk.0.ffn_down.weight", byte_offset=last),
        ],
    )
    broken = _Broken.start()
    broken.change(3, offset=last - sound.data_offset - 32)
    yield (
        "overlapping spans",
        broken.build().data,
        [
            Fault("Q002", ERROR, "output.weight", byte_offset=last - 32),
            Fault("Q008", WARNING, "output.weight", byte_offset=last - 32 + _LAST_BYTES),
        ],
    )
    broken = _Broken.start()
    broken.change(3, offset=last - sound.data_offset + 4)
    broken.more["trailing"] = bytes(4)
    yield (
        "offset off by four",
        broken.build().data,
        [
            Fault("Q004", WARNING, "output.weight", byte_offset=at_offset["output.weight"]),
            # The gap that it leaves behind holds what was the tensor's beginning.
            Fault("Q008", WARNING, "blk.0.ffn_down.weight", byte_offset=last),
        ],
    )


def _of_padding() -> Iterator[_Planted]:
    """Yield bytes that belong to no tensor."""
    sound = _sound()
    last = _place(sound, "output.weight")
    yield (
        "bytes at the end",
        sound.data + b"#" * 4096,
        [Fault("Q008", WARNING, "output.weight", byte_offset=last + _LAST_BYTES)],
    )
    end = _place(sound, "token_embd.weight") + 12 * 2 * 34
    assert end % 32  # noqa: S101  (there is padding to spoil)
    spoiled = bytearray(sound.data)
    spoiled[end + 3] = 7
    yield (
        "padding that is not zero",
        bytes(spoiled),
        [Fault("Q008", WARNING, "token_embd.weight", byte_offset=end + 3)],
    )


def _of_header() -> Iterator[_Planted]:
    """Yield faults of the header's own fields."""
    sound = _sound()
    fields = sound.fields
    for name, field, more in (
        ("bad magic", "magic", {"magic": b"GGUG"}),
        ("unknown version", "version", {"version": 77}),
        ("huge number of tensors", "tensor_count", {"tensor_count": (1 << 63) - 1}),
        ("huge number of metadata pairs", "kv_count", {"kv_count": 1 << 62}),
    ):
        broken = _Broken.start()
        broken.more.update(more)
        yield name, broken.build().data, [Fault("Q003", ERROR, byte_offset=fields[field])]
    for value in (24, 0, 4):
        broken = _Broken.start()
        broken.metadata["general.alignment"] = value
        built = broken.build()
        yield (
            f"alignment {value}",
            built.data,
            [Fault("Q003", ERROR, byte_offset=built.fields["kv:general.alignment:value"])],
        )
    broken = _Broken.start()
    broken.metadata["general.name"] = Typed(8, "x")
    built = broken.build()
    at = built.fields["kv:general.name:value"]
    spoiled = bytearray(built.data)
    spoiled[at : at + 8] = (1 << 60).to_bytes(8, "little")
    yield "huge string", bytes(spoiled), [Fault("Q003", ERROR, byte_offset=at)]
    spoiled = bytearray(sound.data)
    at = fields["kv:llama.block_count:type"]
    spoiled[at] = 77
    yield "unknown value type", bytes(spoiled), [Fault("Q003", ERROR, byte_offset=at)]


def _of_entries() -> Iterator[_Planted]:
    """Yield faults of single tensor entries."""
    sound = _sound()
    fields = sound.fields
    broken = _Broken.start()
    broken.change(1, name="token_embd.weight", data=broken.tensors[1].data)
    built = broken.build()
    second = fields["tensor:blk.0.ffn_up.weight"]
    yield "duplicate names", built.data, [
        Fault("Q007", ERROR, "token_embd.weight", byte_offset=second),
        Fault("Q110", WARNING, "token_embd.weight", field="tokenizer.ggml.tokens",
              byte_offset=fields["kv:tokenizer.ggml.tokens:value"]),
    ]  # fmt: skip
    broken = _Broken.start()
    broken.change(0, axes=(_WIDTH - 1, _TOKENS))
    yield (
        "row of 63 weights in blocks of 32",
        broken.build().data,
        [
            Fault(
                "Q003",
                ERROR,
                "token_embd.weight",
                byte_offset=_place(sound, "token_embd.weight", "axes"),
            )
        ],
    )
    broken = _Broken.start()
    broken.change(2, axes=(6, 1 << 63))
    yield "more weights than 63 bits count", broken.build().data, [
        Fault("Q003", ERROR, "blk.0.ffn_down.weight",
              byte_offset=_place(sound, "blk.0.ffn_down.weight", "axes") + 8)
    ]  # fmt: skip


def _of_metadata() -> Iterator[_Planted]:
    """Yield metadata that the shapes contradict."""
    changes: tuple[tuple[str, str, Any, tuple[str, ...]], ...] = (
        ("a token too many", "tokenizer.ggml.tokens", [f"token {index}" for index in range(13)],
         ("token_embd.weight", "output.weight")),
        ("another width", "llama.embedding_length", 96,
         ("token_embd.weight", "output.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight")),
        ("a block too few", "llama.block_count", 2, ("blk.0.ffn_up.weight",)),
        ("another feed-forward length", "llama.feed_forward_length", 8,
         ("blk.0.ffn_up.weight", "blk.0.ffn_down.weight")),
    )  # fmt: skip
    for name, key, value, tensors in changes:
        broken = _Broken.start()
        broken.metadata[key] = value
        built = broken.build()
        at = built.fields[f"kv:{key}:value"]
        yield (
            name,
            built.data,
            [Fault("Q110", WARNING, tensor, field=key, byte_offset=at) for tensor in tensors],
        )
    broken = _Broken.start()
    broken.change(3, type=99)
    yield (
        "unknown type",
        broken.build().data,
        [
            Fault("Q006", INFO, "output.weight", byte_offset=_place(_sound(), "output.weight")),
            Fault("Q901", INFO, "output.weight"),
        ],
    )


def _safe_model() -> list[SafeTensor]:
    data = healthy(by_id("f32"), 32, "random").tobytes()
    return [SafeTensor(name, "F32", [4, 8], data) for name in ("a.weight", "b.weight")]


def _of_safetensors() -> Iterator[_Planted]:
    sound = write_safetensors(_safe_model())
    data = len(sound) - 256
    yield "cut", sound[:-10], [Fault("Q001", ERROR, "b.weight", byte_offset=data + 128)]
    yield (
        "bytes at the end",
        sound + bytes(3),
        [Fault("Q008", WARNING, "b.weight", byte_offset=len(sound))],
    )
    longer = write_safetensors(_safe_model(), header_length=1 << 50)
    yield "huge header", longer, [Fault("Q003", ERROR, byte_offset=0)]
    first, second = _safe_model()
    twice = write_safetensors([first, replace(second, name="a.weight")])
    yield (
        "duplicate names",
        twice,
        [Fault("Q007", ERROR, "a.weight", byte_offset=twice.rindex(b'"a.weight"'))],
    )
    overlap = write_safetensors([first, replace(second, data_offsets=[64, 192])])
    start = len(overlap) - 256
    yield (
        "overlapping spans",
        overlap,
        [
            Fault("Q002", ERROR, "b.weight", byte_offset=start + 64),
            Fault("Q008", WARNING, "b.weight", byte_offset=start + 192),
        ],
    )
    short = write_safetensors([first, replace(second, shape=[4, 7])])
    yield (
        "shape of fewer bytes than the span",
        short,
        [Fault("Q003", ERROR, "b.weight", byte_offset=short.index(b'"b.weight"'))],
    )


def structural_pairs(folder: Path) -> Iterator[Pair]:
    """Write a pair of files for each structural fault into `folder`."""
    formats = (
        ("gguf", _sound().data, (_of_data, _of_padding, _of_header, _of_entries, _of_metadata)),
        ("safetensors", write_safetensors(_safe_model()), (_of_safetensors,)),
    )
    for suffix, sound, sources in formats:
        clean = folder / f"structure-clean.{suffix}"
        clean.write_bytes(sound)
        for source in sources:
            for name, data, faults in source():
                broken = folder / f"{name.replace(' ', '-')}.{suffix}"
                broken.write_bytes(data)
                yield Pair(f"{suffix}: {name}", clean, broken, tuple(faults))
    yield _shards(folder)


def _shards(folder: Path) -> Pair:
    """Write a sharded checkpoint, and one of which a shard and a tensor are missing."""
    files = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    names = ["a", "b", "c", "d"]
    home = dict(zip(names, [*files, files[0]], strict=True))
    data = healthy(by_id("bf16"), 32, "random").tobytes()
    paths = []
    for sort in ("clean", "broken"):
        place = folder / f"shards-{sort}"
        place.mkdir()
        paths.append(place)
        index = {"metadata": {}, "weight_map": home}
        (place / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
        for file in files:
            held = [n for n in names if home[n] == file and not (sort == "broken" and n == "d")]
            if sort == "broken" and file == files[1]:
                continue
            tensors = [SafeTensor(name, "BF16", [4, 8], data) for name in held]
            (place / file).write_bytes(write_safetensors(tensors))
    return Pair(
        "folder: shards", paths[0], paths[1], (Fault("Q005", ERROR), Fault("Q005", ERROR, "d"))
    )
