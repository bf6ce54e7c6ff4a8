"""Damaged files through the public API: findings or one clear error; never anything else.

Every input here is checked in this process, with memory capped, by the same call a user makes.
"""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import qassay
from qassay.testing.gguf_writer import BuiltGguf, build_gguf
from qassay.testing.safetensors_writer import write_safetensors

LONGEST = 5.0
ALLOWANCE = 200 << 20


@pytest.fixture(scope="module", autouse=True)
def _capped_memory() -> Iterator[None]:
    """Let this process grow by 200 MB and no more: a larger allocation is a MemoryError."""
    qassay.check(__file__)  # imports everything first
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + ALLOWANCE, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def small_gguf() -> BuiltGguf:
    rng = np.random.default_rng(3)
    metadata = {
        "general.architecture": "llama",
        "llama.embedding_length": 64,
        "llama.block_count": 1,
        "tokenizer.ggml.tokens": ["<s>", "a", "b", "c"],
        "tokenizer.ggml.scores": [0.5, 1.5, 2.5, 3.5],
    }
    scale = np.float16(0.01).tobytes()
    q8 = b"".join(scale + rng.integers(-127, 128, 32, dtype=np.int8).tobytes() for _ in range(8))
    q4 = b"".join(scale + rng.integers(0, 256, 16, dtype=np.uint8).tobytes() for _ in range(8))
    norm = rng.normal(1, 0.1, 64).astype(np.float32).tobytes()
    tensors = [
        ("token_embd.weight", 8, [64, 4], q8),
        ("blk.0.attn_q.weight", 2, [64, 4], q4),
        ("output_norm.weight", 0, [64], norm),
    ]
    return build_gguf(metadata, tensors)


def small_safetensors() -> bytes:
    rng = np.random.default_rng(4)
    ones = (np.ones(16, "<f4").view("<u4") >> 16).astype("<u2")
    return write_safetensors(
        [
            (
                "model.embed_tokens.weight",
                "F32",
                [4, 16],
                rng.normal(0, 1, 64).astype("<f4").tobytes(),
            ),
            ("model.norm.weight", "BF16", [16], ones.tobytes()),
            ("lm_head.weight", "F16", [4, 16], rng.normal(0, 1, 64).astype("<f2").tobytes()),
        ]
    )


FILES = {"a.gguf": small_gguf().data, "a.safetensors": small_safetensors()}


def verdict_of(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    start = time.perf_counter()
    report = qassay.check(path, jobs=1)
    assert time.perf_counter() - start < LONGEST
    document = report.to_dict()
    json.dumps(document, allow_nan=False)
    crashed = [finding for finding in document["findings"] if finding["code"] == "Q902"]
    assert not crashed, crashed
    try:
        with qassay.open(path) as model:
            for tensor in model.tensors.values():
                assert decodes(tensor) or report.verdict != "clean"
    except qassay.InputError:
        assert report.verdict == "incomplete"
    return report.verdict


def decodes(tensor: qassay.Tensor) -> bool:
    try:
        assert tensor.dequantize().shape == tensor.shape
    except qassay.NotDecodableError:
        return False
    return True


@pytest.mark.parametrize("name", FILES)
def test_the_whole_file_is_clean(tmp_path: Path, name: str) -> None:
    assert verdict_of(tmp_path / name, FILES[name]) == "clean"


@pytest.mark.parametrize("name", FILES)
def test_truncated_at_every_length(tmp_path: Path, name: str) -> None:
    data = FILES[name]
    for length in range(len(data)):
        assert verdict_of(tmp_path / name, data[:length]) != "clean", length


@pytest.mark.parametrize("name", FILES)
def test_every_bit_of_the_header_flipped(tmp_path: Path, name: str) -> None:
    data = bytearray(FILES[name])
    end = (
        small_gguf().header_end if name.endswith("gguf") else 8 + int.from_bytes(data[:8], "little")
    )
    for bit in range(end * 8):
        data[bit // 8] ^= 1 << bit % 8
        verdict_of(tmp_path / name, bytes(data))
        data[bit // 8] ^= 1 << bit % 8


def test_a_changed_type_shape_or_span_is_never_clean(tmp_path: Path) -> None:
    built = small_gguf()
    data = bytearray(built.data)
    for tensor in ("token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"):
        first = built.fields[f"tensor:{tensor}:axis_count"]
        last = built.fields[f"tensor:{tensor}:offset"] + 8
        for bit in range(first * 8, last * 8):
            data[bit // 8] ^= 1 << bit % 8
            assert verdict_of(tmp_path / "a.gguf", bytes(data)) != "clean", (tensor, bit)
            data[bit // 8] ^= 1 << bit % 8


def test_a_changed_dtype_shape_or_span_in_safetensors_is_never_clean(tmp_path: Path) -> None:
    data = small_safetensors()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name, entry in header.items():
        changes = [
            {"dtype": "F64"}, {"dtype": "F8_E4M3"}, {"dtype": "XYZ"},
            {"shape": [entry["shape"][0] + 1, *entry["shape"][1:]]}, {"shape": []},
            {"data_offsets": [entry["data_offsets"][0] + 2, entry["data_offsets"][1]]},
            {"data_offsets": [entry["data_offsets"][0], entry["data_offsets"][1] + 2]},
            {"data_offsets": [entry["data_offsets"][1], entry["data_offsets"][0]]},
        ]  # fmt: skip
        for change in changes:
            broken = json.dumps({**header, name: {**entry, **change}}).encode()
            broken += b" " * (-len(broken) % 8)
            whole = len(broken).to_bytes(8, "little") + broken + data[8 + length :]
            assert verdict_of(tmp_path / "a.safetensors", whole) != "clean", (name, change)


@st.composite
def mutations(draw: st.DrawFn) -> list[tuple[int, int, bytes]]:
    """Draw edits: (position in millionths of the file, bytes to cut, bytes to put there)."""
    interesting = st.sampled_from(
        [b"", b"\0", b"\xff", b"\xff" * 8, b"\0" * 8, (1 << 63).to_bytes(8, "little"),
         (1 << 32).to_bytes(8, "little"), b"\x08\0\0\0", b"\x09\0\0\0", b'"', b"{", b"[[[[", b"NaN"]
    )  # fmt: skip
    edit = st.tuples(
        st.integers(0, 999_999), st.integers(0, 16), st.one_of(interesting, st.binary(max_size=12))
    )
    return draw(st.lists(edit, min_size=1, max_size=4))


@pytest.mark.parametrize("name", FILES)
def test_twenty_thousand_random_mutations_of_each_file(tmp_path: Path, name: str) -> None:
    original = FILES[name]

    @settings(
        max_examples=20_000,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(mutations())
    def mutate(edits: list[tuple[int, int, bytes]]) -> None:
        data = bytearray(original)
        for position, cut, put in edits:
            at = position * len(data) // 1_000_000
            data[at : at + cut] = put
        verdict_of(tmp_path / name, bytes(data))

    mutate()


def sharded(folder: Path) -> bytes:
    """Write a shard and return the index that goes with it."""
    (folder / "model-00001-of-00001.safetensors").write_bytes(small_safetensors())
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    shards = dict.fromkeys(names, "model-00001-of-00001.safetensors")
    return json.dumps({"metadata": {"total_size": 1}, "weight_map": shards}).encode()


def index_verdict(folder: Path, index: bytes) -> str:
    (folder / "model.safetensors.index.json").write_bytes(index)
    start = time.perf_counter()
    report = qassay.check(folder, jobs=1)
    assert time.perf_counter() - start < LONGEST
    json.dumps(report.to_dict(), allow_nan=False)
    assert not [finding for finding in report.findings if finding.code == "Q902"]
    return report.verdict


def test_every_bit_of_a_shard_index_flipped(tmp_path: Path) -> None:
    index = bytearray(sharded(tmp_path))
    for bit in range(len(index) * 8):
        index[bit // 8] ^= 1 << bit % 8
        index_verdict(tmp_path, bytes(index))
        index[bit // 8] ^= 1 << bit % 8


def test_twenty_thousand_random_mutations_of_a_shard_index(tmp_path: Path) -> None:
    original = sharded(tmp_path)

    @settings(
        max_examples=20_000,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(mutations())
    def mutate(edits: list[tuple[int, int, bytes]]) -> None:
        data = bytearray(original)
        for position, cut, put in edits:
            at = position * len(data) // 1_000_000
            data[at : at + cut] = put
        index_verdict(tmp_path, bytes(data))

    mutate()


def test_a_damaged_shard_index_is_never_clean(tmp_path: Path) -> None:
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(small_safetensors())
    index = tmp_path / "model.safetensors.index.json"
    names = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    text = json.dumps({"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")})
    index.write_text(text)
    assert qassay.check(tmp_path).verdict == "clean"
    for length in range(len(text)):
        index.write_text(text[:length])
        assert qassay.check(tmp_path, jobs=1).verdict != "clean", length
