"""Numba kernels over rows of plain floats, one set for each width of the stored bits.

All arithmetic stays in the width of the float: Numba widens mixed integers to 64 bits, and then
a register holds four values where it could hold sixteen. Rows are cut into segments that stay in
the first-level cache, and each question is a loop of its own over the segment: LLVM vectorises a
loop with one or two reductions, and gives up on one with five.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qassay.kernels.jit import kernel
from qassay.kernels.reference import ValueScan

_SEGMENT_BYTES = 8192


class _Kernels(NamedTuple):
    scan: Callable[..., Any]
    locate: Callable[..., Any]
    segment: int


def _make(kind: type[np.unsignedinteger[Any]]) -> _Kernels:
    """Compile the kernels for one width.

    Counts inside a segment are kept in the width itself, so a segment has no more values than
    that can count.
    """
    width = np.dtype(kind).itemsize
    segment = min(_SEGMENT_BYTES // width, 128 if width == 1 else 1 << 15)

    @kernel
    def extremes(values, mask):  # type: ignore[no-untyped-def]
        one = kind(1)
        top = kind(0)
        low = kind(kind(0) - one)
        for at in range(values.size):
            magnitude = kind(values[at] & mask)
            # Zero wraps to the largest value and so drops out of the smallest.
            top = max(top, magnitude)
            low = min(low, kind(magnitude - one))
        return top, low

    @kernel
    def zeros(values, mask):  # type: ignore[no-untyped-def]
        count = kind(0)
        for at in range(values.size):
            count = kind(count + kind(kind(values[at] & mask) == kind(0)))
        return np.int64(count)

    @kernel
    def below(values, mask, limit):  # type: ignore[no-untyped-def]
        one = kind(1)
        count = kind(0)
        for at in range(values.size):
            count = kind(count + kind(kind(kind(values[at] & mask) - one) < limit))
        return np.int64(count)

    @kernel
    def scan(bits, columns, mask, normal, small, totals, dead, marks):  # type: ignore[no-untyped-def]
        largest = kind(0)
        smallest = kind(kind(0) - kind(1))
        dead_rows = 0
        number = 0
        for row in range(bits.size // columns):
            top = kind(0)
            last = (row + 1) * columns
            for start in range(row * columns, last, segment):
                values = bits[start : min(start + segment, last)]
                high, low = extremes(values, mask)
                top = max(top, high)
                smallest = min(smallest, low)
                totals[0] += zeros(values, mask)
                if low < normal:
                    totals[1] += below(values, mask, normal)
                if low < small:
                    totals[2] += below(values, mask, small)
                    marks[number] = 1
                number += 1
            largest = max(largest, top)
            if top == kind(0):
                dead[dead_rows] = row
                dead_rows += 1
        return largest, smallest, dead_rows

    @kernel
    def locate(bits, columns, mask, small, marks, found):  # type: ignore[no-untyped-def]
        one = kind(1)
        count = 0
        number = 0
        for row in range(bits.size // columns):
            last = (row + 1) * columns
            for start in range(row * columns, last, segment):
                if marks[number]:
                    for at in range(start, min(start + segment, last)):
                        if kind(kind(bits[at] & mask) - one) < small:
                            found[count] = at
                            count += 1
                number += 1

    return _Kernels(scan, locate, segment)


_KERNELS = {np.dtype(kind): _make(kind) for kind in (np.uint8, np.uint16, np.uint32, np.uint64)}


def scan_values(
    bits: npt.NDArray[np.unsignedinteger[Any]], columns: int, least_normal: int, small: int
) -> ValueScan:
    """Scan float bit patterns; the same result as `reference.scan_values`."""
    kernels = _KERNELS[bits.dtype]
    kind = bits.dtype.type
    mask = kind((1 << (8 * bits.itemsize - 1)) - 1)
    rows = bits.size // columns
    totals = np.zeros(3, np.int64)
    dead = np.empty(rows, np.int64)
    marks = np.zeros(rows * -(-columns // kernels.segment), np.uint8)
    largest, smallest, dead_rows = kernels.scan(
        bits, columns, mask, kind(least_normal - 1), kind(small), totals, dead, marks
    )
    found = np.empty(int(totals[2]), np.int64)
    if found.size:
        kernels.locate(bits, columns, mask, kind(small), marks, found)
    wrapped = int(smallest) + 1
    return ValueScan(
        largest=int(largest),
        smallest=wrapped if wrapped <= int(mask) else 0,
        zero=int(totals[0]),
        subnormal=int(totals[1]),
        small_at=found,
        dead_rows=dead[:dead_rows].copy(),
    )
