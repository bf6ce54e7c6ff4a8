"""The preflight's pass over floats in NumPy: the specification of `preflight_fast`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.kernels.reference import ValueScan, scan_values

RUN = 32
"""Weights that the pass summarises together: the shortest block there is."""

Patterns = npt.NDArray[np.unsignedinteger[Any]]


def runs_a_row(columns: int) -> int:
    """Return how many runs a row (or a part of one) of `columns` weights has."""
    return -(-columns // RUN)


def run_extremes(bits: Patterns, columns: int) -> Patterns:
    """Return the largest magnitude of each run of `RUN` weights, as a bit pattern without sign.

    Patterns of floats without their sign are in the order of the magnitudes, infinity above all
    numbers and NaN above that.

    Args:
        bits: Float bit patterns `[rows * columns]`.
        columns: Weights a row; the last run of a row may be shorter.
    """
    kind = bits.dtype.type
    magnitude = (bits & kind((1 << (8 * bits.itemsize - 1)) - 1)).reshape(-1, columns)
    short = -columns % RUN
    if short:
        magnitude = np.pad(magnitude, ((0, 0), (0, short)))
    return magnitude.reshape(-1, RUN).max(axis=1)


def scan_runs(
    bits: Patterns, columns: int, least_normal: int, small: int, found: Patterns
) -> ValueScan:
    """Scan float bit patterns as `scan_values` does, and fill `found` with `run_extremes`."""
    found[:] = run_extremes(bits, columns)
    return scan_values(bits, columns, least_normal, small)
