"""Numba kernels that take codes out of blocks: to count them, and for the decoder.

The pieces of a run of integers mostly lie in *strips*: consecutive bytes, all shifted and masked
alike, that belong to consecutive integers. A strip is a loop that LLVM vectorises.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, per_encoding
from qassay.encodings.bits import Bits
from qassay.kernels.jit import helper, kernel

Strips = npt.NDArray[np.int64]


def strips_of(bits: Bits) -> Strips:
    """Return a run's strips: int64 `[n, 6]` of byte, shift, mask, up, first integer, length.

    Strips are ordered so that the lowest pieces of all integers come first.
    """
    found: list[list[int]] = []
    for plane in bits.planes:
        parts = np.stack([plane.byte, plane.shift, plane.mask, plane.up], axis=1)
        for element, part in enumerate(parts.tolist()):
            last = found[-1] if found else None
            if (
                last is not None
                and last[4] + last[5] == element
                and part == [last[0] + last[5], *last[1:4]]
            ):
                last[5] += 1
            else:
                found.append([*part, element, 1])
    return np.array(found, np.int64).reshape(-1, 6)


@helper
def unpack(raw, at, strips, codes):
    """Write the integers of the block at byte `at` to `codes`, uint8 `[count]`."""
    codes[:] = 0
    for strip in range(strips.shape[0]):
        byte = at + strips[strip, 0]
        shift = np.uint8(strips[strip, 1])
        mask = np.uint8(strips[strip, 2])
        up = np.uint8(strips[strip, 3])
        first = strips[strip, 4]
        for step in range(strips[strip, 5]):
            piece = np.uint8(np.uint8(raw[byte + step] >> shift) & mask)
            codes[first + step] |= np.uint8(piece << up)


@kernel
def _count_bytes(raw, n, stride, offset, length, counts):
    # Four tables, so that equal neighbours do not wait for one another's store.
    even = length - length % 4
    for block in range(n):
        at = block * stride + offset
        for byte in range(0, even, 4):
            counts[0, raw[at + byte]] += np.uint32(1)
            counts[1, raw[at + byte + 1]] += np.uint32(1)
            counts[2, raw[at + byte + 2]] += np.uint32(1)
            counts[3, raw[at + byte + 3]] += np.uint32(1)
        for byte in range(even, length):
            counts[0, raw[at + byte]] += np.uint32(1)


@kernel
def _count_codes(raw, n, stride, strips, codes, counts):
    for block in range(n):
        unpack(raw, block * stride, strips, codes)
        for at in range(0, codes.size, 4):
            counts[0, codes[at]] += np.uint32(1)
            counts[1, codes[at + 1]] += np.uint32(1)
            counts[2, codes[at + 2]] += np.uint32(1)
            counts[3, codes[at + 3]] += np.uint32(1)


@kernel
def _unpack_all(raw, n, stride, strips, codes):
    for block in range(n):
        unpack(raw, block * stride, strips, codes[block])


def unpack_codes(blocks: Bytes, encoding: type[BlockEncoding]) -> npt.NDArray[np.int16]:
    """Return the stored codes; the same result as `reference.unpack_codes`."""
    bits = encoding.code_bits()
    codes = np.empty((blocks.shape[0], bits.count), np.uint8)
    strips = _code_strips(encoding)
    _unpack_all(blocks.reshape(-1), blocks.shape[0], encoding.block_bytes, strips, codes)
    return (codes.view(np.int8) if bits.signed else codes).astype(np.int16)


@per_encoding
def _code_strips(encoding: type[BlockEncoding]) -> Strips:
    return strips_of(encoding.code_bits())


def count_codes(blocks: Bytes, encoding: type[BlockEncoding]) -> npt.NDArray[np.int64]:
    """Count stored codes; the same result as `reference.count_codes`."""
    bits = encoding.code_bits()
    low, high = encoding.codes.range(bits)
    flat, n, stride = blocks.reshape(-1), blocks.shape[0], encoding.block_bytes
    counts = np.zeros((4, 256), np.uint32)
    if len(encoding.codes.runs) > 1:
        codes = np.empty(bits.count, np.uint8)
        _count_codes(flat, n, stride, _code_strips(encoding), codes, counts)
        return counts.sum(axis=0, dtype=np.int64)[: high + 1]
    field = next(f for f in encoding.bits_fields.values() if encoding.codes.runs[0] in f.runs)
    _count_bytes(flat, n, stride, field.offset, field.nbytes, counts)
    per_byte = counts.sum(axis=0, dtype=np.int64)
    if bits.signed:
        return np.roll(per_byte, 128)
    total = np.zeros(high - low + 1, np.int64)
    for shift in range(0, 8, bits.width):
        np.add.at(total, (np.arange(256) >> shift) & high, per_byte)
    return total
