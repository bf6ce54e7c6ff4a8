"""safetensors: one JSON header, then the tensors without any gap.

::

    0      header length n   u64, little-endian, at most 100 MB
    8      header            n bytes of JSON, beginning with "{", padded with spaces
                             {"__metadata__": {str: str},
                              NAME: {"dtype": "F16", "shape": [N, K], "data_offsets": [begin, end]}}
    8 + n  data              offsets count from here; every byte belongs to exactly one tensor
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from qassay.containers.defects import HEADER_BROKEN, DefectLog, HeaderError
from qassay.containers.safetensors_types import safetensors_type
from qassay.containers.spans import Layout, Span, check_spans
from qassay.containers.strict_json import JsonError, JsonObject, is_integer, parse_json
from qassay.core.container import Container, Skipped, StoredTensor, StoredType
from qassay.core.source import Source
from qassay.core.text import safe

LARGEST_HEADER = 100_000_000
"""The cap that the format itself sets."""
METADATA_KEY = "__metadata__"
_MOST_AXES = 64
_MOST_WEIGHTS = 1 << 63

_STRINGS = re.compile(rb'("[^"\\]*(?:\\.[^"\\]*)*")(\s*:\s*\{)?', re.DOTALL)


@dataclass(slots=True)
class _Reading:
    source: Source
    path: str
    log: DefectLog
    raw: bytes = b""
    length: int = 0
    data_offset: int = 0
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: list[StoredTensor] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    lost: bool = False
    unicode: bool = True
    positions: dict[str, list[int]] | None = None

    def position(self, name: str, occurrence: int = 0) -> int:
        """Return the byte offset in the file of a tensor's entry; 8 when it cannot be told."""
        if self.positions is None:
            self.positions = _positions(self.raw)
        places = self.positions.get(name, [])
        return 8 + (places[min(occurrence, len(places) - 1)] if places else 0)


def _positions(raw: bytes) -> dict[str, list[int]]:
    """Find where each key whose value is an object stands in the header."""
    found: dict[str, list[int]] = {}
    for match in _STRINGS.finditer(raw):
        if match[2] is None:
            continue
        try:
            name = json.loads(match[1])
        except ValueError:
            continue
        found.setdefault(name, []).append(match.start())
    return found


def read_safetensors(source: Source, path: str) -> Container:
    """Read the header of a safetensors file and locate its tensors.

    Args:
        source: The file; it stays open for the tensors.
        path: How reports name it.

    Returns:
        What could be read and every structural defect. `metadata` is `__metadata__`; `extra` holds
        `header_bytes` (the JSON's length) and `data_offset`.
    """
    reading = _Reading(source, path, DefectLog(path))
    skipped: list[Skipped] = []
    try:
        header = _read_header(reading)
    except HeaderError as error:
        reading.log.add_error(error)
        skipped.append(Skipped(path, HEADER_BROKEN))
    else:
        _read_entries(reading, header)
        # When an entry could not be read, bytes that seem to belong to nobody may be its own.
        layout = Layout(source, reading.data_offset)
        check_spans(reading.spans, layout, reading.log, gaps=not reading.lost)
    return Container(
        path=path,
        format="safetensors",
        metadata=reading.metadata,
        tensors=reading.tensors,
        defects=reading.log.finish(),
        skipped=skipped,
        sources=[source],
        extra={"header_bytes": reading.length, "data_offset": reading.data_offset},
    )


def _read_header(reading: _Reading) -> JsonObject:
    size = reading.source.size
    if size < 8:
        raise HeaderError(
            "Q001",
            f"the header is cut: its length needs 8 bytes, and the file has {size}",
            0,
            expected="at least 8 bytes",
            found=f"{size} bytes",
        )
    length = int.from_bytes(reading.source.read(0, 8).tobytes(), "little")
    if not 2 <= length <= LARGEST_HEADER:
        raise HeaderError(
            "Q003",
            f"the header claims {length} bytes",
            0,
            expected=f"2 to {LARGEST_HEADER} bytes",
            found=f"{length} bytes",
        )
    reading.length = length
    reading.data_offset = 8 + length
    present = min(length, size - 8)
    reading.raw = reading.source.read(8, present).tobytes()
    if present and reading.raw[:1] != b"{":
        raise HeaderError(
            "Q003",
            "the header is no JSON object",
            8,
            expected='"{" (7b)',
            found=reading.raw[:8].hex(" "),
        )
    if present < length:
        raise HeaderError(
            "Q001",
            f"the header is cut: {length - present} of its {length} bytes are past the end",
            8,
            expected=f"a file of at least {8 + length} bytes",
            found=f"{size} bytes",
        )
    return _parse_header(reading)


def _parse_header(reading: _Reading) -> JsonObject:
    raw, log = reading.raw, reading.log
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = 8 + error.start
        found = f"0x{raw[error.start]:02x}"
        log.add("Q003", "the header is not UTF-8", at=at, expected="UTF-8", found=found)
        text = raw.decode("utf-8", "surrogateescape")
        reading.unicode = False
    try:
        header, end = parse_json(text)
    except JsonError as error:
        # Characters before the fault, in bytes.
        at = 8 + len(text[: error.offset].encode("utf-8", "surrogateescape"))
        raise HeaderError(
            "Q003", f"the header is not JSON: {safe(str(error), 80)}", at, expected="JSON"
        ) from error
    rest = text[end:].lstrip(" \t\r\n")
    if rest:
        at = 8 + len(raw) - len(rest.encode("utf-8", "surrogateescape"))
        reading.raw = raw[: at - 8]
        log.add(
            "Q003",
            "something follows the JSON object of the header",
            at=at,
            expected="spaces",
            found=safe(rest, 40),
        )
    if not isinstance(header, JsonObject):
        raise HeaderError("Q003", "the header is no JSON object", 8, expected="an object")
    return header


def _read_entries(reading: _Reading, header: JsonObject) -> None:
    log = reading.log
    seen: dict[str, int] = {}
    for name, entry in (*header.items(), *header.repeated):
        occurrence = seen.get(name, 0)
        seen[name] = occurrence + 1
        if name == METADATA_KEY:
            _read_metadata(reading, entry, occurrence)
            continue
        if occurrence:
            log.add(
                "Q007",
                f"tensor name '{safe(name)}' appears twice",
                tensor=name,
                at=reading.position(name, occurrence),
                expected="every name once",
                found=f"again; first at byte {reading.position(name)}",
            )
        if not _read_entry(reading, name, entry, occurrence):
            reading.lost = True
    _check_start(reading)


def _read_metadata(reading: _Reading, entry: object, occurrence: int) -> None:
    log = reading.log
    if occurrence:
        at = reading.position(METADATA_KEY, occurrence)
        log.add("Q003", f"{METADATA_KEY} appears twice; the first one counts here", at=at)
        return
    at = reading.position(METADATA_KEY)
    if not isinstance(entry, JsonObject):
        log.add("Q003", f"{METADATA_KEY} is no object of strings", at=at, expected="an object")
        return
    for key, value in entry.items():
        if not isinstance(value, str):
            log.add(
                "Q003",
                f"{METADATA_KEY} entry '{safe(key)}' is no string",
                at=at,
                expected="a string",
                found=_shown(value),
                minor=True,
            )
        reading.metadata[key] = value
    for key, _ in entry.repeated:
        log.add("Q003", f"{METADATA_KEY} has the key '{safe(key)}' twice", at=at, minor=True)


def _read_entry(reading: _Reading, name: str, entry: object, occurrence: int) -> bool:
    """Add the tensor and report what is wrong with its entry; False when it tells no place."""
    log = reading.log
    shown = safe(name)

    def fault(message: str, **more: Any) -> None:
        at = reading.position(name, occurrence)
        log.add("Q003", f"tensor '{shown}' {message}", tensor=name, at=at, **more)

    if not name:
        fault("has an empty name", minor=True)
    elif reading.unicode and not _is_text(name):
        fault("has a name that is no Unicode text", expected="text without lone surrogates")
    if not isinstance(entry, JsonObject):
        fault("has no object as its entry", expected="an object")
        return False
    for key, _ in entry.repeated:
        fault(f"has the field '{safe(key, 40)}' twice", expected="every field once")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str):
        fault("has no dtype", expected="a word such as F16", found=_shown(dtype))
        return False
    axes = _axes(shape)
    if axes is None:
        fault("has no usable shape", expected="a list of numbers, 0 or more", found=_shown(shape))
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        fault("has no usable data_offsets", expected="[begin, end]", found=_shown(offsets))
        return False
    kind = safetensors_type(dtype)
    nbytes, whole = _bytes_of(axes, kind)
    if not whole:
        fault(f"ends inside a byte: {kind.name} packs {kind.block} weights", found=_shown(shape))
    begin, end = offsets
    if begin > end:
        fault("ends before it begins", expected="begin <= end", found=_shown(offsets))
        nbytes = None
    elif nbytes is not None and end - begin != nbytes:
        fault(
            f"has {end - begin} bytes, and its shape and dtype need {nbytes}",
            expected=f"{nbytes} bytes",
            found=f"{end - begin} bytes",
        )
    fits = begin <= end and (nbytes == end - begin or kind.block == 0)
    tensor = StoredTensor(
        name=name,
        type=kind,
        shape=axes or (),
        source=reading.source,
        offset=reading.data_offset + begin,
        nbytes=nbytes,
        path=reading.path,
        readable=fits and axes is not None and reading.data_offset + end <= reading.source.size,
    )
    _locate(reading, tensor, reading.data_offset + end)
    return True


def _locate(reading: _Reading, tensor: StoredTensor, stop: int) -> None:
    """Add the tensor; report data outside the file and elements that are not aligned."""
    log, size, start = reading.log, reading.source.size, tensor.offset
    if stop > size and start <= stop:
        missing = stop - max(start, size)
        log.add(
            "Q001",
            f"tensor '{safe(tensor.name)}' is cut: {missing} of its {stop - start} bytes lie past "
            "the end of the file",
            tensor=tensor.name,
            at=start,
            expected=f"a file of at least {stop} bytes",
            found=f"{size} bytes",
            missing_bytes=missing,
        )
    begin, width = start - reading.data_offset, tensor.type.block_bytes
    if tensor.type.block == 1 and begin % width:
        log.add(
            "Q004",
            f"tensor '{safe(tensor.name)}' does not begin at a multiple of its element size",
            tensor=tensor.name,
            at=start,
            expected=f"a multiple of {width}",
            found=begin,
            minor=True,
        )
    reading.tensors.append(tensor)
    backwards = start > stop
    end = None if backwards else stop
    reading.spans.append(Span(tensor.name, start, end, broken=backwards))


def _check_start(reading: _Reading) -> None:
    """Report once, for the file, a header that puts all elements off their alignment."""
    widest = max((t.type.block_bytes for t in reading.tensors if t.type.block == 1), default=1)
    if reading.data_offset % widest:
        reading.log.add(
            "Q004",
            f"the data begins at byte {reading.data_offset}, which is no multiple of {widest}, the "
            "widest element size; readers have to copy it",
            at=reading.data_offset,
            expected=f"a multiple of {widest} (8 with current writers)",
            found=reading.data_offset,
            minor=True,
        )


def _axes(shape: object) -> tuple[int, ...] | None:
    if not isinstance(shape, list) or len(shape) > _MOST_AXES or not all(map(_is_size, shape)):
        return None
    count = 1
    for axis in shape:
        count *= axis
    return tuple(shape) if count < _MOST_WEIGHTS else None


def _is_size(value: object) -> bool:
    return is_integer(value) and 0 <= value < _MOST_WEIGHTS  # type: ignore[operator]


def _bytes_of(axes: tuple[int, ...] | None, kind: StoredType) -> tuple[int | None, bool]:
    """Return the bytes that shape and type need, and whether that is a whole number."""
    if axes is None or kind.block == 0:
        return None, True
    count = 1
    for axis in axes:
        count *= axis
    nbytes, rest = divmod(count * kind.block_bytes, kind.block)
    return (None, False) if rest else (nbytes, True)


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        # Only one level: repr() of what a stranger nested may recurse too deeply.
        items = ["[...]" if isinstance(item, list | dict) else _shown(item) for item in value[:8]]
        return safe(f"[{', '.join(items)}{', ...' if len(value) > 8 else ''}]", 80)
    return safe(repr(value[:80] if isinstance(value, str) else value), 80)
