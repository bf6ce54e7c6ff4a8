"""bfloat16: the upper half of a float32, as bit patterns and as values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError

Floats = npt.NDArray[np.float32]
Patterns = npt.NDArray[np.uint16]


@np.errstate(over="ignore")  # beyond float32 is infinity
def bf16_bits(values: npt.ArrayLike) -> Patterns:
    """Return the bf16 bit patterns nearest to float32 values, ties to even; NaN stays NaN.

    ::

        float32  s eeeeeeee mmmmmmm mmmmmmmmmmmmmmmm
                 |  kept            | rounded off: + 0x7fff + lowest kept bit, carry goes up
    """
    floats = np.asarray(values, np.float32)
    bits = floats.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    quiet = bits >> 16 | 0x40
    return np.asarray(np.where(np.isnan(floats), quiet, rounded), np.uint16)


def of_bf16(patterns: npt.NDArray[Any]) -> Floats:
    """Return what bf16 bit patterns (uint16, any shape) stand for, as float32.

    Raises:
        UsageError: The patterns are of another type.
    """
    if patterns.dtype != np.uint16:
        raise UsageError(
            "bf16 bit patterns of a wrong type", expected="uint16", found=str(patterns.dtype)
        )
    return (patterns.astype(np.uint32) << 16).view(np.float32)


def bf16(values: npt.ArrayLike) -> Floats:
    """Return float32 values rounded to the nearest bf16, ties to even."""
    return of_bf16(bf16_bits(values))
