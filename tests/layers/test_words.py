"""Codes packed into 32-bit words, against integers of any length that Python packs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int_cases import words_of

from qassay.encodings.layers.words import pack, pack_awq, unpack, unpack_awq, words_for

BITS = range(1, 9)


def some_codes(seed: int, rows: int, count: int, bits: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << bits, (rows, count), dtype=np.uint8)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), count=st.integers(1, 140))
@pytest.mark.parametrize("bits", BITS)
def test_both_ways_agree_with_python_integers(bits, seed, rows, count):
    codes = some_codes(seed, rows, count, bits)
    words = words_of(codes.tolist(), bits)
    assert words.shape == (rows, words_for(count, bits))
    assert np.array_equal(pack(codes, bits), words)
    assert np.array_equal(pack(codes, bits, axis=0), words.T)
    assert np.array_equal(unpack(words, bits, count), codes)
    assert np.array_equal(unpack(words.T, bits, count, axis=0), codes)
    assert pack(codes, bits).dtype == np.int32
    assert unpack(words, bits, count).dtype == np.uint8


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("bits", BITS)
def test_any_part_is_a_part_of_the_whole(bits, data):
    count = data.draw(st.integers(1, 150))
    start = data.draw(st.integers(0, count))
    stop = data.draw(st.integers(start, count))
    codes = some_codes(count, 3, count, bits)
    words = pack(codes, bits)
    assert np.array_equal(unpack(words, bits, stop, start), codes[:, start:stop])
    assert np.array_equal(unpack(words.T, bits, stop, start, axis=0), codes[:, start:stop])


def test_three_bits_straddle_words_at_codes_10_and_21():
    # AutoGPTQ's qlinear_cuda_old.py: code 10 has two bits in word 0 and one in word 1, code 21
    # one in word 1 and two in word 2.
    expected = {10: (0xC0000000, 0x1, 0), 21: (0, 0x80000000, 0x3)}
    for code, masks in expected.items():
        codes = np.zeros((1, 32), np.uint8)
        codes[0, code] = 7
        assert tuple(pack(codes, 3).view(np.uint32)[0].tolist()) == masks
    assert words_for(4096, 3) == 384


def test_rows_of_no_words():
    words = np.zeros((0, 3), np.int32)
    assert unpack(words, 3, 32).shape == (0, 32)
    assert unpack(np.zeros((3, 0), np.int32), 3, 32, axis=0).shape == (0, 32)


def test_awq_order_of_a_word():
    # 0, 2, 4, 6, 1, 3, 5, 7 from the lowest nibble: AutoAWQ's packing_utils.py.
    word = np.array([[0x75316420]], np.uint32).view(np.int32)
    assert unpack_awq(word, 0, 8)[:, 0].tolist() == list(range(8))
    assert pack_awq(np.arange(8, dtype=np.uint8)[:, None]).view(np.uint32).tolist() == [
        [0x75316420]
    ]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_awq_words_there_and_back_and_in_parts(data):
    rows, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 6))
    words = np.random.default_rng(data.draw(st.integers(0, 99))).integers(
        -(2**31), 2**31, (rows, width), dtype=np.int32
    )
    codes = unpack_awq(words, 0, 8 * width)
    assert codes.shape == (8 * width, rows)
    assert np.array_equal(pack_awq(codes), words)
    start = data.draw(st.integers(0, 8 * width))
    stop = data.draw(st.integers(start, 8 * width))
    assert np.array_equal(unpack_awq(words, start, stop), codes[start:stop])
