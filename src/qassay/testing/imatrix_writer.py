"""Builds importance files of both formats, for tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.testing.gguf_writer import Typed, write_gguf

UINT32 = 4
METADATA: Mapping[str, Any] = {
    "general.type": "imatrix",
    "imatrix.datasets": ["wiki.txt"],
    "imatrix.chunk_count": Typed(UINT32, 4),
    "imatrix.chunk_size": Typed(UINT32, 512),
}


def write_imatrix(
    entries: Mapping[str, tuple[npt.ArrayLike, Sequence[float]]],
    metadata: Mapping[str, Any] = METADATA,
) -> bytes:
    """Return a GGUF importance file.

    Args:
        entries: By name of the weight: sums `[matrices, K]`, and one count a matrix.
        metadata: Its keys and values.
    """
    tensors: list[tuple[str, int, tuple[int, ...], bytes]] = []
    for name, (given, counted) in entries.items():
        sums = np.atleast_2d(np.asarray(given, np.float32))
        counts = np.asarray(counted, np.float32)
        tensors.append((f"{name}.in_sum2", 0, sums.shape[::-1], sums.tobytes()))
        tensors.append((f"{name}.counts", 0, (1, counts.size), counts.tobytes()))
    return write_gguf(metadata, tensors)


def write_legacy_imatrix(
    entries: Mapping[str, tuple[npt.ArrayLike, int]], *, end: bytes | None = None
) -> bytes:
    """Return an importance file of the older format.

    Args:
        entries: By name of the weight: values, and calls.
        end: What follows the entries; by default calls and the name of a data set.
    """
    parts = [struct.pack("<i", len(entries))]
    for name, (given, calls) in entries.items():
        values, raw = np.asarray(given, np.float32).reshape(-1), name.encode()
        parts.append(struct.pack("<i", len(raw)) + raw + struct.pack("<ii", calls, values.size))
        parts.append(values.tobytes())
    parts.append(struct.pack("<ii", 4, 8) + b"wiki.txt" if end is None else end)
    return b"".join(parts)
