"""Which kernels to use: the NumPy reference for small inputs, Numba for large ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Encoding, Floats
from qassay.kernels import layer_reference, preflight_reference, reference
from qassay.kernels.plan import ScanPlan

VARIABLE = "QASSAY_KERNELS"
INTERPRETED = "NUMBA_DISABLE_JIT"
SMALL = 48 << 20
"""Below this many bytes, importing Numba costs more than it saves."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """One set of kernels; all sets give the same results, bit for bit.

    Attributes:
        name: `reference` or `fast`.
        scan_blocks: Scans blocks for what a plan says.
        locate: Finds the blocks whose scale field holds one of some patterns.
        scan_values: Scans rows of plain floats.
        scan_runs: The same, and the largest magnitude of every run of a row beside it.
        locate_small: Finds the small values that such a scan counted, a bounded number at a time.
        unpack_codes: Takes the stored codes out of blocks.
        count_codes: Counts stored codes.
        dequantize: Decodes blocks to float32.
        scan_columns: Scans codes of layers that are packed along K; see `layer_reference`.
        scan_lanes: The same along N.
        scan_nibbles: The same for rows of 4-bit codes.
        scan_bytes: The same for rows of 8-bit codes.
        count_bytes: Counts bytes.
        count_words: Counts 16-bit patterns.
    """

    name: str
    scan_blocks: Callable[[Bytes, ScanPlan], reference.BlockScan]
    locate: Callable[[Bytes, int, int, npt.NDArray[Any], int], npt.NDArray[Any]]
    scan_values: Callable[[npt.NDArray[Any], int, int, int], reference.ValueScan]
    scan_runs: Callable[[npt.NDArray[Any], int, int, int, npt.NDArray[Any]], reference.ValueScan]
    locate_small: Callable[
        [npt.NDArray[Any], int, int, reference.ValueScan], Iterator[npt.NDArray[Any]]
    ]
    unpack_codes: Callable[[Bytes, type[BlockEncoding]], npt.NDArray[np.int16]]
    count_codes: Callable[[Bytes, type[BlockEncoding]], npt.NDArray[Any]]
    dequantize: Callable[[Bytes, type[BlockEncoding]], Floats]
    scan_columns: Callable[[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], bool], Bytes]
    scan_lanes: Callable[[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]], Bytes]
    scan_nibbles: Callable[[Bytes, int, bool], Bytes]
    scan_bytes: Callable[[Bytes, int, bool, int, int], Bytes]
    count_bytes: Callable[[Bytes], npt.NDArray[np.int64]]
    count_words: Callable[[npt.NDArray[Any]], npt.NDArray[np.int64]]


REFERENCE = Kernels(
    "reference",
    reference.scan_blocks,
    reference.locate,
    reference.scan_values,
    preflight_reference.scan_runs,
    reference.locate_small,
    reference.unpack_codes,
    reference.count_codes,
    reference.dequantize,
    layer_reference.scan_columns,
    layer_reference.scan_lanes,
    layer_reference.scan_nibbles,
    layer_reference.scan_bytes,
    layer_reference.count_bytes,
    layer_reference.count_words,
)


def _lazy(module: str, name: str) -> Callable[..., Any]:
    """Return a kernel that imports its module, and so Numba, when it is first called."""

    def call(*arguments: Any) -> Any:
        return getattr(import_module(f"qassay.kernels.{module}"), name)(*arguments)

    return call


FAST = Kernels(
    "fast",
    _lazy("fast_blocks", "scan_blocks"),
    _lazy("fast_blocks", "locate"),
    _lazy("fast_values", "scan_values"),
    _lazy("preflight_fast", "scan_runs"),
    _lazy("fast_values", "locate_small"),
    _lazy("fast_codes", "unpack_codes"),
    _lazy("fast_codes", "count_codes"),
    _lazy("fast_decode", "dequantize"),
    _lazy("layer_fast", "scan_columns"),
    _lazy("layer_fast", "scan_lanes"),
    _lazy("layer_fast", "scan_nibbles"),
    _lazy("layer_fast", "scan_bytes"),
    _lazy("layer_fast", "count_bytes"),
    _lazy("layer_fast", "count_words"),
)


notes: dict[str, None] = {}
"""What users should know about the kernels that ran, each once."""


def interpreted() -> bool:
    """Tell whether Numba is told not to compile: its kernels would take hours, then."""
    return os.environ.get(INTERPRETED, "").strip() not in ("", "0")


def wanted() -> str | None:
    """Return the set that `QASSAY_KERNELS` pins, None where it pins none.

    Raises:
        UsageError: The variable holds neither `reference` nor `fast`, or `fast` cannot be had.
    """
    pinned = os.environ.get(VARIABLE) or None
    if pinned not in (None, "reference", "fast"):
        raise UsageError(
            f"{VARIABLE} names no set of kernels",
            expected="reference or fast",
            found=pinned,
            hint=f"unset {VARIABLE}",
        )
    if pinned == "fast" and interpreted():
        raise UsageError(
            f"{VARIABLE} asks for compiled kernels, and {INTERPRETED} forbids to compile them",
            hint=f"unset one of the two: {INTERPRETED}, or {VARIABLE}",
        )
    return pinned


def choose(nbytes: int) -> Kernels:
    """Return the kernels for an input of `nbytes`."""
    name = wanted() or ("fast" if nbytes >= SMALL else "reference")
    if name == "fast" and interpreted():
        name = "reference"
        notes[f"{INTERPRETED} is set, so the reference kernels ran, which are slower"] = None
    return FAST if name == "fast" else REFERENCE


def dequantize(raw: Bytes, encoding: type[Encoding]) -> Floats:
    """Return the values of stored bytes as float32 `[n * block]`, by whichever kernel suits."""
    if issubclass(encoding, BlockEncoding):
        return choose(raw.size).dequantize(raw, encoding)
    return encoding.dequantize(raw)
