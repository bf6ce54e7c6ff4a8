"""safetensors: what a sound file gives, and every structural defect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qassay.containers import open_container
from qassay.core.container import Container, Defect
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors


def only(container: Container, code: str | None = None) -> Defect:
    found = [d for d in container.defects if code is None or d.code == code]
    assert len(found) == 1, container.defects
    return found[0]


def three(**changes: Any) -> list[SafeTensor]:
    plain = {n: {"name": n, "dtype": "F32", "shape": [2, 4], "data": b"\x11" * 32} for n in "abc"}
    plain["b"].update(changes)
    return [SafeTensor(**fields) for fields in plain.values()]


@pytest.fixture
def open_st(open_bytes: Any) -> Any:
    return lambda *args, **more: open_bytes(write_safetensors(*args, **more), ".safetensors")


def entry_at(data: bytes, name: str, occurrence: int = 0) -> int:
    at = -1
    for _ in range(occurrence + 1):
        at = data.index(f'"{name}": {{'.encode(), at + 1)
    return at


# Sound files

SIZES = {
    "BOOL": 8, "U8": 8, "I8": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E5M2": 8, "F8_E4M3": 8,
    "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "F64": 64, "I64": 64, "U64": 64, "C64": 64,
}  # fmt: skip


@pytest.mark.parametrize("dtype", SIZES)
def test_every_dtype(open_st: Any, dtype: str) -> None:
    data = b"\x11" * (3 * 8 * SIZES[dtype] // 8)
    container = open_st([("a", dtype, [3, 8], data)], {"format": "pt"})
    assert container.defects == []
    assert container.format == "safetensors"
    assert container.metadata == {"format": "pt"}
    [tensor] = container.tensors
    assert (tensor.name, tensor.shape, tensor.nbytes) == ("a", (3, 8), len(data))
    assert (tensor.type.family, tensor.type.label) == ("safetensors", dtype)
    assert tensor.raw().tobytes() == data


def test_scalars_and_empty_tensors_are_sound(open_st: Any) -> None:
    container = open_st([("s", "F32", [], b"1234"), ("e", "F32", [0, 7], b""), *three()])
    assert container.defects == []
    assert [t.shape for t in container.tensors][:2] == [(), (0, 7)]
    assert [t.nbytes for t in container.tensors][:2] == [4, 0]
    assert all(t.readable for t in container.tensors)
    assert container.tensors[1].raw().size == 0


def test_no_tensors_is_sound(open_st: Any) -> None:
    assert open_st([]).defects == []


def test_order_in_the_header_is_free(open_st: Any) -> None:
    tensors = three()
    header = {
        t.name: {"dtype": "F32", "shape": [2, 4], "data_offsets": [32 * i, 32 * i + 32]}
        for i, t in reversed(list(enumerate(tensors)))
    }
    container = open_st(tensors, header=header)
    assert container.defects == []
    assert [t.name for t in container.tensors] == ["c", "b", "a"]


def test_other_fields_in_an_entry_are_let_be(open_st: Any) -> None:
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1], "note": [{}]}}
    assert open_st(header=header, trailing=b"1").defects == []


def test_unknown_dtype_is_no_defect(open_st: Any) -> None:
    container = open_st(three(dtype="F7_X"))
    assert container.defects == []
    tensor = container.tensors[1]
    assert (tensor.type.block, tensor.nbytes, tensor.type.name) == (0, None, "F7_X")


@pytest.mark.parametrize("name", ["model", "model.bin", "model.gguf"])
def test_the_content_decides(open_bytes: Any, name: str) -> None:
    container = open_bytes(write_safetensors(three()), name=name)
    assert (container.format, container.defects) == ("safetensors", [])


# The header as a whole


@pytest.mark.parametrize("length", [0, 1, 100_000_001, 2**63, 2**64 - 1])
def test_absurd_header_length(open_st: Any, length: int) -> None:
    defect = only(open_st(three(), header_length=length))
    assert (defect.code, defect.byte_offset, defect.found) == ("Q003", 0, f"{length} bytes")


def test_header_longer_than_the_file(open_st: Any) -> None:
    defect = only(open_st(three(), header_length=90_000_000))
    assert (defect.code, defect.byte_offset) == ("Q001", 8)


@pytest.mark.parametrize(
    "header",
    [
        b"[1, 2, 3]      ",
        b'{"a": ',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": {"dtype": "F32" "shape"}}',
        b'{"\x01": {}}',
        b"{" + b'"a":{' * 5000,
        b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
    ids=["list", "cut", "nan", "inf", "comma", "control", "objects", "lists"],
)
def test_header_that_is_no_json(open_st: Any, header: bytes) -> None:
    container = open_st(header=header)
    defect = only(container)
    assert defect.code == "Q003"
    assert defect.byte_offset is not None
    assert defect.byte_offset >= 8
    assert container.tensors == []


def test_where_json_breaks_is_counted_in_bytes(open_st: Any) -> None:
    assert only(open_st(header='{"éé": !}')).byte_offset == 8 + len('{"éé": '.encode())


def test_bytes_after_the_json_object(open_st: Any) -> None:
    header = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    container = open_st(header=header + b"\0\0", trailing=b"1")
    defect = only(container)
    assert (defect.code, defect.byte_offset) == ("Q003", 8 + len(header))
    assert container.tensors[0].readable


def test_header_that_is_no_utf8(open_st: Any) -> None:
    container = open_st(
        header=b'{"a\xff":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', trailing=b"1"
    )
    defect = only(container, "Q003")
    assert (defect.byte_offset, defect.found) == (8 + 3, "0xff")
    assert container.tensors[0].name == "a\udcff"


# Entries


BIG = 10**30


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": 7},
        {"dtype": None},
        {"dtype": ["F32"]},
        {"shape": "2, 4"},
        {"shape": [2, -4]},
        {"shape": [2.0, 4]},
        {"shape": [True, 8]},
        {"shape": [2, "4"]},
        {"shape": [BIG, 8]},
        {"shape": [2**62, 2**62]},
        {"shape": [1] * 65},
        {"shape": [[2], [4]]},
        {"shape": {"2": 4}},
        {"shape": [2, 5]},
        {"shape": [2]},
        {"shape": []},
        {"dtype": "F64"},
        {"dtype": "F16"},
        {"data_offsets": [32]},
        {"data_offsets": [32, 64, 96]},
        {"data_offsets": [-32, 64]},
        {"data_offsets": [32.0, 64.0]},
        {"data_offsets": [False, True]},
        {"data_offsets": "32,64"},
        {"data_offsets": [64, 32]},
        {"data_offsets": [32, BIG]},
        {"data_offsets": {}},
    ],
    ids=str,
)
def test_wrong_fields(open_st: Any, open_bytes: Any, change: dict[str, Any]) -> None:
    data = write_safetensors(three(**change))
    container = open_bytes(data, ".safetensors")
    defects = [d for d in container.defects if d.code == "Q003"]
    assert defects
    for defect in defects:
        assert (defect.code, defect.tensor, defect.minor) == ("Q003", "b", False)
        assert defect.byte_offset == entry_at(data, "b")
        assert len(defect.message) < 300
    for tensor in container.tensors:
        assert tensor.readable is (tensor.name != "b")


def test_integers_of_thousands_of_digits(open_st: Any) -> None:
    digits = "9" * 20_000
    entry = f'{{"dtype":"U8","shape":[{digits}],"data_offsets":[0,{digits}]}}'
    defects = open_st(header=f'{{"a":{entry}}}').defects
    assert {d.code for d in defects} == {"Q003"}


@pytest.mark.parametrize("entry", ["1", "[]", "null", '"F32"', "{}"])
def test_entry_that_is_no_description(open_st: Any, entry: str) -> None:
    defect = only(open_st(header=f'{{"a": {entry}}}'))
    assert (defect.code, defect.tensor) == ("Q003", "a")


def test_sub_byte_weights_that_end_inside_a_byte(open_st: Any) -> None:
    container = open_st([SafeTensor("a", "F4", [3], b"12")])
    defect = only(container, "Q003")
    assert "inside a byte" in defect.message
    assert not container.tensors[0].readable


def test_names(open_st: Any) -> None:
    assert only(open_st(three(name=""))).minor
    lone = open_st(three(name="\ud800"))
    assert (only(lone).code, only(lone).minor) == ("Q003", False)
    assert "\ud800" not in only(lone).message


def test_repeated_names(open_bytes: Any) -> None:
    data = write_safetensors(three(name="a"))
    container = open_bytes(data, ".safetensors")
    defect = only(container)
    assert (defect.code, defect.tensor) == ("Q007", "a")
    assert defect.byte_offset == entry_at(data, "a", 1)
    assert sorted(t.name for t in container.tensors) == ["a", "a", "c"]


def test_repeated_field_in_an_entry(open_st: Any) -> None:
    header = '{"a":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,1]}}'
    assert only(open_st(header=header, trailing=b"1")).code == "Q003"


@pytest.mark.parametrize("metadata", [{"a": 1}, {"a": None}, {"a": {"b": "c"}}, {"a": [[]]}])
def test_metadata_that_is_no_string_is_minor(open_st: Any, metadata: Any) -> None:
    container = open_st(three(), metadata)
    assert (only(container).code, only(container).minor) == ("Q003", True)
    assert container.metadata == metadata


def test_metadata_of_another_kind(open_st: Any) -> None:
    container = open_st(three(), ["x"])
    assert (only(container).code, only(container).minor) == ("Q003", False)
    assert container.metadata == {}


def test_metadata_text_is_not_mistaken_for_entries(open_bytes: Any) -> None:
    trap = {"x": '{"b": {"dtype": 1}}'}
    data = write_safetensors(three(shape=[9]), trap)
    defect = only(open_bytes(data, ".safetensors"))
    assert defect.byte_offset == data.index(b'"b": {"dtype"')


# Spans


def test_cut_data(open_bytes: Any) -> None:
    data = write_safetensors(three())
    container = open_bytes(data[:-40], ".safetensors")
    assert [(d.code, d.tensor, d.data["missing_bytes"]) for d in container.defects] == [
        ("Q001", "b", 8),
        ("Q001", "c", 32),
    ]
    assert container.defects[0].byte_offset == len(data) - 64
    assert [t.readable for t in container.tensors] == [True, False, False]


def test_overlap_gap_and_trailing(open_bytes: Any) -> None:
    data = write_safetensors(three(data_offsets=[16, 48]))
    container = open_bytes(data, ".safetensors")
    overlap, gap = only(container, "Q002"), only(container, "Q008")
    start = len(data) - 96
    assert (overlap.tensor, overlap.data["other"], overlap.data["bytes"]) == ("b", "a", 16)
    assert overlap.byte_offset == start + 16
    assert (gap.data["before"], gap.data["after"], gap.data["bytes"]) == ("b", "c", 16)
    assert gap.byte_offset == start + 48
    data = write_safetensors(three(), trailing=b"\0")
    trailing = only(open_bytes(data, ".safetensors"))
    assert (trailing.code, trailing.data["bytes"]) == ("Q008", 1)
    assert trailing.byte_offset == len(data) - 1


def test_data_before_the_first_tensor(open_st: Any) -> None:
    header = {"a": {"dtype": "U8", "shape": [1], "data_offsets": [3, 4]}}
    assert only(open_st(header=header, trailing=b"1234")).code == "Q008"


def test_misalignment_is_minor_and_said_once_for_a_crooked_header(open_bytes: Any) -> None:
    tensors = [SafeTensor("x", "U8", [1], b"1"), *three()]
    container = open_bytes(write_safetensors(tensors), ".safetensors")
    assert [(d.code, d.minor) for d in container.defects] == [("Q004", True)] * 3
    raw = write_safetensors(three(), align=1)
    length = int.from_bytes(raw[:8], "little")
    crooked = write_safetensors(three(), align=1 if length % 4 else length + 1)
    defect = only(open_bytes(crooked, ".safetensors"))
    assert (defect.code, defect.minor, defect.tensor) == ("Q004", True, None)


def test_a_flood_of_entries_stays_quick(open_st: Any) -> None:
    header = json.dumps({f"t{i}": 0 for i in range(20_000)})
    container = open_st(header=header)
    assert len(container.defects) == 1001


def test_oracle_agrees_on_what_is_sound(open_bytes: Any, tmp_path: Any) -> None:
    theirs = pytest.importorskip("safetensors")
    cases: dict[str, bytes] = {
        "sound": write_safetensors(three()),
        "hole": write_safetensors(three(data_offsets=[40, 72])),
        "trailing": write_safetensors(three(), trailing=b"1"),
        "shape": write_safetensors(three(shape=[9])),
        "dtype": write_safetensors(three(dtype="F99")),
        "list": write_safetensors(header="[]"),
        "half": write_safetensors([SafeTensor("a", "F4", [3], b"1")]),
        "metadata": write_safetensors(three(), {"a": 1}),
    }
    for name, data in cases.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(data)
        try:
            with theirs.safe_open(path, "np"):
                refused = False
        except theirs.SafetensorError:
            refused = True
        container = open_container(path)
        doubts = bool(container.defects) or any(t.type.block == 0 for t in container.tensors)
        assert doubts is refused, name


def test_metadata_twice_and_its_keys_twice(open_st: Any) -> None:
    twice = open_st(header='{"__metadata__": {"a": "1"}, "__metadata__": {"a": "2"}}')
    assert (only(twice).code, twice.metadata) == ("Q003", {"a": "1"})
    keys = open_st(header='{"__metadata__": {"a": "1", "a": "2"}}')
    assert (only(keys).code, only(keys).minor, keys.metadata) == ("Q003", True, {"a": "1"})
