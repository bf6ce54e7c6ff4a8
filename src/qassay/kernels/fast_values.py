"""Numba kernels over rows of plain floats, one for each width of the stored bits.

All arithmetic stays in the width of the float: Numba widens mixed integers to 64 bits, and then
a register holds four values where it could hold sixteen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.kernels.jit import kernel
from qassay.kernels.reference import ValueScan


def _make(kind: type[np.unsignedinteger[Any]], segment: int) -> Callable[..., Any]:
    """Compile the kernel for one width; `segment` values at most are counted in that width."""

    def scan_rows(bits, columns, mask, normal, small, totals, dead):  # type: ignore[no-untyped-def]
        one = kind(1)
        largest = kind(0)
        smallest = kind(0) - one  # the largest value, by wrapping
        dead_rows = 0
        for row in range(bits.size // columns):
            top = kind(0)
            for start in range(row * columns, (row + 1) * columns, segment):
                zeros = kind(0)
                below = kind(0)
                lost = kind(0)
                for at in range(start, min(start + segment, (row + 1) * columns)):
                    magnitude = kind(bits[at] & mask)
                    # Zero wraps to the largest value and so drops out of every "below".
                    less = kind(magnitude - one)
                    top = max(top, magnitude)
                    smallest = min(smallest, less)
                    zeros = kind(zeros + kind(magnitude == kind(0)))
                    below = kind(below + kind(less < normal))
                    lost = kind(lost + kind(less < small))
                totals[0] += np.int64(zeros)
                totals[1] += np.int64(below)
                totals[2] += np.int64(lost)
            largest = max(largest, top)
            if top == kind(0):
                dead[dead_rows] = row
                dead_rows += 1
        return largest, smallest, dead_rows

    scan_rows.__name__ = f"scan_rows_{kind.__name__}"
    return kernel(scan_rows)


_KERNELS = {
    np.dtype(kind): _make(kind, segment)
    for kind, segment in ((np.uint8, 128), (np.uint16, 16384), (np.uint32, 16384), (np.uint64, 16384))
}


def scan_values(
    bits: npt.NDArray[np.unsignedinteger[Any]], columns: int, least_normal: int, small: int
) -> ValueScan:
    """Scan float bit patterns; the same result as `reference.scan_values`."""
    kind = bits.dtype.type
    mask = kind((1 << (8 * bits.itemsize - 1)) - 1)
    normal = kind(least_normal - 1)
    totals = np.zeros(3, np.int64)
    dead = np.empty(bits.size // columns, np.int64)
    largest, smallest, dead_rows = _KERNELS[bits.dtype](
        bits, columns, mask, normal, kind(small), totals, dead
    )
    wrapped = int(smallest) + 1
    return ValueScan(
        largest=int(largest),
        smallest=wrapped if wrapped <= int(mask) else 0,
        zero=int(totals[0]),
        subnormal=int(totals[1]),
        small=int(totals[2]),
        dead_rows=dead[:dead_rows].copy(),
    )
