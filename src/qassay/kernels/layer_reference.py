"""Kernels over the codes of layers in NumPy. These are the specification of the fast ones.

A *segment* is the run of one row's codes that share a scale. Of every segment the kernels say
whether all its codes are alike (or, of floats, all zero), whether all lie at the ends of their
range, and whether one is no number; they look at codes as stored and know nothing of scales.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes

Index = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

BLANK = np.uint8(1)
"""All codes of the segment are the same; of floats: all are zero, whatever their signs."""
FULL = np.uint8(2)
"""All codes of the segment lie at the ends of their range."""
NAN = np.uint8(4)
"""A code of the segment stands for NaN or infinity."""

ENDS = (0x7F, 0x80, 0x81)
"""The ends of 8-bit integers: 127, -128, and -127, at which symmetric quantizers stop."""

_AT_ONCE = 1 << 20


def _flags(blank: npt.ArrayLike, full: npt.ArrayLike) -> Bytes:
    return np.asarray(np.asarray(blank) * BLANK | np.asarray(full) * FULL, np.uint8)


def _segments(rows: Bytes, length: int) -> Iterator[tuple[tuple[slice, slice], Bytes]]:
    """Yield segments `[rows, groups, bytes]` and where they belong, the short ones for themselves.

    Few at a time: the memory that this takes does not depend on the number of rows.
    """
    whole = rows.shape[1] // length
    step = max(1, _AT_ONCE // rows.shape[1])
    for begin in range(0, rows.shape[0], step):
        some = rows[begin : begin + step]
        here = slice(begin, begin + some.shape[0])
        if whole:
            cut = some[:, : whole * length]
            yield (here, slice(0, whole)), cut.reshape(some.shape[0], whole, length)
        if whole * length < rows.shape[1]:
            yield (here, slice(whole, whole + 1)), some[:, None, whole * length :]


def scan_columns(words: Words, columns: Index, starts: Index, natural: bool) -> Bytes:
    """Return the flags of segments packed along K, uint8 `[groups * N]`.

    Args:
        words: `[K / 8, N]`; nibble `i` of word `(r, n)` is column `8 r + i` of row `n`.
        columns: The columns of group 0, then those of group 1, and so on.
        starts: Where in `columns` each group begins, and the end, `[groups + 1]`.
        natural: Whether `columns` counts up by one from a multiple of 8, and every group begins
            at a multiple of 8.
    """
    del natural
    found = np.zeros((starts.size - 1, words.shape[1]), np.uint8)
    step = max(1, _AT_ONCE // max(1, words.shape[1]))
    for group in range(starts.size - 1):
        mine = columns[starts[group] : starts[group + 1]]
        if mine.size == 0:
            continue
        first = (words[mine[0] // 8] >> np.uint32(mine[0] % 8 * 4)) & 15
        blank = full = np.ones(words.shape[1], bool)
        for begin in range(0, mine.size, step):
            some = mine[begin : begin + step]
            codes = (words[some // 8] >> (some % 8 * 4).astype(np.uint32)[:, None]) & 15
            blank = blank & (codes == first).all(axis=0)
            full = full & ((codes == 0) | (codes == 15)).all(axis=0)
        found[group] = _flags(blank, full)
    return found.reshape(-1)


def scan_lanes(words: Words, starts: Index, lanes: Index) -> Bytes:
    """Return the flags of segments packed along N, uint8 `[groups * N]`.

    Args:
        words: `[K, N / 8]`; nibble `i` of word `(k, w)` is channel `8 w + lanes[i]`.
        starts: The column at which each group begins, and the end, `[groups + 1]`.
        lanes: `[8]`.
    """
    found = np.zeros((starts.size - 1, words.shape[1], 8), np.uint8)
    step = max(1, _AT_ONCE // max(1, words.shape[1]))
    for group in range(starts.size - 1):
        if starts[group] == starts[group + 1]:
            continue
        for nibble in range(8):
            shift = np.uint32(4 * nibble)
            first = (words[starts[group]] >> shift) & 15
            blank = full = np.ones(words.shape[1], bool)
            for begin in range(starts[group], starts[group + 1], step):
                codes = (words[begin : min(begin + step, starts[group + 1])] >> shift) & 15
                blank = blank & (codes == first).all(axis=0)
                full = full & ((codes == 0) | (codes == 15)).all(axis=0)
            found[group, :, lanes[nibble]] = _flags(blank, full)
    return found.reshape(-1)


def scan_nibbles(rows: Bytes, length: int, floats: bool) -> Bytes:
    """Return the flags of segments of packed rows, uint8 `[rows * groups]`.

    Args:
        rows: `[rows, K / 2]`.
        length: Bytes a segment; the last of a row may be shorter.
        floats: Whether codes are E2M1: a sign, and a magnitude of three bits.
    """
    found = np.zeros((rows.shape[0], -(-rows.shape[1] // length)), np.uint8)
    for place, stored in _segments(rows, length):
        if floats:
            sizes = stored & 0x77
            blank, full = ~sizes.any(axis=2), (sizes == 0x77).all(axis=2)
        else:
            first = stored[:, :, :1]
            blank = ((stored == first) & (stored >> 4 == first & 15)).all(axis=2)
            full = ((stored ^ (stored >> 1)) & 0x77 == 0).all(axis=2)  # all bits of each alike
        found[place] = _flags(blank, full)
    return found.reshape(-1)


def scan_bytes(rows: Bytes, length: int, floats: bool, top: int, nan: int) -> Bytes:
    """Return the flags of segments of rows of bytes, uint8 `[rows * groups]`.

    Args:
        rows: `[rows, K]`.
        length: Bytes a segment; the last of a row may be shorter.
        floats: Whether codes are 8-bit floats, not integers in two's complement.
        top: The largest finite magnitude of such a float, as bits.
        nan: The smallest magnitude that is not finite, as bits.
    """
    found = np.zeros((rows.shape[0], -(-rows.shape[1] // length)), np.uint8)
    for place, codes in _segments(rows, length):
        if floats:
            sizes = codes & 0x7F
            found[place] = _flags(~sizes.any(axis=2), (sizes == top).all(axis=2))
            found[place] |= (sizes >= nan).any(axis=2) * NAN
        else:
            blank = (codes == codes[:, :, :1]).all(axis=2)
            found[place] = _flags(blank, np.isin(codes, ENDS).all(axis=2))
    return found.reshape(-1)


def count_bytes(raw: Bytes) -> Index:
    """Return how often each byte occurs, int64 `[256]`."""
    counts = np.zeros(256, np.int64)
    for begin in range(0, raw.size, _AT_ONCE):  # bincount widens what it counts eightfold
        counts += np.bincount(raw[begin : begin + _AT_ONCE], minlength=256)
    return counts


def count_words(raw: npt.NDArray[np.uint16]) -> Index:
    """Return how often each 16-bit pattern occurs, int64 `[65536]`."""
    counts = np.zeros(1 << 16, np.int64)
    for begin in range(0, raw.size, _AT_ONCE):
        counts += np.bincount(raw[begin : begin + _AT_ONCE], minlength=1 << 16)
    return counts
