"""Compiling with Numba, cached where a cache can be kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

F = TypeVar("F", bound=Callable[..., Any])

uncached: list[str] = []
"""Names of kernels that could not be cached: no cache folder is writable."""


def helper(function: F) -> F:
    """Compile a function that only kernels call; it is kept inside their cached code.

    Numba does not notice when a helper in another file changes: delete `__pycache__` then.
    """
    return numba.njit(nogil=True, error_model="numpy")(function)


def kernel(function: F) -> F:
    """Compile `function` without the GIL and with strict IEEE arithmetic.

    Numba refuses `cache=True` at decoration time when it finds no folder to write to (a
    read-only installation with an unwritable home): then the kernel is compiled in every process.
    """
    try:
        compiled = numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:
        uncached.append(function.__name__)
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
