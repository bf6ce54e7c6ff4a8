"""Importance files that lie: no crash, no large allocation, and a word about what is wrong."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.containers.imatrix import entries_of, looks_like_legacy
from qassay.core.errors import InputError
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.imatrix_writer import METADATA
from qassay.testing.imatrix_writer import write_imatrix as gguf_file
from qassay.testing.imatrix_writer import write_legacy_imatrix as legacy_file


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


SOUND = legacy_file({"blk.0.a.weight": (ones(64), 4), "blk.0.b.weight": (ones(32), 4)})


def check(data: bytes) -> qassay.Report:
    Path("i.dat").write_bytes(data)
    return qassay.check("i.dat", jobs=1)


@pytest.mark.parametrize("length", range(len(SOUND)))
def test_cut_at_every_offset(length: int) -> None:
    report = check(SOUND[:length])
    complete = len(SOUND) - 16
    if length < complete:
        assert report.verdict in ("incomplete", "findings")
        assert not report.complete
    else:  # what follows the entries may be missing
        assert report.complete


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 0x7FFFFFFF),
        (0, 3),
        (4, 0x7FFFFFFF),
        (4, 0),
        (26, 0x7FFFFFFF),
        (26, 0x80000000),
        (26, 0),
    ],
)
def test_lengths_that_lie(at: int, value: int) -> None:
    data = bytearray(SOUND)
    data[at : at + 4] = struct.pack("<I", value)
    tracemalloc.start()
    report = check(bytes(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report.verdict in ("incomplete", "findings")
    assert peak < 20_000_000


def test_random_damage() -> None:
    rng = random.Random(5)
    for data in (SOUND, gguf_file({"a.weight": (ones(4, 32), [1, 2, 0, 4])})):
        for _ in range(300):
            broken = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                broken[rng.randrange(len(broken))] = rng.randrange(256)
            try:
                report = check(bytes(broken))
            except InputError:
                continue
            report.to_dict()
            assert not report.fault


def test_a_name_twice_and_something_behind() -> None:
    entry = legacy_file({"a.weight": (ones(8), 4)}, end=b"")[4:]
    report = check(
        struct.pack("<i", 2) + entry + entry + struct.pack("<ii", 1, 2) + b"ab" + b"more"
    )
    assert {finding.code for finding in report.findings} >= {"Q007", "Q008"}


@pytest.mark.parametrize(
    ("tensors", "broken"),
    [
        ({"a.in_sum2": (0, (8, 2))}, "no counts"),
        ({"a.counts": (0, (1, 2))}, "no sums"),
        ({"a.in_sum2": (1, (8, 2)), "a.counts": (0, (1, 2))}, "no F32"),
        ({"a.in_sum2": (0, (8, 2)), "a.counts": (0, (1, 3))}, "shared out"),
        ({"a.in_sum2": (0, (0, 2)), "a.counts": (0, (1, 2))}, "not sound"),
        ({"a.in_sum2": (0, (8, 2)), "a.counts": (0, (1, 0))}, "not sound"),
    ],
)
def test_gguf_entries_that_do_not_go_together(
    tensors: dict[str, tuple[int, tuple[int, ...]]], broken: str
) -> None:
    made = [
        (name, kind, axes, bytes(int(np.prod(axes)) * (4 if kind == 0 else 2)))
        for name, (kind, axes) in tensors.items()
    ]
    report = check(write_gguf(METADATA, made))
    found = [finding.message for finding in report.findings if finding.code == "Q507"]
    assert any(broken in message for message in found), found


@pytest.mark.filterwarnings("error")
def test_a_signalling_nan_is_a_nan_without_a_word_from_numpy() -> None:
    values = ones(64)
    values.view(np.uint32)[5] = 0x7F800001
    report = check(legacy_file({"blk.0.a.weight": (values, 4)}))
    assert [finding.code for finding in report.findings] == ["Q401", "Q507"]


def test_other_binary_files_are_not_taken_for_one() -> None:
    for data in (b"", bytes(64), b"\x08\x07\x12\x07pytorch", b"GGUF" + bytes(60), bytes(range(64))):
        assert not looks_like_legacy(data, 1 << 20)
    assert looks_like_legacy(SOUND[:4096], len(SOUND))


def test_values_as_llama_quantize_takes_them() -> None:
    Path("i.gguf").write_bytes(gguf_file({"a": (np.float32([[2, 4], [6, 8]]), [2, 0])}))
    with qassay.open("i.gguf") as file:
        values = entries_of(file.container)["a"].values()
    assert values.tolist() == [[1, 2], [1, 1]]
    Path("i.dat").write_bytes(legacy_file({"a.b": (np.float32([2, 4]), 4), "c.d": ([5, 6], 0)}))
    with qassay.open("i.dat") as file:
        entries = entries_of(file.container)
        assert entries["a.b"].values().tolist() == [[0.5, 1]]
        assert entries["c.d"].values().tolist() == [[5, 6]]
    tail = entries["a.b"]
    assert tail.calls == 4


@pytest.mark.parametrize("data", [b"", b"words", bytes(64)])
def test_a_file_of_another_kind_is_not_said_to_be_no_model(data: bytes) -> None:
    Path("m.gguf").write_bytes(write_gguf({}, [("a.weight", 0, (32, 1), ones(32).tobytes())]))
    Path("i.dat").write_bytes(data)
    with pytest.raises(qassay.UsageError, match="no importance file") as caught:
        qassay.check("m.gguf", imatrix="i.dat")
    assert "llama-imatrix" in str(caught.value)
    assert "safetensors" not in str(caught.value)
    with pytest.raises(qassay.UsageError, match="no such file"):
        qassay.check("m.gguf", imatrix="none.dat")
