"""GGUF: what a sound file gives, and every structural defect with its exact place."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from qassay.core.container import Container, Defect
from qassay.testing.gguf_writer import GgufTensor, Raw, Typed, build_gguf, write_gguf

F32, F16, Q4_0, Q8_0, Q4_K = 0, 1, 2, 8, 12


def rows(n: int, k: int, number: int = F32) -> bytes:
    """Return non-zero bytes for an `[n, k]` tensor."""
    size = {F32: (1, 4), F16: (1, 2), Q4_0: (32, 18), Q8_0: (32, 34), Q4_K: (256, 144)}[number]
    return bytes([0x11]) * (n * k // size[0] * size[1])


def three(**changes: Any) -> list[GgufTensor]:
    """Return tensors a, b, c of 256 bytes each, fields of `b` changed."""
    plain = {n: {"name": n, "type": F32, "axes": (32, 2), "data": rows(2, 32)} for n in "abc"}
    plain["b"].update(changes)
    return [GgufTensor(**fields) for fields in plain.values()]


def only(container: Container, code: str | None = None) -> Defect:
    """Return the single defect (of `code`)."""
    found = [d for d in container.defects if code is None or d.code == code]
    assert len(found) == 1, container.defects
    return found[0]


def codes(container: Container) -> list[str]:
    return [defect.code for defect in container.defects]


# Sound files


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_a_sound_file(open_bytes: Any, version: int, alignment: int) -> None:
    data = rows(3, 32, Q8_0)
    built = build_gguf(
        {"general.alignment": alignment, "x": "y"},
        [
            ("a", Q8_0, (32, 3), data),
            ("b", F32, (5,), rows(1, 5)),
            ("c", F16, (2, 3, 4), b"1" * 48),
        ],
        version=version,
        alignment=alignment,
    )
    container = open_bytes(built.data)
    assert container.defects == []
    assert container.skipped == []
    assert container.format == "gguf"
    assert container.metadata == {"general.alignment": alignment, "x": "y"}
    assert [t.name for t in container.tensors] == ["a", "b", "c"]
    assert [t.shape for t in container.tensors] == [(3, 32), (5,), (4, 3, 2)]
    assert [t.nbytes for t in container.tensors] == [102, 20, 48]
    for tensor in container.tensors:
        assert tensor.offset == built.fields[f"tensor:{tensor.name}:data"]
        assert tensor.readable
        assert tensor.path == "model.gguf"
    assert container.tensors[0].raw().tobytes() == data
    extra = container.extra
    assert (extra["version"], extra["alignment"]) == (version, alignment)
    assert (extra["kv_count"], extra["tensor_count"]) == (2, 3)
    assert (extra["header_bytes"], extra["data_offset"]) == (built.header_end, built.data_offset)
    assert extra["value_offsets"]["x"] == built.fields["kv:x:value"]
    assert extra["value_types"] == {"general.alignment": "uint32", "x": "string"}
    assert extra["entry_offsets"]["b"] == built.fields["tensor:b:axes"]


def test_the_last_tensor_need_not_be_padded(open_bytes: Any) -> None:
    tensors = [("a", F32, (5,), rows(1, 5))]
    assert open_bytes(write_gguf({}, tensors, pad_last=False)).defects == []


def test_metadata_alone_is_sound(open_bytes: Any) -> None:
    container = open_bytes(write_gguf({"general.architecture": "llama"}))
    assert container.defects == []
    assert container.tensors == []


def test_entries_may_be_sixty_three_bytes_long(open_bytes: Any) -> None:
    assert open_bytes(write_gguf({}, three(name="é" * 31 + "x"))).defects == []


def test_the_content_decides_whatever_the_suffix(open_bytes: Any) -> None:
    data = write_gguf({}, three())
    for name in ("model.safetensors", "model", "sha256-0123", "model.bin"):
        assert open_bytes(data, name=name).format == "gguf"
        assert open_bytes(data, name=name).defects == []


# Counts, magic, version


@pytest.mark.parametrize(
    ("damage", "goes_on"), [(b"GGUG", True), (b"\xb8\xb8\xaa\xb9", True), (b"\1\2\3\4", True)]
)
def test_bad_magic(open_bytes: Any, damage: bytes, goes_on: bool) -> None:
    container = open_bytes(write_gguf({}, three(), magic=damage))
    defect = only(container)
    assert (defect.code, defect.byte_offset) == ("Q003", 0)
    assert defect.expected == '"GGUF" (47 47 55 46)'
    assert defect.found == damage.hex(" ")
    assert (len(container.tensors) == 3) is goes_on


def test_junk_under_the_right_suffix_is_one_defect(open_bytes: Any) -> None:
    container = open_bytes(bytes(range(1, 200)))
    assert only(container).code == "Q003"
    assert container.tensors == []


@pytest.mark.parametrize("version", [0, 4, 0x00030300, 2**32 - 1])
def test_unknown_version(open_bytes: Any, version: int) -> None:
    defect = only(open_bytes(write_gguf({}, three(), version=version)))
    assert (defect.code, defect.byte_offset, defect.found) == ("Q003", 4, version)


@pytest.mark.parametrize("count", [2**64 - 1, 2**63, 2**40, 5000])
def test_impossible_number_of_tensors_leaves_the_metadata(open_bytes: Any, count: int) -> None:
    container = open_bytes(write_gguf({"x": 1}, three(), tensor_count=count))
    defect = only(container)
    assert (defect.code, defect.byte_offset, defect.found) == ("Q003", 8, count)
    assert container.metadata == {"x": 1}
    assert container.tensors == []


@pytest.mark.parametrize("count", [2**64 - 1, 2**63, 2**40, 5000])
def test_impossible_number_of_pairs(open_bytes: Any, count: int) -> None:
    defect = only(open_bytes(write_gguf({"x": 1}, three(), kv_count=count)))
    assert (defect.code, defect.byte_offset, defect.found) == ("Q003", 16, count)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_tensors_promised_than_there_are(open_bytes: Any, count: int) -> None:
    assert "Q008" in codes(open_bytes(write_gguf({}, three(), tensor_count=count)))


@pytest.mark.parametrize("field", ["tensor_count", "kv_count"])
@pytest.mark.parametrize("change", [-1, 1])
def test_counts_off_by_one(open_bytes: Any, field: str, change: int) -> None:
    true = {"tensor_count": 3, "kv_count": 2}[field]
    data = write_gguf({"a": 1, "b": "text"}, three(), **{field: true + change})
    assert open_bytes(data).defects


# Names


def test_duplicate_tensor_name(open_bytes: Any) -> None:
    built = build_gguf({}, three(name="a"))
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.tensor) == ("Q007", "a")
    entry = 8 + 1 + 4 + 16 + 4 + 8
    assert defect.byte_offset == built.fields["tensor:a"] + entry
    assert [t.name for t in container.tensors] == ["a", "a", "c"]


@pytest.mark.parametrize("name", ["x" * 64, "é" * 32, "y" * 200])
def test_name_that_llama_cpp_refuses(open_bytes: Any, name: str) -> None:
    built = build_gguf({}, three(name=name))
    defect = only(open_bytes(built.data))
    assert (defect.code, defect.tensor) == ("Q003", name)
    assert defect.byte_offset == built.fields[f"tensor:{name}"]
    assert defect.found == f"{len(name.encode())} bytes"


def test_empty_name_and_name_that_is_no_utf8(open_bytes: Any) -> None:
    built = build_gguf({}, three(name=""))
    defect = only(open_bytes(built.data))
    assert (defect.code, defect.byte_offset) == ("Q003", built.fields["tensor:"])
    built = build_gguf({}, three(name=b"b\xff"))
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.tensor) == ("Q003", "b\udcff")
    assert "\udcff" not in defect.message
    assert container.tensors[1].name == "b\udcff"


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**48])
def test_impossible_name_length(open_bytes: Any, length: int) -> None:
    built = build_gguf({}, three(name_length=length))
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.byte_offset) == ("Q003", built.fields["tensor:b"])
    assert [(t.name, t.readable) for t in container.tensors] == [("a", False)]
    assert container.extra["data_offset"] is None


# Shapes and types


@pytest.mark.parametrize(
    ("axes", "place"),
    [((0, 2), 0), ((32, 0), 1), ((2**63,), 0), ((2**32, 2**31), 1), ((2**64 - 1, 2**64 - 1), 0)],
)
def test_unusable_axes(open_bytes: Any, axes: tuple[int, ...], place: int) -> None:
    built = build_gguf({}, three(axes=axes))
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.tensor) == ("Q003", "b")
    assert defect.byte_offset == built.fields["tensor:b:axes"] + 8 * place
    assert [t.readable for t in container.tensors] == [True, False, True]
    assert container.tensors[1].nbytes is None


def test_row_that_is_no_whole_number_of_blocks(open_bytes: Any) -> None:
    built = build_gguf({}, three(type=Q4_K, axes=(128, 2)))
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.tensor, defect.found) == ("Q003", "b", 128)
    assert defect.byte_offset == built.fields["tensor:b:axes"]
    assert defect.expected == "a multiple of 256"
    assert not container.tensors[1].readable


def test_five_axes_are_read_but_refused(open_bytes: Any) -> None:
    built = build_gguf({}, three(axes=(2, 2, 2, 2, 4)))
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.minor, defect.found) == ("Q003", False, 5)
    assert defect.byte_offset == built.fields["tensor:b:axis_count"]
    assert container.tensors[1].shape == (4, 2, 2, 2, 2)


def test_no_axes_is_a_minor_defect(open_bytes: Any) -> None:
    container = open_bytes(write_gguf({}, three(axes=(), data=b"1234")))
    assert only(container).minor
    assert container.tensors[1].shape == ()
    assert container.tensors[1].nbytes == 4


@pytest.mark.parametrize("count", [9, 2**31, 2**32 - 1])
def test_absurd_number_of_axes_ends_the_list(open_bytes: Any, count: int) -> None:
    built = build_gguf({}, three(axis_count=count))
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.byte_offset) == ("Q003", built.fields["tensor:b:axis_count"])
    assert [t.name for t in container.tensors] == ["a"]


@pytest.mark.parametrize("number", [4, 43, 200, 2**32 - 1])
def test_types_of_unknown_size_cause_no_false_alarm(open_bytes: Any, number: int) -> None:
    for place in range(3):
        tensors = three()
        tensors[place] = GgufTensor("u", number, (32, 2), b"u" * 700)
        container = open_bytes(write_gguf({}, tensors))
        assert container.defects == []
        assert container.tensors[place].nbytes is None
        assert container.tensors[place].type.block == 0


def test_retired_types_of_known_size_are_still_measured(open_bytes: Any) -> None:
    container = open_bytes(write_gguf({}, three(type=31, axes=(32, 2), data=b"1" * 36)))
    assert container.defects == []
    assert "requantize" in container.tensors[1].type.note


# Alignment and offsets


@pytest.mark.parametrize(
    "value", [Typed(4, 0), Typed(4, 4), Typed(4, 48), Typed(10, 32), Typed(5, 32), "32", [32]]
)
def test_unusable_alignment_goes_on_with_32(open_bytes: Any, value: object) -> None:
    built = build_gguf({"general.alignment": value}, three())
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.byte_offset) == (
        "Q003",
        built.fields["kv:general.alignment:value"],
    )
    assert container.extra["alignment"] == 32
    assert all(t.readable for t in container.tensors)


def test_misaligned_offset(open_bytes: Any) -> None:
    built = build_gguf({}, three(offset=260))
    defect = only(open_bytes(built.data), "Q004")
    assert (defect.tensor, defect.found, defect.minor) == ("b", 260, False)
    assert defect.byte_offset == built.fields["tensor:b:offset"]


def test_offset_of_another_tensor(open_bytes: Any) -> None:
    built = build_gguf({}, three(offset=0))
    container = open_bytes(built.data)
    overlap = only(container, "Q002")
    assert {overlap.tensor, overlap.data["other"]} == {"a", "b"}
    assert "'a'" in overlap.message
    assert "'b'" in overlap.message
    assert overlap.data["bytes"] == 256
    assert overlap.byte_offset == built.data_offset
    gap = only(container, "Q008")
    assert gap.byte_offset == built.data_offset + 256
    assert gap.data["bytes"] == 256


def test_partial_overlap_names_both_and_the_shared_bytes(open_bytes: Any) -> None:
    built = build_gguf({}, three(offset=192))
    overlap = only(open_bytes(built.data), "Q002")
    assert (overlap.tensor, overlap.data["other"], overlap.data["bytes"]) == ("b", "a", 64)
    assert overlap.byte_offset == built.data_offset + 192


def test_offset_past_the_end(open_bytes: Any) -> None:
    for offset in (3 * 256, 2**40, 2**64 - 32):
        container = open_bytes(write_gguf({}, three(offset=offset)))
        defect = only(container, "Q001")
        assert defect.tensor == "b"
        assert defect.data["missing_bytes"] == 256
        assert [t.readable for t in container.tensors] == [True, False, True]


def test_swapped_offsets_show_in_the_order(open_bytes: Any) -> None:
    tensors = three(offset=512)
    built = build_gguf({}, [*tensors[:2], GgufTensor("c", F32, (32, 2), rows(2, 32), offset=256)])
    defect = only(open_bytes(built.data))
    assert (defect.code, defect.tensor, defect.minor) == ("Q003", "c", True)
    assert defect.byte_offset == built.fields["tensor:c:offset"]


# Truncation, gaps, padding, trailing bytes


def test_cut_data_says_how_much_is_missing(open_bytes: Any) -> None:
    built = build_gguf({}, three())
    data = built.data[: built.data_offset + 300]
    container = open_bytes(data)
    assert codes(container) == ["Q001", "Q001"]
    missing = {d.tensor: d.data["missing_bytes"] for d in container.defects}
    assert missing == {"b": 212, "c": 256}
    assert container.defects[0].byte_offset == built.fields["tensor:b:data"]
    assert [t.readable for t in container.tensors] == [True, False, False]


def test_shrunk_shape_leaves_a_gap(open_bytes: Any) -> None:
    built = build_gguf({}, three(axes=(32, 1)))
    gap = only(open_bytes(built.data))
    assert (gap.code, gap.tensor) == ("Q008", "b")
    assert (gap.data["before"], gap.data["after"], gap.data["bytes"]) == ("b", "c", 128)
    assert gap.byte_offset == built.fields["tensor:b:data"] + 128


def test_grown_shape_overlaps(open_bytes: Any) -> None:
    overlap = only(open_bytes(write_gguf({}, three(axes=(32, 3)))))
    assert (overlap.code, overlap.tensor, overlap.data["other"]) == ("Q002", "c", "b")


def test_shape_shrunk_by_less_than_the_padding_shows_in_the_padding(open_bytes: Any) -> None:
    built = build_gguf({}, three(axes=(60,)))
    defect = only(open_bytes(built.data))
    assert (defect.code, defect.tensor) == ("Q008", "b")
    assert defect.byte_offset == built.fields["tensor:b:data"] + 240
    assert (defect.expected, defect.found) == ("0x00", "0x11")


def test_last_shape_shrunk_shows_at_the_end(open_bytes: Any) -> None:
    tensors = three()
    tensors[2] = GgufTensor("c", F32, (32, 1), rows(2, 32))
    defect = only(open_bytes(write_gguf({}, tensors)))
    assert (defect.code, defect.tensor, defect.data["bytes"]) == ("Q008", "c", 128)


@pytest.mark.parametrize("extra", [1, 31, 32, 5000])
def test_trailing_bytes(open_bytes: Any, extra: int) -> None:
    built = build_gguf({}, three(), trailing=b"\0" * extra)
    defect = only(open_bytes(built.data))
    assert (defect.code, defect.data["bytes"]) == ("Q008", extra)
    assert defect.byte_offset == len(built.data) - extra


def test_non_zero_padding_after_the_header(open_bytes: Any) -> None:
    built = build_gguf({}, three())
    data = bytearray(built.data)
    assert built.header_end < built.data_offset
    data[built.header_end] = 1
    defect = only(open_bytes(bytes(data)))
    assert (defect.code, defect.byte_offset) == ("Q008", built.header_end)


def test_first_tensor_not_at_the_start(open_bytes: Any) -> None:
    tensors = [GgufTensor("a", F32, (32, 1), rows(2, 32), offset=128)]
    defect = only(open_bytes(write_gguf({}, tensors)))
    assert (defect.code, defect.tensor, defect.data["bytes"]) == ("Q008", "a", 128)


# Metadata that is broken


def test_duplicate_key_keeps_the_first(open_bytes: Any) -> None:
    built = build_gguf([("x", 1), ("y", 2), ("x", 3)], three())
    container = open_bytes(built.data)
    defect = only(container)
    assert defect.code == "Q003"
    assert defect.byte_offset == built.fields["kv:y"] + 8 + 1 + 4 + 4
    assert container.metadata == {"x": 1, "y": 2}


def test_key_that_is_no_utf8_and_empty_key(open_bytes: Any) -> None:
    built = build_gguf([(b"k\xff", 1)], three())
    container = open_bytes(built.data)
    assert (only(container).code, only(container).byte_offset) == ("Q003", 24)
    assert container.metadata == {"k\udcff": 1}
    assert only(open_bytes(write_gguf({"": 1}, three()))).code == "Q003"


def test_bool_that_is_neither(open_bytes: Any) -> None:
    built = build_gguf({"flag": Raw(7, b"\2")}, three())
    defect = only(open_bytes(built.data))
    assert (defect.code, defect.minor, defect.found) == ("Q003", True, 2)
    assert defect.byte_offset == built.fields["kv:flag:value"]


@pytest.mark.parametrize("number", [13, 255, 2**32 - 1])
def test_unknown_value_type_keeps_what_came_before(open_bytes: Any, number: int) -> None:
    built = build_gguf({"x": 1, "bad": Raw(number, b"1234"), "y": 2}, three())
    container = open_bytes(built.data)
    defect = only(container)
    assert (defect.code, defect.byte_offset) == ("Q003", built.fields["kv:bad:type"])
    assert container.metadata == {"x": 1}


@pytest.mark.parametrize("length", [2**64 - 1, 2**60])
@pytest.mark.parametrize("kind", ["string", "array", "strings"])
def test_impossible_lengths(open_bytes: Any, kind: str, length: int) -> None:
    value = {
        "string": Raw(8, struct.pack("<Q", length) + b"abc"),
        "array": Raw(9, struct.pack("<IQ", 4, length) + b"abcd"),
        "strings": Raw(9, struct.pack("<IQ", 8, length) + b"abcd"),
    }[kind]
    built = build_gguf({"bad": value}, three())
    defect = only(open_bytes(built.data))
    assert defect.code == "Q003"
    at = built.fields["kv:bad:value"] + (0 if kind == "string" else 4)
    assert defect.byte_offset == at


def test_lying_string_inside_an_array_is_pointed_at(open_bytes: Any) -> None:
    strings = [struct.pack("<Q", 3) + b"abc"] * 5
    strings[3] = struct.pack("<Q", 2**50) + b"abc"
    built = build_gguf({"bad": Raw(9, struct.pack("<IQ", 8, 5) + b"".join(strings))}, three())
    defect = only(open_bytes(built.data))
    assert (defect.code, defect.byte_offset) == ("Q003", built.fields["kv:bad:value"] + 12 + 33)


def test_arrays_nested_too_deeply(open_bytes: Any) -> None:
    def nest(depth: int) -> bytes:
        return struct.pack("<IQ", 9, 1) * (depth - 1) + struct.pack("<IQI", 4, 1, 7)

    assert open_bytes(write_gguf({"x": Raw(9, nest(8))}, three())).defects == []
    assert only(open_bytes(write_gguf({"x": Raw(9, nest(9))}, three()))).code == "Q003"
    assert only(open_bytes(write_gguf({"x": Raw(9, nest(3000))}, three()))).code == "Q003"


# Floods and splits


def test_a_flood_is_counted_not_listed(open_bytes: Any) -> None:
    tensors = [GgufTensor("same", F32, (8,), b"\1" * 32, offset=0) for _ in range(1500)]
    container = open_bytes(write_gguf({}, tensors))
    repeated = [d for d in container.defects if d.code == "Q007"]
    assert len(repeated) == 1001
    assert repeated[-1].data == {"count": 499}
    assert "499" in repeated[-1].message


def test_overlaps_with_one_tensor_are_bounded(open_bytes: Any) -> None:
    tensors = [GgufTensor("big", F32, (8, 200), b"\1" * 32)]
    tensors += [GgufTensor(f"t{i}", F32, (8,), b"\1" * 32) for i in range(199)]
    container = open_bytes(write_gguf({}, tensors))
    assert set(codes(container)) == {"Q002"}
    assert len(container.defects) == 17
    assert container.defects[-1].data == {"count": 199 - 16}


def test_split_names_the_other_parts(open_bytes: Any) -> None:
    metadata = {
        "split.no": Typed(2, 1),
        "split.count": Typed(2, 3),
        "split.tensors.count": Typed(5, 9),
    }
    container = open_bytes(write_gguf(metadata, three()), name="m-00002-of-00003.gguf")
    assert container.defects == []
    assert [(s.name, s.reason) for s in container.skipped] == [
        ("m-00001-of-00003.gguf", "part 1 of 3: check it too"),
        ("m-00003-of-00003.gguf", "part 3 of 3: check it too"),
    ]
    assert container.extra["split"] == {"no": 1, "count": 3, "tensors": 9}


@pytest.mark.parametrize("count", [Typed(2, 65535), Typed(10, 2**64 - 1)])
def test_an_absurd_split_is_bounded(open_bytes: Any, count: Typed) -> None:
    container = open_bytes(write_gguf({"split.count": count}, three()))
    assert len(container.skipped) <= 101


def test_split_of_one_or_of_nonsense_is_no_split(open_bytes: Any) -> None:
    for value in (Typed(2, 1), Typed(2, 0), "3", True, [3]):
        assert open_bytes(write_gguf({"split.count": value}, three())).skipped == []


def test_raw_bytes_are_read_only(open_bytes: Any) -> None:
    raw = open_bytes(write_gguf({}, three())).tensors[0].raw()
    with pytest.raises(ValueError, match="read-only"):
        raw[0] = np.uint8(1)
