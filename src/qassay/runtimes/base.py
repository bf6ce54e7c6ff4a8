"""Quantizers: how a program turns floats into an encoding's bytes.

An encoding says what bytes mean; it has no opinion on how numbers become codes. Programs differ
in that for the same encoding (rounding, ties, NaN, overflow), so each is an *engine* of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from qassay.core.errors import DeclarationError, UsageError
from qassay.core.pages import demanded, first_sentence
from qassay.core.source import Bytes
from qassay.encodings.base import Encoding, Floats
from qassay.encodings.registry import by_id
from qassay.runtimes.registry import register


class Quantizer(Protocol):
    """Turns rows of floats into the stored bytes of one encoding."""

    def __call__(self, rows: Floats, importance: Floats | None) -> Bytes:
        """Return the bytes, uint8 `[n, row_bytes]`, of float32 rows `[n, K]`, K whole blocks.

        Args:
            rows: The weights; any bit pattern, NaN and infinities included.
            importance: Importance of each input feature, float32 `[K]`, for encodings that use it.
        """


@dataclass(frozen=True, slots=True)
class Route:
    """One encoding that an engine writes.

    Attributes:
        reference: The quantizer in NumPy: the specification.
        fast: The same in Numba, bit for bit; None where the reference is fast enough.
        takes_importance: Whether importance changes the bytes.
    """

    reference: Quantizer
    fast: Quantizer | None = None
    takes_importance: bool = False


class Engine:
    """A program that quantizes. A subclass is declared with its id and registers itself.

    Attributes:
        id: As `--engine` spells it: `ggml`, `candle`.
        sources: Program, version and functions that were followed.
        routes: By encoding id.
    """

    id: ClassVar[str] = ""
    sources: ClassVar[tuple[str, ...]] = ()
    routes: ClassVar[Mapping[str, Route]] = {}

    def __init_subclass__(cls, *, id: str) -> None:  # noqa: A002
        super().__init_subclass__()
        cls.id = id
        parts = demanded(("__doc__", "sources", "routes"))
        wanting = [name for name in parts if not getattr(cls, name)]
        if wanting:
            raise DeclarationError(
                f"engine {id} in {cls.__module__} is incomplete",
                expected="a docstring, sources, routes",
                found=f"no {', no '.join(wanting)}",
            )
        register(cls)

    @classmethod
    def title(cls) -> str:
        """Return the first sentence of the docstring."""
        return first_sentence(cls)

    @classmethod
    def quantize(
        cls,
        rows: npt.ArrayLike,
        to: str | type[Encoding],
        importance: npt.ArrayLike | None = None,
        *,
        kernels: str = "fast",
    ) -> Bytes:
        """Return the stored bytes, uint8 `[n, row_bytes]`, that this engine writes for rows.

        Args:
            rows: `[n, K]` or `[K]`; converted to float32.
            to: The target encoding.
            importance: `[K]`, or None.
            kernels: `fast` or `reference`; the bytes are the same.

        Raises:
            UsageError: The engine does not write that encoding, or the array is no rows of
                numbers, or K is not a whole number of blocks, or importance has another length.
        """
        encoding = by_id(to) if isinstance(to, str) else to
        route = cls.routes.get(encoding.id)
        if route is None:
            raise UsageError(
                f"engine {cls.id} does not write {encoding.id}",
                expected=", ".join(sorted(cls.routes)),
                found=encoding.id,
            )
        weights = np.atleast_2d(_numbers(rows, "weights"))
        if weights.ndim != 2:
            raise UsageError(
                "what is given as weights holds no rows",
                expected="an array of one or two axes",
                found=f"shape {list(weights.shape)}",
            )
        if weights.shape[1] % encoding.block:
            raise UsageError(
                f"rows of {weights.shape[1]} weights are no whole number of {encoding.id} blocks",
                expected=f"a multiple of {encoding.block}",
                found=str(weights.shape[1]),
            )
        given = None if importance is None else _numbers(importance, "importance")
        if given is not None and given.shape != (weights.shape[1],):
            raise UsageError(
                "importance has another length than a row",
                expected=str(weights.shape[1]),
                found=str(list(given.shape)),
            )
        chosen = route.fast if kernels == "fast" and route.fast else route.reference
        return chosen(weights, given if route.takes_importance else None)


def _numbers(values: npt.ArrayLike, what: str) -> Floats:
    """Return real numbers of any type as a float32 array.

    Raises:
        UsageError: The values are no array of real numbers.
    """
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise UsageError(
            f"what is given as {what} is no array", expected="rows of one length", found=str(error)
        ) from error
    # Of other people's types (bfloat16) NumPy knows whether they become float32.
    if array.dtype.kind not in "fiub" and not np.can_cast(array.dtype, np.float32):
        raise UsageError(
            f"what is given as {what} holds no real numbers",
            expected="floats, integers or booleans",
            found=str(array.dtype),
        )
    with np.errstate(all="ignore"):  # beyond float32 is infinite, and a NaN may be a signalling one
        return np.ascontiguousarray(array, np.float32)


def describe(engine: type[Engine]) -> dict[str, Any]:
    """Return what `qassay runtimes` and the docs say about an engine."""
    return {
        "id": engine.id,
        "title": engine.title(),
        "encodings": sorted(engine.routes),
        "sources": list(engine.sources),
    }
