"""Numba kernels over the codes of layers; see `layer_reference`.

A segment that is blank or full is rare, and its first sixteen codes nearly always rule it out.
Where a segment lies in one row, its first eight bytes are looked at. Where codes of one column
lie side by side, a tile of channels is carried through the first sixteen columns of a group, and
only a tile in which some channel is left goes through the rest: so the loop over channels
vectorises, and a matrix of zeros is still read in the order of the file.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.kernels.jit import helper, kernel
from qassay.kernels.loads import cast, load_u64

Index = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]

_TILE = 512
_SEGMENTS = 256
"""Segments of floats whose first words are looked at together."""
_HEAD = 16
"""Columns after which a tile is given up."""
_BLANK, _FULL, _NAN = np.uint8(1), np.uint8(2), np.uint8(4)


@helper
def _alike(word, one):
    """Return bits 0 to 2 of each nibble set where two neighbouring bits of it differ."""
    return cast((word ^ (word >> one)) & cast(0x77777777, one), one)


@helper
def _words_down(words, row, stop, left, right, first, unlike, ends):
    """Carry the channels `left` to `right` through the words of some rows."""
    one = np.uint32(1)
    for at in range(row, stop):
        for n in range(right - left):
            word = words[at, left + n]
            unlike[n] = cast(unlike[n] | (word ^ first[n]), one)
            ends[n] = cast(ends[n] | _alike(word, one), one)


@helper
def _nibbles_down(words, columns, begin, stop, left, right, first, unlike, ends):
    """Carry the channels `left` to `right` through some columns."""
    one = np.uint32(1)
    for at in range(begin, stop):
        row = columns[at] >> 3
        shift = np.uint32((columns[at] & 7) * 4)
        for n in range(right - left):
            code = cast((words[row, left + n] >> shift) & cast(15, one), one)
            unlike[n] = cast(unlike[n] | (code ^ first[n]), one)
            ends[n] = cast(ends[n] | _alike(code, one), one)


@helper
def _any_zero(one, other, length):
    found = False
    for n in range(length):
        found |= (one[n] == 0) | (other[n] == 0)
    return found


@kernel
def _columns(words, columns, starts, natural, first, unlike, ends, found):
    groups, width = starts.size - 1, words.shape[1]
    one = np.uint32(1)
    for group in range(groups):
        begin, stop = starts[group], starts[group + 1]
        if begin == stop:
            continue
        head = min(stop, begin + _HEAD)
        for left in range(0, width, _TILE):
            right = min(left + _TILE, width)
            length = right - left
            row, shift = columns[begin] >> 3, np.uint32((columns[begin] & 7) * 4)
            for n in range(length):
                word = words[row, left + n]
                code = cast((word >> shift) & cast(15, one), one)
                # Of whole words, what all eight nibbles would be were they like the first.
                first[n] = cast(code * cast(0x11111111, one), one) if natural else code
                unlike[n] = cast(0, one)
                ends[n] = cast(0, one)
            if natural:
                _words_down(
                    words, row, columns[head - 1] // 8 + 1, left, right, first, unlike, ends
                )
            else:
                _nibbles_down(words, columns, begin, head, left, right, first, unlike, ends)
            if not _any_zero(unlike, ends, length):
                continue
            if head < stop:
                if natural:
                    rest, last = columns[head] // 8, columns[stop - 1] // 8 + 1
                    _words_down(words, rest, last, left, right, first, unlike, ends)
                else:
                    _nibbles_down(words, columns, head, stop, left, right, first, unlike, ends)
            for n in range(length):
                flags = _BLANK if unlike[n] == 0 else np.uint8(0)
                if ends[n] == 0:
                    flags |= _FULL
                if flags:
                    found[group * width + left + n] = flags


def scan_columns(words: Words, columns: Index, starts: Index, natural: bool) -> Bytes:
    """Return the flags of segments packed along K, as `layer_reference.scan_columns` does."""
    found = np.zeros((starts.size - 1) * words.shape[1], np.uint8)
    first, unlike, ends = np.empty((3, _TILE), np.uint32)
    _columns(words, columns, starts, natural, first, unlike, ends, found)
    return found


@helper
def _some_nibble_is_zero(unlike, ends, length):
    one = np.uint32(1)
    every = cast(0x11111111, one)
    for n in range(length):
        every = cast(every & _occupied(unlike[n], one) & _occupied(ends[n], one), one)
    return every != cast(0x11111111, one)


@helper
def _occupied(word, one):
    """Return the lowest bit of each nibble set where any of its bits is."""
    pairs = cast(word | (word >> cast(2, one)), one)
    return cast((pairs | (pairs >> one)) & cast(0x11111111, one), one)


@kernel
def _lanes(words, starts, lanes, first, unlike, ends, found):
    groups, width = starts.size - 1, words.shape[1]
    one = np.uint32(1)
    for group in range(groups):
        begin, stop = starts[group], starts[group + 1]
        if begin == stop:
            continue
        head = min(stop, begin + _HEAD)
        for left in range(0, width, _TILE):
            right = min(left + _TILE, width)
            length = right - left
            for n in range(length):
                first[n] = words[begin, left + n]
                unlike[n] = cast(0, one)
                ends[n] = cast(0, one)
            _words_down(words, begin, head, left, right, first, unlike, ends)
            if not _some_nibble_is_zero(unlike, ends, length):
                continue
            _words_down(words, head, stop, left, right, first, unlike, ends)
            for n in range(length):
                for lane in range(8):
                    shift = np.uint32(4 * lane)
                    flags = np.uint8(0)
                    if cast((unlike[n] >> shift) & cast(15, one), one) == 0:
                        flags |= _BLANK
                    if cast((ends[n] >> shift) & cast(15, one), one) == 0:
                        flags |= _FULL
                    if flags:
                        found[(group * width + left + n) * 8 + lanes[lane]] = flags


def scan_lanes(words: Words, starts: Index, lanes: Index) -> Bytes:
    """Return the flags of segments packed along N, as `layer_reference.scan_lanes` does."""
    found = np.zeros((starts.size - 1) * words.shape[1] * 8, np.uint8)
    first, unlike, ends = np.empty((3, _TILE), np.uint32)
    _lanes(words, starts, lanes, first, unlike, ends, found)
    return found


@helper
def _worth_a_look(raw, at, floats):
    """Tell whether the first 64-bit word of a segment leaves anything possible."""
    wide = np.uint64(0)
    low3 = cast(0x7777777777777777, wide)
    word = load_u64(raw, at)
    if floats:
        sizes = cast(word & low3, wide)
        return (sizes == wide) | (sizes == low3)
    turned = cast((word << np.uint64(4)) | (word >> np.uint64(60)), wide)
    alike = cast((word ^ (word >> np.uint64(1))) & low3, wide) == wide
    return (word == turned) | alike


@helper
def _wide_flags(raw, at, length, floats):
    """Return the flags of a segment of whole 64-bit words."""
    wide = np.uint64(0)
    low3 = cast(0x7777777777777777, wide)
    word = load_u64(raw, at)
    first = word
    blank = full = True
    for byte in range(at, at + length, 8):
        word = load_u64(raw, byte)
        if floats:
            sizes = cast(word & low3, wide)
            blank &= sizes == wide
            full &= sizes == low3
        else:
            turned = cast((word << np.uint64(4)) | (word >> np.uint64(60)), wide)
            blank &= (word == turned) & (word == first)
            full &= cast((word ^ (word >> np.uint64(1))) & low3, wide) == wide
        if not (blank or full):
            break
    return (_BLANK if blank else np.uint8(0)) | (_FULL if full else np.uint8(0))


@helper
def _narrow_flags(raw, at, length, floats):
    """Return the flags of a segment of any length."""
    low = np.uint8(raw[at] & 15)
    first = np.uint8(0) if floats else np.uint8(low * 17)
    mask = np.uint8(0x77) if floats else np.uint8(0xFF)
    blank = full = True
    for byte in range(at, at + length):
        value = raw[byte]
        blank &= np.uint8(value & mask) == first
        if floats:
            full &= np.uint8(value & 0x77) == np.uint8(0x77)
        else:
            full &= np.uint8((value ^ (value >> 1)) & 0x77) == np.uint8(0)
        if not (blank or full):
            break
    return (_BLANK if blank else np.uint8(0)) | (_FULL if full else np.uint8(0))


@helper
def _any_float_word(raw, at, count, stride):
    """Tell whether any of the first words of segments of floats leaves anything possible."""
    wide = np.uint64(0)
    low3 = cast(0x7777777777777777, wide)
    any_zero = any_full = False
    for step in range(count):
        sizes = cast(load_u64(raw, at + step * stride) & low3, wide)
        any_zero |= sizes == wide
        any_full |= sizes == low3
    return any_zero | any_full


@kernel
def _floats(raw, length, found):
    """Flag segments of whole words of floats that follow one another without a gap."""
    segments = raw.size // length
    for first in range(0, segments, _SEGMENTS):
        count = min(_SEGMENTS, segments - first)
        if _any_float_word(raw, first * length, count, length):
            for segment in range(first, first + count):
                flags = _wide_flags(raw, segment * length, length, True)
                if flags:
                    found[segment] = flags


@kernel
def _nibbles(raw, width, length, floats, found):
    segment = 0
    for row in range(raw.size // width):
        at = row * width
        end = at + width
        while at < end:
            size = min(length, end - at)
            if size & 7:
                flags = _narrow_flags(raw, at, size, floats)
            elif _worth_a_look(raw, at, floats):
                flags = _wide_flags(raw, at, size, floats)
            else:
                flags = np.uint8(0)
            if flags:
                found[segment] = flags
            segment += 1
            at += size


def scan_nibbles(rows: Bytes, length: int, floats: bool) -> Bytes:
    """Return the flags of segments of packed rows, as `layer_reference.scan_nibbles` does."""
    found = np.zeros(rows.shape[0] * -(-rows.shape[1] // length), np.uint8)
    if floats and length % 8 == 0 and rows.shape[1] % length == 0:
        _floats(rows.reshape(-1), length, found)
    else:
        _nibbles(rows.reshape(-1), rows.shape[1], length, floats, found)
    return found


@helper
def _blank_bytes(raw, at, length):
    for byte in range(at + 1, at + length):  # noqa: SIM110 - Numba has no generators here
        if raw[byte] != raw[at]:
            return False
    return True


@helper
def _full_bytes(raw, at, length):
    for byte in range(at, at + length):  # noqa: SIM110
        if raw[byte] < 0x7F or raw[byte] > 0x81:
            return False
    return True


@helper
def _sizes(segment, one):
    most = cast(0, one)
    least = cast(0xFF, one)
    for byte in range(segment.size):
        size = cast(segment[byte] & cast(0x7F, one), one)
        most = max(most, size)
        least = min(least, size)
    return most, least


@kernel
def _bytes(raw, width, length, floats, top, nan, found):
    segment = 0
    for row in range(raw.size // width):
        at = row * width
        end = at + width
        while at < end:
            size = min(length, end - at)
            flags = np.uint8(0)
            if floats:
                most, least = _sizes(raw[at : at + size], np.uint8(1))
                if most == 0:
                    flags |= _BLANK
                if most == top and least == top:
                    flags |= _FULL
                if most >= nan:
                    flags |= _NAN
            else:
                if _blank_bytes(raw, at, size):
                    flags |= _BLANK
                if _full_bytes(raw, at, size):
                    flags |= _FULL
            if flags:
                found[segment] = flags
            segment += 1
            at += size


def scan_bytes(rows: Bytes, length: int, floats: bool, top: int, nan: int) -> Bytes:
    """Return the flags of segments of rows of bytes, as `layer_reference.scan_bytes` does."""
    found = np.zeros(rows.shape[0] * -(-rows.shape[1] // length), np.uint8)
    flat = rows.reshape(-1)
    _bytes(flat, rows.shape[1], length, floats, np.uint8(top), np.uint8(nan), found)
    return found


@kernel
def _count_bytes(raw, counts):
    # Eight bytes a load, and four tables, so that equal neighbours do not wait for one another.
    one, byte = np.uint32(1), np.uint64(255)
    even = raw.size - raw.size % 8
    for at in range(0, even, 8):
        word = load_u64(raw, at)
        counts[0, word & byte] += one
        counts[1, (word >> np.uint64(8)) & byte] += one
        counts[2, (word >> np.uint64(16)) & byte] += one
        counts[3, (word >> np.uint64(24)) & byte] += one
        counts[0, (word >> np.uint64(32)) & byte] += one
        counts[1, (word >> np.uint64(40)) & byte] += one
        counts[2, (word >> np.uint64(48)) & byte] += one
        counts[3, word >> np.uint64(56)] += one
    for at in range(even, raw.size):
        counts[0, raw[at]] += np.uint32(1)


@kernel
def _count_words(raw, counts):
    for at in range(raw.size):
        counts[raw[at]] += np.uint32(1)


_MOST = 1 << 31


def count_bytes(raw: Bytes) -> Index:
    """Return how often each byte occurs, as `layer_reference.count_bytes` does."""
    total = np.zeros(256, np.int64)
    for begin in range(0, raw.size, _MOST):  # counts have 32 bits
        counts = np.zeros((4, 256), np.uint32)
        _count_bytes(raw[begin : begin + _MOST], counts)
        total += counts.sum(axis=0, dtype=np.int64)
    return total


def count_words(raw: npt.NDArray[np.uint16]) -> Index:
    """Return how often each 16-bit pattern occurs, as `layer_reference.count_words` does."""
    total = np.zeros(1 << 16, np.int64)
    for begin in range(0, raw.size, _MOST):
        counts = np.zeros(1 << 16, np.uint32)
        _count_words(raw[begin : begin + _MOST], counts)
        total += counts
    return total
