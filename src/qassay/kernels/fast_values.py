"""Numba kernels over rows of plain floats, for stored bits of any width.

All arithmetic stays in the width of the float: Numba widens mixed integers to 64 bits, and then
a register holds four values where it could hold sixteen. Rows are cut into segments that stay in
the first-level cache, and each question is a loop of its own over the segment: LLVM vectorises a
loop with one or two reductions, and gives up on one with five.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.kernels.jit import helper, kernel
from qassay.kernels.loads import cast
from qassay.kernels.reference import PIECE, ValueScan

_SEGMENT_BYTES = 8192


@helper
def _extremes(values, mask, one):
    top = cast(0, one)
    low = cast(top - one, one)
    for at in range(values.size):
        magnitude = cast(values[at] & mask, one)
        # Zero wraps to the largest value and so drops out of the smallest.
        top = max(top, magnitude)
        low = min(low, cast(magnitude - one, one))
    return top, low


@helper
def _zeros(values, mask, one):
    count = cast(0, one)
    zero = cast(0, one)
    for at in range(values.size):
        count = cast(count + cast(cast(values[at] & mask, one) == zero, one), one)
    return np.int64(count)


@helper
def _below(values, mask, limit, one):
    count = cast(0, one)
    for at in range(values.size):
        less = cast(cast(values[at] & mask, one) - one, one)
        count = cast(count + cast(less < limit, one), one)
    return np.int64(count)


@kernel
def _scan(bits, columns, segment, one, mask, normal, small, totals, dead, marks):  # fmt: skip
    largest = cast(0, one)
    smallest = cast(largest - one, one)
    dead_rows = 0
    number = 0
    for row in range(bits.size // columns):
        top = cast(0, one)
        last = (row + 1) * columns
        for start in range(row * columns, last, segment):
            values = bits[start : min(start + segment, last)]
            high, low = _extremes(values, mask, one)
            top = max(top, high)
            smallest = min(smallest, low)
            totals[0] += _zeros(values, mask, one)
            if low < normal:
                totals[1] += _below(values, mask, normal, one)
            if low < small:
                totals[2] += _below(values, mask, small, one)
                marks[number] = 1
            number += 1
        largest = max(largest, top)
        if top == cast(0, one):
            dead[dead_rows] = row
            dead_rows += 1
    return largest, smallest, dead_rows


@kernel
def _locate(bits, columns, segment, first, one, mask, small, marks, found):
    """Fill `found` from segment `first` on; return its size and the segment to go on with."""
    count = 0
    per_row = -(-columns // segment)
    for number in range(first, marks.size):
        if marks[number]:
            if count + segment > found.size:
                return count, number
            row = number // per_row
            start = row * columns + number % per_row * segment
            for at in range(start, min(start + segment, (row + 1) * columns)):
                if cast(cast(bits[at] & mask, one) - one, one) < small:
                    found[count] = at
                    count += 1
    return count, marks.size


def _segment(bits: npt.NDArray[np.unsignedinteger[Any]]) -> int:
    # Counts inside a segment are kept in the float's own width, so it may not count further.
    return min(_SEGMENT_BYTES // bits.itemsize, 1 << (8 * bits.itemsize - 1))


def locate_small(
    bits: npt.NDArray[np.unsignedinteger[Any]], columns: int, small: int, scan: ValueScan
) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the indices of small values, as `reference.locate_small` does all in all."""
    kind = bits.dtype.type
    one, mask = kind(1), kind((1 << (8 * bits.itemsize - 1)) - 1)
    segment, number = _segment(bits), 0
    found = np.empty(PIECE, np.int64)
    while number < scan.marks.size:
        count, number = _locate(
            bits, columns, segment, number, one, mask, kind(small), scan.marks, found
        )
        yield found[:count].copy()


def value_scan(
    largest: int,
    smallest: int,
    dead_rows: int,
    totals: npt.NDArray[np.int64],
    dead: npt.NDArray[np.int64],
    marks: npt.NDArray[np.uint8],
    mask: int,
) -> ValueScan:
    """Return what a kernel found; `smallest` is less by one, and zero has wrapped."""
    wrapped = int(smallest) + 1
    return ValueScan(
        largest=int(largest),
        smallest=wrapped if wrapped <= mask else 0,
        zero=int(totals[0]),
        subnormal=int(totals[1]),
        small=int(totals[2]),
        dead_rows=dead[:dead_rows].copy(),
        marks=marks,
    )


def scan_values(
    bits: npt.NDArray[np.unsignedinteger[Any]], columns: int, least_normal: int, small: int
) -> ValueScan:
    """Scan float bit patterns; the same result as `reference.scan_values`."""
    kind = bits.dtype.type
    one, mask = kind(1), kind((1 << (8 * bits.itemsize - 1)) - 1)
    segment = _segment(bits)
    rows = bits.size // columns
    totals = np.zeros(3, np.int64)
    dead = np.empty(rows, np.int64)
    marks = np.zeros(rows * -(-columns // segment), np.uint8)
    largest, smallest, dead_rows = _scan(
        bits, columns, segment, one, mask, kind(least_normal - 1), kind(small), totals, dead, marks
    )
    return value_scan(largest, smallest, dead_rows, totals, dead, marks, int(mask))
