"""Builds GGUF files byte by byte, sound or broken in any field, for tests.

A sound file needs no more than::

    write_gguf({"general.architecture": "llama"}, [("a.weight", 0, (32, 2), bytes(256))])

Every header field can be given another value; `build_gguf` also says where each field stands.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_NUMBERS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
STRING = 8
ARRAY = 9

Pairs = Mapping[str, Any] | Iterable[tuple[str | bytes, Any]]


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with its GGUF type number; for an array (9) `item` is that of elements."""

    number: int
    value: Any
    item: int | None = None


@dataclass(frozen=True, slots=True)
class Raw:
    """A metadata value given as the bytes that follow its type number, whatever they mean."""

    number: int
    data: bytes


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor to write.

    Attributes:
        name: Text, or bytes that need not be UTF-8.
        type: ggml type number.
        axes: As in the file, fastest first (`[K, N]`).
        data: Its bytes.
        offset: Written instead of the true offset.
        name_length: Written instead of the true length of the name.
        axis_count: Written instead of the true number of axes.
    """

    name: str | bytes
    type: int
    axes: Sequence[int]
    data: bytes
    offset: int | None = None
    name_length: int | None = None
    axis_count: int | None = None


@dataclass(slots=True)
class BuiltGguf:
    """A file and its map.

    Attributes:
        data: The file.
        fields: Byte offset of each field: `magic`, `version`, `tensor_count`, `kv_count`,
            `kv:KEY`, `kv:KEY:type`, `kv:KEY:value`, `tensor:NAME`, and `tensor:NAME:PART` for
            `axis_count`, `axes`, `type`, `offset`, `data`. The first of a repeated name counts.
        header_end: Byte offset after the last tensor entry.
        data_offset: Byte offset where tensor data begins.
    """

    data: bytes = b""
    fields: dict[str, int] = field(default_factory=dict)
    header_end: int = 0
    data_offset: int = 0


def write_gguf(
    metadata: Pairs = (),
    tensors: Iterable[GgufTensor | tuple[str | bytes, int, Sequence[int], bytes]] = (),
    **overrides: Any,
) -> bytes:
    """Return a GGUF file as bytes; arguments as for `build_gguf`."""
    return build_gguf(metadata, tensors, **overrides).data


def build_gguf(
    metadata: Pairs = (),
    tensors: Iterable[GgufTensor | tuple[str | bytes, int, Sequence[int], bytes]] = (),
    *,
    version: int = 3,
    alignment: int = 32,
    magic: bytes = b"GGUF",
    tensor_count: int | None = None,
    kv_count: int | None = None,
    padding: bytes = b"\0",
    pad_last: bool = True,
    trailing: bytes = b"",
) -> BuiltGguf:
    """Build a GGUF file.

    Args:
        metadata: Keys and values; pairs may repeat a key. `bool`, `int`, `float`, `str` and lists
            of one of them are typed by themselves (`uint32` where an int fits, else `int32`, then
            64 bits; `float32`); `Typed` and `Raw` say it exactly. `general.alignment` is not added.
        tensors: `GgufTensor`s, or tuples of its first four attributes.
        version: Version number.
        alignment: What offsets and padding are made with.
        magic: First four bytes.
        tensor_count: Written instead of the true number.
        kv_count: Written instead of the true number.
        padding: The byte that fills up to the alignment.
        pad_last: Whether the last tensor is padded as well.
        trailing: Further bytes at the end.

    Returns:
        The file and the byte offset of each of its fields.
    """
    pairs = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    entries = [t if isinstance(t, GgufTensor) else GgufTensor(*t) for t in tensors]
    built = BuiltGguf(
        fields={"magic": 0, "version": 4, "tensor_count": 8, "kv_count": 16},
    )
    out = bytearray(magic)
    out += struct.pack("<I", version)
    out += struct.pack("<Q", len(entries) if tensor_count is None else tensor_count)
    out += struct.pack("<Q", len(pairs) if kv_count is None else kv_count)
    for key, value in pairs:
        _pair(out, built.fields, key, value)
    offset = 0
    for entry in entries:
        _entry(out, built.fields, entry, offset)
        offset += len(entry.data) + -len(entry.data) % alignment
    built.header_end = len(out)
    if entries:
        out += padding * (-len(out) % alignment)
    built.data_offset = len(out)
    for index, entry in enumerate(entries):
        built.fields.setdefault(f"tensor:{_text(entry.name)}:data", len(out))
        out += entry.data
        if pad_last or index < len(entries) - 1:
            out += padding * (-len(out) % alignment)
    built.data = bytes(out + trailing)
    return built


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "surrogateescape")


def _string(text: str | bytes, length: int | None = None) -> bytes:
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def _pair(out: bytearray, fields: dict[str, int], key: str | bytes, value: object) -> None:
    name = f"kv:{_text(key)}"
    fields.setdefault(name, len(out))
    out += _string(key)
    fields.setdefault(f"{name}:type", len(out))
    number, data = _value(value)
    out += struct.pack("<I", number)
    fields.setdefault(f"{name}:value", len(out))
    out += data


def _entry(out: bytearray, fields: dict[str, int], entry: GgufTensor, offset: int) -> None:
    name = f"tensor:{_text(entry.name)}"
    fields.setdefault(name, len(out))
    out += _string(entry.name, entry.name_length)
    fields.setdefault(f"{name}:axis_count", len(out))
    out += struct.pack("<I", len(entry.axes) if entry.axis_count is None else entry.axis_count)
    fields.setdefault(f"{name}:axes", len(out))
    for axis in entry.axes:
        out += struct.pack("<Q", axis)
    fields.setdefault(f"{name}:type", len(out))
    out += struct.pack("<I", entry.type)
    fields.setdefault(f"{name}:offset", len(out))
    out += struct.pack("<Q", offset if entry.offset is None else entry.offset)


def _value(value: object) -> tuple[int, bytes]:
    if isinstance(value, Raw):
        return value.number, value.data
    if not isinstance(value, Typed):
        value = _infer(value)
    return value.number, _payload(value.number, value.value, value.item)


def _infer(value: object) -> Typed:
    if isinstance(value, bool):
        return Typed(7, value)
    if isinstance(value, int):
        ranges = ((4, 0, 32), (5, -(1 << 31), 31), (10, 0, 64), (11, -(1 << 63), 63))
        number = next(n for n, low, bits in ranges if low <= value < 1 << bits)
        return Typed(number, value)
    if isinstance(value, float):
        return Typed(6, value)
    if isinstance(value, str | bytes):
        return Typed(STRING, value)
    if isinstance(value, list | tuple):
        inner = [_infer(item).number for item in value]
        return Typed(ARRAY, value, max(inner, default=4))
    raise TypeError(f"no GGUF type for {type(value).__name__}")


def _payload(number: int, value: Any, item: int | None) -> bytes:
    if number in _NUMBERS:
        return struct.pack(f"<{_NUMBERS[number]}", value)
    if number == STRING:
        return _string(value)
    if number != ARRAY:
        raise ValueError(f"GGUF has no value type {number}; use Raw")
    inner = _infer(value).item if item is None else item
    assert inner is not None  # noqa: S101  (an array always has one)
    items = b"".join(
        _value(part)[1] if isinstance(part, Typed | Raw) else _payload(inner, part, None)
        for part in value
    )
    return struct.pack("<IQ", inner, len(value)) + items
