"""GGUF metadata values: thirteen types, and arrays that are decoded only when looked at.

One pair, little-endian::

    key length u64 | key, UTF-8 | value type u32 | value

    0..7, 10..12   u8 i8 u16 i16 u32 i32 f32 bool(u8)      u64 i64 f64
    8  string      length u64 | UTF-8
    9  array       element type u32 | count u64 | count elements, without a type of their own
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, overload

from qassay.containers.defects import HeaderError
from qassay.containers.header_reader import HeaderReader
from qassay.core.source import Source

UINT32 = 4
BOOL = 7
STRING = 8
ARRAY = 9
DEEPEST_ARRAY = 8
"""Arrays of arrays end here; no model nests more than two, and recursion must be bounded."""
_PIECE = 1 << 16
_STEPS_AN_ARRAY = 16
_BYTES_A_STEP = 8
LONGEST_STRING = 1 << 26
"""No single value is this long; it is refused, because decoding it would allocate as much."""

TYPE_NAMES = (
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "float32",
    "bool",
    "string",
    "array",
    "uint64",
    "int64",
    "float64",
)
_NUMBERS = {
    number: struct.Struct(f"<{code}")
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIifBQqd", strict=True)
}

_SMALLEST = tuple(
    _NUMBERS[number].size if number in _NUMBERS else 8 if number == STRING else 4 + 8
    for number in range(len(TYPE_NAMES))
)


class MetadataArray(Sequence[Any]):
    """A metadata array that stays in the file until it is looked at.

    `len` costs nothing; iterating decodes one element at a time; the first index into an array of
    strings walks it once to learn where each begins. Elements are numbers, bools, strings, or
    `MetadataArray`s.

    Args:
        source: The file, which has to stay open.
        item_type: GGUF number of the element type.
        count: Number of elements.
        offset: Byte offset of the first element; the whole array is known to lie in the file.
    """

    __slots__ = ("_count", "_source", "_starts", "item_type", "offset")

    def __init__(self, source: Source, item_type: int, count: int, offset: int) -> None:
        self._source = source
        self._count = count
        self._starts: array[int] | None = None
        self.item_type = item_type
        self.offset = offset

    @property
    def item_name(self) -> str:
        """Name of the element type (`string`, `float32`, ...)."""
        return TYPE_NAMES[self.item_type]

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"MetadataArray({self.item_name}, {self._count})"

    def __iter__(self) -> Iterator[Any]:
        reader = HeaderReader(self._source, self.offset)
        layout = _NUMBERS.get(self.item_type)
        if self.item_type == STRING:
            for _, text in reader.strings(self._count):
                yield text
        elif layout is not None:
            for first in range(0, self._count, _PIECE):
                length = min(_PIECE, self._count - first) * layout.size
                for (number,) in layout.iter_unpack(reader.take(length, "numbers")):
                    yield bool(number) if self.item_type == BOOL else number
        else:
            for _ in range(self._count):
                yield read_value(reader, self._source, self.item_type)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._at(place) for place in range(*index.indices(self._count))]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"element {index} of an array of {self._count}")
        return self._at(place)

    def _at(self, place: int) -> Any:
        layout = _NUMBERS.get(self.item_type)
        if layout is not None:
            start = self.offset + place * layout.size
        else:
            if self._starts is None:
                self._starts = self._walk()
            start = self._starts[place]
        return read_value(HeaderReader(self._source, start), self._source, self.item_type)

    def _walk(self) -> array[int]:
        starts = array("Q")
        reader = HeaderReader(self._source, self.offset)
        if self.item_type == STRING:
            starts.extend(start for start, _ in reader.strings(self._count))
            return starts
        for _ in range(self._count):
            starts.append(reader.pos)
            read_value(reader, self._source, self.item_type)
        return starts


def read_value(
    reader: HeaderReader, source: Source, kind: int, what: str = "value", depth: int = 0
) -> Any:
    """Return the value of GGUF type `kind` at the reader's position, and step over it.

    Strings decode as UTF-8 with surrogate escapes; arrays come as `MetadataArray`.

    Raises:
        HeaderError: Q001 or Q003, when the value does not lie in the file or has no known type.
    """
    layout = _NUMBERS.get(kind)
    if layout is not None:
        number = reader.number(layout, what)
        return bool(number) if kind == BOOL else number
    if kind == STRING:
        return read_string(reader, what)[0]
    if kind == ARRAY:
        item_type, count = _array_head(reader, what, depth)
        value = MetadataArray(source, item_type, count, reader.pos)
        _skip_items(reader, item_type, count, what, depth)
        return value
    raise unknown_type(kind, reader.pos, what)


def read_string(reader: HeaderReader, what: str, longest: int = LONGEST_STRING) -> tuple[str, bool]:
    """Return the string at the reader's position and whether it is sound UTF-8.

    Raises:
        HeaderError: Q001 when it runs past the end of the file; Q003 when longer than `longest`.
    """
    at = reader.pos
    length = reader.u64(f"the length of {what}")
    reader.need(length, what, field=at)
    if length <= longest:
        reader.spend(length // _BYTES_A_STEP, what, at)
    else:
        raise HeaderError(
            "Q003",
            f"{what} claims {length} bytes",
            at,
            expected=f"at most {longest} bytes",
            found=f"{length} bytes",
        )
    raw = reader.take(length, what)
    try:
        return raw.decode("utf-8"), True
    except UnicodeDecodeError:
        return raw.decode("utf-8", "surrogateescape"), False


def unknown_type(kind: int, offset: int, what: str) -> HeaderError:
    """Return the error for a value type that GGUF does not have."""
    return HeaderError(
        "Q003",
        f"{what} has value type {kind}, which GGUF does not have; the rest cannot be found",
        offset,
        expected="0 to 12",
        found=kind,
    )


def _array_head(reader: HeaderReader, what: str, depth: int) -> tuple[int, int]:
    at = reader.pos
    if depth >= DEEPEST_ARRAY:
        raise HeaderError(
            "Q003",
            f"{what} nests arrays deeper than {DEEPEST_ARRAY} levels",
            at,
            expected=f"at most {DEEPEST_ARRAY} levels",
            found="more",
        )
    item_type = reader.u32(f"the element type of {what}")
    if item_type >= len(TYPE_NAMES):
        raise unknown_type(item_type, at, f"{what}, an array,")
    at_count = reader.pos
    count = reader.u64(f"the length of {what}")
    reader.need(count * _SMALLEST[item_type], f"{what}, an array of {count},", field=at_count)
    if item_type not in _NUMBERS:
        steps = count if item_type == STRING else count * _STEPS_AN_ARRAY
        reader.spend(steps, f"{what}, an array of {count},", at_count)
    return item_type, count


def _skip_items(reader: HeaderReader, item_type: int, count: int, what: str, depth: int) -> None:
    layout = _NUMBERS.get(item_type)
    if layout is not None:
        reader.skip(count * layout.size, what)
    elif item_type == STRING:
        reader.skip_strings(count, what)
    else:
        for _ in range(count):
            inner, length = _array_head(reader, what, depth + 1)
            _skip_items(reader, inner, length, what, depth + 1)
