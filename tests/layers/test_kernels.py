"""The fast kernels over layers equal the NumPy reference, bit for bit, on anything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qassay.kernels import layer_fast, layer_reference

SEEDS = st.integers(0, 2**32 - 1)
ODD = np.array([0x00, 0xFF, 0x0F, 0x88, 0x77, 0x7F, 0x80, 0x81, 0x7E, 0xFE, 0xF7, 0x70], np.uint8)


def awkward(rng: np.random.Generator, rows: int, width: int, run: int, axis: int) -> np.ndarray:
    """Return bytes `[rows, width]` of which many a run along `axis` is alike, or all but alike."""
    raw = rng.integers(0, 256, (rows, width), dtype=np.uint8)
    lines = raw if axis == 1 else raw.T
    for line in lines:
        for begin in range(0, line.size, run):
            if rng.random() < 0.5:
                line[begin : begin + run] = rng.choice(ODD)
                if rng.random() < 0.3:
                    line[min(begin + int(rng.integers(run)), line.size - 1)] ^= rng.choice(ODD)
            elif rng.random() < 0.3:
                line[begin : begin + run] = rng.choice(ODD, line[begin : begin + run].size)
    return raw


@settings(max_examples=80, deadline=None)
@given(
    seed=SEEDS,
    rows=st.integers(1, 9),
    width=st.integers(1, 200),
    length=st.sampled_from([1, 3, 7, 8, 9, 16, 32, 64, 500]),
    floats=st.booleans(),
)
def test_rows_of_nibbles(seed: int, rows: int, width: int, length: int, floats: bool) -> None:
    raw = awkward(np.random.default_rng(seed), rows, width, length, 1)
    ours = layer_fast.scan_nibbles(raw, length, floats)
    assert np.array_equal(ours, layer_reference.scan_nibbles(raw, length, floats))


@settings(max_examples=80, deadline=None)
@given(
    seed=SEEDS,
    rows=st.integers(1, 9),
    width=st.integers(1, 300),
    length=st.sampled_from([1, 3, 16, 32, 100, 128, 500]),
    kind=st.sampled_from([(False, 0, 0), (True, 0x7E, 0x7F), (True, 0x7B, 0x7C)]),
)
def test_rows_of_bytes(
    seed: int, rows: int, width: int, length: int, kind: tuple[bool, int, int]
) -> None:
    raw = awkward(np.random.default_rng(seed), rows, width, length, 1)
    ours = layer_fast.scan_bytes(raw, length, *kind)
    assert np.array_equal(ours, layer_reference.scan_bytes(raw, length, *kind))


@settings(max_examples=80, deadline=None)
@given(
    seed=SEEDS,
    groups=st.integers(1, 5),
    words=st.sampled_from([1, 2, 3, 4, 16]),
    last=st.integers(0, 3),
    width=st.one_of(st.integers(1, 70), st.just(1030)),
    order=st.sampled_from(["natural", "offset", "shuffled"]),
)
def test_columns(seed: int, groups: int, words: int, last: int, width: int, order: str) -> None:
    rng = np.random.default_rng(seed)
    rows = groups * words + min(last, words)
    raw = awkward(rng, rows, width * 4, words, 0).view(np.uint32)
    starts = np.minimum(np.arange(groups + 2) * words * 8, rows * 8)
    columns = np.arange(rows * 8)
    if order == "shuffled":
        columns = rng.permutation(columns)
        starts[1:-1] = np.sort(rng.integers(0, rows * 8 + 1, groups))
    elif order == "offset" and groups > 1:  # a slab that leaves the first group out
        columns, starts = columns[words * 8 :], starts[1:] - words * 8
    natural = order != "shuffled"
    ours = layer_fast.scan_columns(raw, columns, starts, natural)
    assert np.array_equal(ours, layer_reference.scan_columns(raw, columns, starts, natural))


@settings(max_examples=80, deadline=None)
@given(
    seed=SEEDS,
    groups=st.integers(1, 5),
    length=st.sampled_from([1, 8, 16, 17, 40, 128]),
    width=st.one_of(st.integers(1, 70), st.just(1030)),
    lanes=st.permutations(range(8)),
)
def test_lanes(seed: int, groups: int, length: int, width: int, lanes: list[int]) -> None:
    rng = np.random.default_rng(seed)
    raw = awkward(rng, groups * length + 3, width * 4, length, 0).view(np.uint32)
    starts = np.minimum(np.arange(groups + 2) * length, groups * length + 3)
    ours = layer_fast.scan_lanes(raw, starts, np.array(lanes))
    assert np.array_equal(ours, layer_reference.scan_lanes(raw, starts, np.array(lanes)))


@pytest.mark.parametrize("size", [0, 1, 5, 4096, 100_003])
def test_counting(size: int) -> None:
    rng = np.random.default_rng(size)
    raw = rng.integers(0, 256, size, dtype=np.uint8)
    words = rng.integers(0, 1 << 16, size, dtype=np.uint16)
    assert np.array_equal(layer_fast.count_bytes(raw), layer_reference.count_bytes(raw))
    assert np.array_equal(layer_fast.count_words(words), layer_reference.count_words(words))
    assert layer_reference.count_bytes(raw).sum() == size
