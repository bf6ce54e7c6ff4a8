"""Metadata: every value type, arrays that stay in the file, and how long skipping them takes."""

from __future__ import annotations

import itertools
import struct
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qassay.containers import MetadataArray, header_reader
from qassay.containers.gguf_metadata import TYPE_NAMES
from qassay.testing.gguf_writer import Raw, Typed, write_gguf

VALUES = {
    "u8": (Typed(0, 255), 255),
    "i8": (Typed(1, -128), -128),
    "u16": (Typed(2, 65535), 65535),
    "i16": (Typed(3, -32768), -32768),
    "u32": (Typed(4, 2**32 - 1), 2**32 - 1),
    "i32": (Typed(5, -(2**31)), -(2**31)),
    "f32": (Typed(6, 0.15625), 0.15625),
    "true": (Typed(7, True), True),
    "false": (Typed(7, False), False),
    "text": (Typed(8, "Grüße\n\0🦙"), "Grüße\n\0🦙"),
    "empty": (Typed(8, ""), ""),
    "bytes": (Typed(8, b"a\xffb"), "a\udcffb"),
    "u64": (Typed(10, 2**64 - 1), 2**64 - 1),
    "i64": (Typed(11, -(2**63)), -(2**63)),
    "f64": (Typed(12, 1e300), 1e300),
}


def test_every_scalar_type(open_bytes: Any) -> None:
    container = open_bytes(write_gguf({key: value for key, (value, _) in VALUES.items()}))
    assert container.defects == []
    for key, (typed, expected) in VALUES.items():
        value = container.metadata[key]
        assert value == expected
        assert type(value) is type(expected)
        assert container.extra["value_types"][key] == TYPE_NAMES[typed.number]


@pytest.mark.parametrize("key", sorted(VALUES))
@pytest.mark.parametrize("count", [0, 1, 3])
def test_arrays_of_every_type(open_bytes: Any, key: str, count: int) -> None:
    typed, expected = VALUES[key]
    array = open_bytes(write_gguf({"x": Typed(9, [typed] * count, typed.number)})).metadata["x"]
    assert isinstance(array, MetadataArray)
    assert array.item_type == typed.number
    assert len(array) == count
    assert list(array) == [expected] * count
    assert [array[i] for i in range(count)] == [expected] * count


def test_an_array_behaves_as_a_sequence(open_bytes: Any) -> None:
    words = ["a", "", "bcd", "é" * 9]
    array = open_bytes(write_gguf({"x": words})).metadata["x"]
    assert array[-1] == words[-1]
    assert array[1:] == words[1:]
    assert array[::-2] == words[::-2]
    assert list(reversed(array)) == words[::-1]
    assert array.index("bcd") == 2
    assert "bcd" in array
    assert repr(array) == "MetadataArray(string, 4)"
    assert array.item_name == "string"
    for bad in (4, -5):
        with pytest.raises(IndexError):
            array[bad]


def test_nested_arrays(open_bytes: Any) -> None:
    inner = [[1, 2], [3], [4, 5, 6]]
    value = Typed(9, [Typed(9, part, 4) for part in inner], 9)
    array = open_bytes(write_gguf({"x": value, "after": 7})).metadata["x"]
    assert [list(part) for part in array] == inner
    assert list(array[2]) == inner[2]
    assert array.item_name == "array"


def test_long_number_arrays_cross_pieces(open_bytes: Any) -> None:
    numbers = list(range(70_000))
    array = open_bytes(write_gguf({"x": Typed(9, numbers, 4)})).metadata["x"]
    assert list(array) == numbers
    assert array[69_999] == 69_999


def test_windows_of_any_size_give_the_same(
    open_bytes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["w" * (i % 40) for i in range(500)]
    data = write_gguf({"a": words, "b": "text", "c": words}, [("t", 0, (8,), b"1" * 32)])
    expected = open_bytes(data)
    for first, largest in ((8, 8), (16, 64), (30, 30)):
        monkeypatch.setattr(header_reader, "_FIRST_WINDOW", first)
        monkeypatch.setattr(header_reader, "_LARGEST_WINDOW", largest)
        container = open_bytes(data)
        assert container.defects == []
        assert list(container.metadata["a"]) == words
        assert container.metadata["c"][499] == words[499]
        assert container.tensors[0].offset == expected.tensors[0].offset


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.lists(st.integers(0, 40), max_size=12),
    lie=st.integers(0, 11),
    value=st.sampled_from([41, 100, 2**32, 2**63 - 8, 2**63, 2**64 - 9, 2**64 - 1]),
)
def test_a_lying_string_never_passes(
    open_bytes: Any, lengths: list[int], lie: int, value: int
) -> None:
    strings = [bytearray(struct.pack("<Q", n) + b"s" * n) for n in lengths]
    if lie < len(strings):
        strings[lie][:8] = struct.pack("<Q", value)
    body = struct.pack("<IQ", 8, len(strings)) + b"".join(strings)
    container = open_bytes(write_gguf({"x": Raw(9, body)}))
    start = 24 + 8 + 1 + 4 + 12
    if lie >= len(strings):
        assert container.defects == []
        assert [len(word) for word in container.metadata["x"]] == lengths
        return
    if value >= 2**32:
        [defect] = container.defects
        at = start + sum(len(part) for part in itertools.islice(strings, lie))
        assert defect.byte_offset == at
        assert defect.code == ("Q003" if value >= 2**48 else "Q001")
    assert container.defects or len(container.metadata["x"]) == len(lengths)


def test_skipping_a_vocabulary_is_fast_and_decodes_nothing(open_bytes: Any) -> None:
    words = b"".join(struct.pack("<Q", 7) + b"t%06d" % i for i in range(250_000))
    array = Raw(9, struct.pack("<IQ", 8, 250_000) + words)
    data = write_gguf({"tokens": array, "merges": array})
    times = []
    for _ in range(5):
        begin = time.process_time()
        container = open_bytes(data)
        times.append(time.process_time() - begin)
    # 30 ms an array here; four times that is still far from decoding (150 ms an array).
    assert min(times) < 0.25
    assert len(container.metadata["merges"]) == 250_000
    assert container.metadata["merges"][249_999] == "t249999"
