"""GGUF, versions 2 and 3, little-endian.

::

    0   magic "GGUF"          4 bytes
    4   version               u32     2 or 3 (the layout is the same)
    8   number of tensors     u64
    16  number of pairs       u64
    24  metadata pairs                see gguf_metadata.py
        tensor entries                each: name length u64 | name | axes u32 | axis u64 * axes
                                            | type u32 | offset u64, counted from the data
        zeros                         up to a multiple of general.alignment (32 when not given)
        tensor data                   each tensor padded with zeros to that multiple

Axes stand fastest first (`[K, N]`); shapes here are row-major (`[N, K]`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from qassay.containers.defects import HEADER_BROKEN, DefectLog, HeaderError
from qassay.containers.gguf_metadata import (
    TYPE_NAMES,
    UINT32,
    read_string,
    read_value,
    unknown_type,
)
from qassay.containers.gguf_tensors import MOST_AXES, Entry, place_tensors
from qassay.containers.header_reader import HeaderReader
from qassay.containers.spans import Layout
from qassay.core.container import Container, Skipped
from qassay.core.source import Source
from qassay.core.text import safe

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_SMALLEST_PAIR = 8 + 4 + 1
_SMALLEST_ENTRY = 8 + 4 + 4 + 8
_MOST_ITEMS = 1 << 17
_LONGEST_KEY = 65535
_LONGEST_NAME = 63
_READABLE_AXES = 8
_LISTED_PARTS = 100


@dataclass(slots=True)
class _Reading:
    """One pass over the header; fills up as it goes, so that a broken file gives what it can."""

    source: Source
    log: DefectLog
    reader: HeaderReader
    version: int = 0
    pairs: int = 0
    entries_promised: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    value_types: dict[str, str] = field(default_factory=dict)
    value_offsets: dict[str, int] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    complete: bool = False
    alignment: int = DEFAULT_ALIGNMENT


def read_gguf(source: Source, path: str, *, check_padding: bool = True) -> Container:
    """Read the header of a GGUF file and locate its tensors.

    Args:
        source: The file; it stays open for the metadata arrays and tensors.
        path: How reports name it.
        check_padding: Whether to read the padding between tensors (a page per tensor).

    Returns:
        What could be read and every structural defect. `extra` holds `version`, `alignment`,
        `kv_count`, `tensor_count` (as the header states them), `header_bytes` (read so far, when
        it is broken), `data_offset` (None when it is broken),
        `value_types` {key: GGUF type name}, `value_offsets` {key: byte offset of the value},
        `entry_offsets` {tensor: byte offset of its axes}, and for a part of a split model `split`.
    """
    reading = _Reading(source, DefectLog(path), HeaderReader(source))
    try:
        _read_header(reading)
    except HeaderError as error:
        reading.log.add_error(error)
    end = reading.reader.pos
    first = -(-end // reading.alignment) * reading.alignment
    layout = Layout(source, first, reading.alignment, check_padding)
    tensors = place_tensors(
        reading.entries, layout, reading.log, header_end=end if reading.complete else None
    )
    container = Container(
        path=path,
        format="gguf",
        metadata=reading.metadata,
        tensors=tensors,
        sources=[source],
        extra={
            "version": reading.version,
            "alignment": reading.alignment,
            "kv_count": reading.pairs,
            "tensor_count": reading.entries_promised,
            "header_bytes": reading.reader.pos,
            "data_offset": layout.first if reading.complete else None,
            "value_types": reading.value_types,
            "value_offsets": reading.value_offsets,
            "entry_offsets": {entry.name: entry.at_axes for entry in reading.entries},
        },
    )
    if not reading.complete:
        container.skipped.append(Skipped(path, HEADER_BROKEN))
    _note_split(container)
    container.defects = reading.log.finish()
    return container


def _read_header(reading: _Reading) -> None:
    reader, log = reading.reader, reading.log
    head = reader.take(min(4, reader.size), "the magic")
    if head != MAGIC and not (head and MAGIC.startswith(head)):
        log.add(
            "Q003",
            "the file does not begin with the GGUF magic",
            at=0,
            expected='"GGUF" (47 47 55 46)',
            found=head.hex(" "),
            fix="download the file again; its first bytes are damaged, or it is no GGUF file",
        )
    elif len(head) < len(MAGIC):
        raise reader.past_end(0, 4, "the magic")
    at = reader.pos
    reading.version = reader.u32("the version")
    if reading.version not in VERSIONS and head != MAGIC:
        return
    if reading.version not in VERSIONS:
        raise HeaderError(
            "Q003",
            f"GGUF version {reading.version} is not known",
            at,
            expected="2 or 3",
            found=reading.version,
            fix="check that the download is complete and undamaged; a newer version needs a newer "
            "qassay",
        )
    reading.entries_promised = reader.u64("the number of tensors")
    reading.pairs = reader.u64("the number of metadata pairs")
    _check_count(reader, 16, reading.pairs, _SMALLEST_PAIR, "metadata pairs")
    # A wrong number of tensors leaves the metadata readable: it is judged after that.
    for index in range(reading.pairs):
        _read_pair(reading, index)
    _settle_alignment(reading)
    _check_count(reader, 8, reading.entries_promised, _SMALLEST_ENTRY, "tensors")
    for index in range(reading.entries_promised):
        reading.entries.append(_read_entry(reading, index))
    reading.complete = True


def _check_count(reader: HeaderReader, at: int, count: int, smallest: int, what: str) -> None:
    possible = min(reader.rest // smallest, _MOST_ITEMS)
    if count > possible:
        short = possible < _MOST_ITEMS
        why = "the rest of the file cannot hold them" if short else "so many are not read"
        raise HeaderError(
            "Q003",
            f"the header promises {count} {what}, and {why}",
            at,
            expected=f"at most {possible}",
            found=count,
            fix="download the file again: it is cut short, or this field is damaged",
        )


def _read_pair(reading: _Reading, index: int) -> None:
    reader, log = reading.reader, reading.log
    at = reader.pos
    key, sound = read_string(reader, f"the key of metadata pair {index}", _LONGEST_KEY)
    shown = safe(key)
    if not sound:
        log.add("Q003", f"metadata key '{shown}' is not UTF-8", at=at, expected="UTF-8")
    if not key:
        log.add("Q003", f"metadata pair {index} has an empty key", at=at, expected="a key")
    at_kind = reader.pos
    kind = reader.u32(f"the value type of '{shown}'")
    if kind >= len(TYPE_NAMES):
        raise unknown_type(kind, at_kind, f"metadata '{shown}'")
    at_value = reader.pos
    value = read_value(reader, reading.source, kind, f"metadata '{shown}'")
    if key in reading.metadata:
        log.add(
            "Q003",
            f"metadata key '{shown}' appears twice; the first one counts here",
            at=at,
            expected="every key once",
            found=f"again at byte {at}, first at byte {reading.value_offsets[key]}",
        )
        return
    if kind == TYPE_NAMES.index("bool"):
        _check_bool(reading, at_value, shown)
    reading.metadata[key] = value
    reading.value_types[key] = TYPE_NAMES[kind]
    reading.value_offsets[key] = at_value


def _check_bool(reading: _Reading, at: int, shown: str) -> None:
    byte = int(reading.source.read(at, 1)[0])
    if byte > 1:
        reading.log.add(
            "Q003",
            f"metadata '{shown}' is a bool, and its byte is {byte}",
            at=at,
            expected="0 or 1",
            found=byte,
            minor=True,
        )


def _settle_alignment(reading: _Reading) -> None:
    key = "general.alignment"
    if key not in reading.metadata:
        return
    value, kind = reading.metadata[key], reading.value_types[key]
    right_type = kind == TYPE_NAMES[UINT32]
    if right_type and value >= 8 and value & (value - 1) == 0:
        reading.alignment = value
        return
    reading.log.add(
        "Q003",
        f"general.alignment is unusable; reading went on with {DEFAULT_ALIGNMENT}",
        at=reading.value_offsets[key],
        expected="a power of two, 8 or more, of type uint32",
        found=f"{safe(str(value), 40)} of type {kind}",
    )


def _read_entry(reading: _Reading, index: int) -> Entry:
    reader, log = reading.reader, reading.log
    at = reader.pos
    name, sound = read_string(reader, f"the name of tensor {index}", _LONGEST_KEY)
    shown = safe(name)
    length = len(name.encode("utf-8", "surrogateescape"))
    if not sound:
        log.add("Q003", f"tensor name '{shown}' is not UTF-8", tensor=name, at=at, expected="UTF-8")
    if not name:
        log.add("Q003", f"tensor {index} has an empty name", tensor=name, at=at, expected="a name")
    if length > _LONGEST_NAME:
        log.add(
            "Q003",
            f"the name of tensor '{shown}' has {length} bytes, and llama.cpp refuses it",
            tensor=name,
            at=at,
            expected=f"at most {_LONGEST_NAME} bytes",
            found=f"{length} bytes",
        )
    at_count = reader.pos
    count = reader.u32(f"the number of axes of tensor '{shown}'")
    if count > _READABLE_AXES:
        raise HeaderError(
            "Q003",
            f"tensor '{shown}' (entry {index} of {reading.entries_promised}) claims {count} axes; "
            "the entries after it cannot be found",
            at_count,
            expected=f"1 to {MOST_AXES}",
            found=count,
        )
    if not 1 <= count <= MOST_AXES:
        log.add(
            "Q003",
            f"tensor '{shown}' has {count} axes",
            tensor=name,
            at=at_count,
            expected=f"1 to {MOST_AXES}",
            found=count,
            # A scalar without axes is read by llama.cpp, though the format does not foresee it.
            minor=count == 0,
        )
    at_axes = reader.pos
    axes = tuple(reader.u64(f"an axis of tensor '{shown}'") for _ in range(count))
    at_type = reader.pos
    number = reader.u32(f"the type of tensor '{shown}'")
    at_offset = reader.pos
    offset = reader.u64(f"the offset of tensor '{shown}'")
    return Entry(name, axes, number, offset, at, at_axes, at_type, at_offset)


def _note_split(container: Container) -> None:
    """Name the other parts of a model that is split over several files."""
    count = container.metadata.get("split.count")
    number = container.metadata.get("split.no")
    if type(count) is not int or count <= 1:
        return
    own = number + 1 if type(number) is int else None
    container.extra["split"] = {
        "no": number,
        "count": count,
        "tensors": container.metadata.get("split.tensors.count"),
    }
    pattern = re.fullmatch(r"(.*-)(\d{5})-of-(\d{5})(\.gguf)", container.path, re.DOTALL | re.I)
    others = [part for part in range(1, min(count, _LISTED_PARTS) + 1) if part != own]
    for part in others:
        name = f"part {part}"
        if pattern and int(pattern[3]) == count:
            name = f"{pattern[1]}{part:05d}-of-{pattern[3]}{pattern[4]}"
        container.skipped.append(Skipped(name, f"part {part} of {count}: check it too"))
    if count > _LISTED_PARTS:
        more = count - _LISTED_PARTS
        container.skipped.append(Skipped(f"{more} more parts", f"{count} parts in all"))
