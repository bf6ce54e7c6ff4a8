"""Hostile files: cut anywhere, any bit flipped, mutated at random, built to exhaust memory.

Whatever the bytes, only qassay's own exceptions may come out, quickly, and a change that makes a
tensor disagree with the rest of the file is never without a defect.
"""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qassay.containers import MetadataArray, open_container
from qassay.core.container import Container
from qassay.core.errors import InputError, QassayError
from qassay.testing.gguf_writer import Raw, Typed, build_gguf
from qassay.testing.safetensors_writer import write_safetensors

# Every size is a multiple of the alignment and no byte is zero, so that any change of a span shows.
BUILT = build_gguf(
    {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.block_count": 2,
        "f": 1.5,
        "flag": True,
        "tokens": ["<s>", "", "é"],
        "scores": [0.5, -1.0],
        "nested": Typed(9, [Typed(9, [1, 2], 4), Typed(9, ["x"], 8)], 9),
        "u64": Typed(10, 2**60),
    },
    [
        ("token_embd.weight", 0, (32, 3), b"\x77" * 384),
        ("blk.0.attn_q.weight", 8, (128, 8), b"\x77" * (1024 // 32 * 34)),
        ("blk.0.ffn_down.weight", 12, (256, 2), b"\x77" * 288),
        ("output_norm.weight", 1, (32, 2, 2), b"\x77" * 256),
    ],
)
GGUF = BUILT.data
SAFE = write_safetensors(
    [
        ("embed.weight", "F32", [3, 32], b"\x77" * 384),
        ("layers.0.q.weight", "BF16", [16, 4], b"\x77" * 128),
        ("layers.0.packed", "F4", [2, 16], b"\x77" * 16),
        ("norm", "U8", [5], b"\x77" * 5),
    ],
    {"format": "pt"},
)
SAFE_HEADER = 8 + int.from_bytes(SAFE[:8], "little")
FILES = {".gguf": (GGUF, BUILT.data_offset), ".safetensors": (SAFE, SAFE_HEADER)}
Contents = dict[str, tuple[Any, ...]]


def contents(container: Container) -> list[tuple[Any, ...]]:
    return sorted((t.name, t.type.name, t.shape, t.offset, t.nbytes) for t in container.tensors)


def use(container: Container) -> None:
    """Look at everything a caller may look at."""
    for value in container.metadata.values():
        if isinstance(value, MetadataArray):
            list(value)
            assert len(value) == 0 or value[-1] is not None
    for tensor in container.tensors:
        assert tensor.size >= 0
        if tensor.readable and tensor.nbytes is not None:
            assert tensor.raw().size == tensor.nbytes
    for defect in container.defects:
        assert defect.message.isprintable()
        assert len(defect.message) < 1000
        json.dumps([defect.expected, defect.found, defect.data])
    container.close()


@pytest.fixture
def read(tmp_path: Path) -> Callable[[bytes, str], Container | None]:
    """Open bytes; None for an InputError, anything else escapes."""

    def reader(data: bytes, suffix: str) -> Container | None:
        path = tmp_path / f"m{suffix}"
        path.write_bytes(data)
        try:
            container = open_container(path)
        except InputError as error:
            return None if error.hint else pytest.fail(f"no hint: {error}")
        return container

    return reader


def test_the_files_are_sound(read: Any) -> None:
    for suffix, (data, _) in FILES.items():
        container = read(data, suffix)
        assert container.defects == []
        assert len(container.tensors) == 4
        use(container)


@pytest.mark.parametrize("suffix", FILES)
def test_cut_at_every_length(read: Any, suffix: str) -> None:
    data, _ = FILES[suffix]
    for length in range(1, len(data)):
        container = read(data[:length], suffix)
        # The last pad of a GGUF file may be absent; here there is none.
        assert container is not None, length
        assert container.defects, length
        assert {d.code for d in container.defects} <= {"Q001", "Q003"}, length
        use(container)


@pytest.mark.parametrize("suffix", FILES)
def test_every_header_bit_flipped(read: Any, suffix: str) -> None:
    data, header = FILES[suffix]
    sound = {entry[0]: entry for entry in contents(read(data, suffix))}
    for bit in range(8 * header):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        container = read(bytes(flipped), suffix)
        if container is None or container.defects:
            if container is not None:
                use(container)
            continue
        # Without a defect, nothing but names may differ, or types that are said to be unknown.
        known = [t for t in container.tensors if t.type.block]
        assert len(container.tensors) == len(sound), (bit // 8, bit % 8)
        places = {entry[3]: entry for entry in sound.values()}
        for tensor in known:
            entry = (tensor.type.name, tensor.shape, tensor.offset, tensor.nbytes)
            assert entry == places[tensor.offset][1:], (bit // 8, bit % 8)
        use(container)


def test_every_field_of_every_entry_changed(read: Any) -> None:
    """Sizes that disagree with the neighbours by one step in any direction are seen."""
    for field, at in BUILT.fields.items():
        if not field.startswith("tensor:") or not field.endswith((":axes", ":offset")):
            continue
        value = int.from_bytes(GGUF[at : at + 8], "little")
        for other in {value + 1, value - 1, value + 32, value - 32, value * 2, value // 2, 256}:
            if other == value or not 0 <= other < 2**64:
                continue
            data = GGUF[:at] + struct.pack("<Q", other) + GGUF[at + 8 :]
            container = read(data, ".gguf")
            assert container.defects, (field, value, other)


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "u64", "copy"]),
        st.integers(0, 2**16),
        st.one_of(
            st.integers(0, 255),
            st.sampled_from([2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]),
        ),
    ),
    min_size=1,
    max_size=6,
)


def mutate(data: bytes, header: int, steps: list[tuple[str, int, int]]) -> bytes:
    out = bytearray(data)
    for kind, place, value in steps:
        at = place % min(len(out), header + 16) if out else 0
        if kind == "set":
            out[at : at + 1] = bytes([value & 255])
        elif kind == "insert":
            out[at:at] = bytes([value & 255])
        elif kind == "delete":
            del out[at : at + 1 + value % 40]
        elif kind == "u64":
            out[at : at + 8] = struct.pack("<Q", value)
        else:
            out[at:at] = out[max(0, at - 60) : at]
    return bytes(out)


@pytest.mark.parametrize("suffix", FILES)
@settings(
    max_examples=2500,
    deadline=2000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=MUTATIONS)
def test_random_mutations(read: Any, suffix: str, steps: list[tuple[str, int, int]]) -> None:
    data, header = FILES[suffix]
    container = read(mutate(data, header, steps), suffix)
    if container is not None:
        use(container)


@settings(
    max_examples=300,
    deadline=2000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    data=st.binary(max_size=300), head=st.sampled_from([b"", b"GGUF\3\0\0\0", b"\x40" + bytes(7)])
)
def test_random_bytes(read: Any, data: bytes, head: bytes) -> None:
    for suffix in (".gguf", ".safetensors", ".bin"):
        container = read(head + data, suffix)
        if container is not None:
            use(container)


@settings(
    max_examples=300,
    deadline=2000,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    header=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(
                st.sampled_from(["dtype", "shape", "data_offsets", "a", "__metadata__", ""]), inner
            ),
        ),
        max_leaves=30,
    )
)
def test_json_of_any_shape(read: Any, header: Any) -> None:
    container = read(write_safetensors(header=json.dumps({"t": header})), ".safetensors")
    assert container is not None
    assert container.defects
    use(container)


def bombs() -> dict[str, tuple[bytes, str]]:
    """Files of at most 64 KB that ask for a great deal."""
    room = 65_000
    gguf = {
        "pairs": build_gguf([(f"{i}", True) for i in range(room // 18)]).data,
        "strings": build_gguf({"x": Raw(9, struct.pack("<IQ", 8, room // 8) + bytes(room))}).data,
        "arrays": build_gguf(
            {"x": Raw(9, struct.pack("<IQ", 9, 5400) + struct.pack("<IQ", 9, 0) * 5400)}
        ).data,
        "numbers": build_gguf({"x": Raw(9, struct.pack("<IQ", 0, 2**40) + bytes(room))}).data,
        "text": build_gguf({"x": Raw(8, struct.pack("<Q", 2**40) + bytes(room))}).data,
        "key": build_gguf(kv_count=1).data + struct.pack("<Q", 2**62) + bytes(room),
        "tensors": build_gguf({}, [("", 0, (2**62,), b"")] * (room // 32)).data,
        "same place": build_gguf(
            {}, [(f"{i}", 0, (2**30,), b"") for i in range(room // 38)], trailing=b"x"
        ).data,
    }
    big = "9" * 19
    axes = ",".join([big] * 2900)
    safe = {
        "lists": write_safetensors(header='{"a":' + "[" * 64_000),
        "objects": write_safetensors(header='{"a":' * 10_000),
        "axes": write_safetensors(
            header=f'{{"a":{{"dtype":"F32","shape":[{axes}],"data_offsets":[0,0]}}}}'
        ),
        "digits": write_safetensors(header=f'{{"a":{"9" * 64_000}}}'),
        "exponent": write_safetensors(header='{"a":1e999999999}'),
        "repeats": write_safetensors(header="{" + ",".join(['"a":{}'] * 9000) + "}"),
        "quotes": write_safetensors(header='{"a":{}}' + '"\\"' * 20_000),
        "length": struct.pack("<Q", 99_999_999) + b"{" + bytes(room),
    }
    return {f"gguf {name}": (data, ".gguf") for name, data in gguf.items()} | {
        f"safetensors {name}": (data, ".safetensors") for name, data in safe.items()
    }


@pytest.mark.parametrize("name", bombs())
def test_bombs_cost_little(read: Any, name: str) -> None:
    data, suffix = bombs()[name]
    assert len(data) <= 1 << 16 or "same place" in name
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        container = read(data, suffix)
        if container is not None:
            use(container)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - begin < 5
    assert peak < 60 << 20


def test_every_exception_of_ours_is_a_qassay_error(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(QassayError):
        open_container(tmp_path / "m.gguf")


def _pair(key: bytes, value: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + value


SPARSE = {
    "strings": (0, 1, _pair(b"a", struct.pack("<IIQ", 9, 8, 3 << 30))),
    "arrays": (0, 1, _pair(b"a", struct.pack("<IIQ", 9, 9, 3 << 30))),
    "strings below the limit, twice": (
        0, 2, _pair(b"a", struct.pack("<IIQ", 9, 8, 1 << 22) + bytes(8 << 22))
        + _pair(b"b", struct.pack("<IIQ", 9, 8, 1 << 23)),
    ),
    "empty arrays below the limit": (0, 1, _pair(b"a", struct.pack("<IIQ", 9, 9, 1 << 20))),
    "tensors": (1 << 20, 0, b""),
    "pairs": (0, 1 << 20, b""),
    "text": (0, 2, _pair(b"a", struct.pack("<IQ", 8, 1 << 26) + bytes(1 << 26))
             + _pair(b"b", struct.pack("<IQ", 8, 1 << 26))),
}  # fmt: skip


@pytest.mark.parametrize("name", SPARSE)
def test_a_sparse_file_promises_more_than_is_read(tmp_path: Path, name: str) -> None:
    """No byte of such a file need exist, so its size bounds nothing."""
    tensors, pairs, rest = SPARSE[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, tensors, pairs) + rest)
    os.truncate(path, 100 << 30)
    begun = time.monotonic()
    container = open_container(path)
    assert time.monotonic() - begun < 5
    assert {defect.code for defect in container.defects} == {"Q003"}
    assert container.skipped


def test_as_many_entries_as_are_read_are_read_in_time(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 17, 0))
    os.truncate(path, 1 << 30)
    begun = time.monotonic()
    container = open_container(path)
    assert time.monotonic() - begun < 20
    assert len(container.tensors) == 1 << 17
