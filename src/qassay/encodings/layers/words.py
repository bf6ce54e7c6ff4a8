"""Integers packed densely into 32-bit words, low bits first, and the order that AWQ gives them.

Code i takes the bits `i * bits` to `i * bits + bits - 1` of the words of its row laid end to end;
a code may begin in one word and end in the next::

    3 bits   word 0                                   word 1
    bit      0..2  3..5  ...  27..29  30 31 | 0   1..3  ...  28..30  31 | 0 1 ...
    code       0     1          9        10 . 10    11          20       21 . 21

A word is stored in little-endian order, so the same is true of the bytes: eight codes take
exactly `bits` bytes, whatever `bits` is. That is what is used here.

Sources: AutoGPTQ auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py (pack: 2, 4, 8 bits by shifts,
3 bits by hand over three words); compressed-tensors compressors/pack_quantized (0.19: every
width 1 to 8); AutoAWQ awq/utils/packing_utils.py (order).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]
CodesArray = npt.NDArray[np.uint8]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The column, of eight, that nibble i of a word holds."""


def words_for(count: int, bits: int) -> int:
    """Return how many words `count` codes take."""
    return -(-count * bits // 32)


def unpack(
    words: npt.NDArray[Any], bits: int, stop: int, start: int = 0, axis: int = 1
) -> CodesArray:
    """Return codes `start` to `stop` of every row of words.

    Args:
        words: int32 `[rows, W]`; `[W, rows]` with `axis=0`.
        bits: Of a code, 1 to 8.
        stop: The first code that is not wanted; at most `32 * W // bits`.
        start: The first code that is.
        axis: Along which codes are packed.

    Returns:
        uint8 `[rows, stop - start]`, whatever the axis, contiguous.
    """
    first = start - start % 32  # 32 codes begin at a word, whatever the width
    low, high = first * bits // 32, words_for(stop, bits)
    packed = words[low:high].T if axis == 0 else words[:, low:high]
    raw = np.ascontiguousarray(packed, "<i4").view(np.uint8)
    rows = packed.shape[0]
    units = -(-(stop - first) // 8)
    raw = raw[:, : units * bits]
    if raw.shape[1] < units * bits:  # the last eight codes need not be whole
        raw = np.pad(raw, ((0, 0), (0, units * bits - raw.shape[1])))
    parts = raw.reshape(rows, units, bits)
    codes = np.empty((rows, units, 8), np.uint8)
    mask = np.uint8((1 << bits) - 1)
    for index in range(8):
        at, shift = divmod(index * bits, 8)
        value = parts[:, :, at] >> np.uint8(shift)
        if shift + bits > 8:
            value |= parts[:, :, at + 1] << np.uint8(8 - shift)
        codes[:, :, index] = value & mask
    return np.ascontiguousarray(codes.reshape(rows, units * 8)[:, start - first : stop - first])


def pack(codes: npt.NDArray[Any], bits: int, axis: int = 1) -> Words:
    """Return the words that hold `codes`, the inverse of `unpack`; left-over bits are zero.

    Args:
        codes: `[rows, count]`, each in 0 .. 2^bits - 1.
        bits: Of a code, 1 to 8.
        axis: Along which to pack.

    Returns:
        int32 `[rows, W]`; `[W, rows]` with `axis=0`.
    """
    rows, count = codes.shape
    width = words_for(count, bits)
    units = -(-width * 4 // bits)  # eight codes each; enough to fill the words
    padded = np.zeros((rows, units, 8), np.uint8)
    padded.reshape(rows, units * 8)[:, :count] = codes
    raw = np.zeros((rows, units, bits), np.uint8)
    for index in range(8):
        at, shift = divmod(index * bits, 8)
        raw[:, :, at] |= padded[:, :, index] << np.uint8(shift)
        if shift + bits > 8:
            raw[:, :, at + 1] |= padded[:, :, index] >> np.uint8(8 - shift)
    filled = np.ascontiguousarray(raw.reshape(rows, units * bits)[:, : width * 4])
    words = filled.view("<i4")
    return np.ascontiguousarray(words.T if axis == 0 else words, np.int32)


def unpack_awq(words: npt.NDArray[Any], start: int, stop: int) -> CodesArray:
    """Return columns `start` to `stop` of words in AWQ's order, transposed.

    ::

        bits of a word    0-3  4-7  8-11  12-15  16-19  20-23  24-27  28-31
        column, of eight   0    2    4     6      1      3      5      7

    Args:
        words: int32 `[rows, W]`, eight 4-bit codes of consecutive columns each.
        start: The first column wanted.
        stop: The first column that is not; at most `8 * W`.

    Returns:
        uint8 `[stop - start, rows]`.
    """
    low, high = start // 8, -(-stop // 8)
    packed = np.ascontiguousarray(words[:, low:high].T, "<i4").view("<u4")
    codes = np.empty((packed.shape[0], 8, packed.shape[1]), np.uint8)
    for nibble, column in enumerate(AWQ_ORDER):
        codes[:, column] = (packed >> np.uint32(4 * nibble)) & np.uint32(15)
    return codes.reshape(-1, packed.shape[1])[start - low * 8 : stop - low * 8]


def pack_awq(codes: npt.NDArray[Any]) -> Words:
    """Return words in AWQ's order, the inverse of `unpack_awq`.

    Args:
        codes: `[columns, rows]`, each in 0 .. 15; the number of columns a multiple of eight.

    Returns:
        int32 `[rows, columns // 8]`.
    """
    columns, rows = codes.shape
    eights = codes.reshape(columns // 8, 8, rows)
    words = np.zeros((columns // 8, rows), np.uint32)
    for nibble, column in enumerate(AWQ_ORDER):
        words |= eights[:, column].astype(np.uint32) << np.uint32(4 * nibble)
    return np.ascontiguousarray(words.T).view(np.int32)
