"""Compiling with Numba, cached where a cache can be kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import numba
from numba.core.runtime import rtsys

F = TypeVar("F", bound=Callable[..., Any])

uncached: list[str] = []
"""Names of kernels that could not be cached: no cache folder is writable."""


class _Tolerant:
    """Numba's cache of one function, in which a damaged file counts as a missing one.

    Numba lets what `pickle` raises on such a file end the call. A write that fails (a disk that is
    full) is no reason to end it either.
    """

    def __init__(self, cache: Any, *, counting: bool) -> None:
        self._cache = cache
        self._counting = counting

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def load_overload(self, signature: Any, target: Any) -> Any:
        """Return the compiled code that is kept, None where there is none that can be read."""
        try:
            return _load(self._cache, signature, target, counting=self._counting)
        except Exception:  # noqa: BLE001 - damaged data makes pickle raise anything
            with contextlib.suppress(Exception):
                self._cache.flush()
            return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Keep compiled code."""
        with contextlib.suppress(Exception):
            self._cache.save_overload(signature, data)


def _load(cache: Any, signature: Any, target: Any, *, counting: bool) -> Any:
    """Load compiled code without preparing the compiler.

    `Cache.load_overload` first registers every type and function that Numba could compile, which
    takes longer than all else that loading does. Code that is compiled already needs only the
    reference counting of arrays, if that; and the compiler prepares itself when a kernel does not
    load.
    """
    inner = getattr(cache, "_load_overload", None)
    guard = getattr(cache, "_guard_against_spurious_io_errors", None)
    if inner is None or guard is None:  # another Numba than those this was written for
        return cache.load_overload(signature, target)
    if counting:
        rtsys.initialize(target)
    with guard():
        return inner(signature, target)


def helper(function: F) -> F:
    """Compile a function that only kernels call; it is kept inside their cached code.

    Numba does not notice when a helper in another file changes: delete `__pycache__` then.
    """
    # Nobody calls it from Python or C: the two wrappers would only cost time to compile.
    bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return numba.njit(nogil=True, error_model="numpy", **bare)(function)


def borrowing(function: F) -> F:
    """Compile such a function without counting references: it may not make or return arrays.

    Arrays that are arguments, or taken apart from tuples, would be counted up and down in every
    call, with instructions that lock the bus: for a row of a few thousand weights that is as much
    as the work. Views of arguments are fine.
    """
    bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "_nrt": False}
    return numba.njit(nogil=True, error_model="numpy", **bare)(function)


def kernel(function: F) -> F:
    """Compile `function` without the GIL and with strict IEEE arithmetic.

    Numba refuses `cache=True` at decoration time when it finds no folder to write to (a
    read-only installation with an unwritable home): then the kernel is compiled in every process.
    """
    return _kernel(function, counting=True)


def lean_kernel(function: F) -> F:
    """Compile such a kernel without counting references; see `borrowing`.

    It loads in half the time: Numba compiles what counts references anew in every process.
    """
    return _kernel(function, counting=False)


def _kernel(function: F, *, counting: bool) -> F:
    options: dict[str, Any] = {} if counting else {"_nrt": False}
    try:
        compiled = numba.njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:
        uncached.append(function.__name__)
        compiled = numba.njit(nogil=True, error_model="numpy", **options)(function)
    else:
        if hasattr(compiled, "_cache"):  # a plain function under NUMBA_DISABLE_JIT
            compiled._cache = _Tolerant(compiled._cache, counting=counting)
    return compiled
