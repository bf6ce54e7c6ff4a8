"""Where bytes come from: local files are mapped, a remote source can read ranges instead."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Source(Protocol):
    """A read-only run of bytes of known length.

    `read` never returns fewer bytes than asked for: callers check `size` first, and a source
    raises `InputError` where the bytes cannot be had after all.
    """

    @property
    def name(self) -> str:
        """How reports name this source: never an absolute path."""

    @property
    def size(self) -> int:
        """Length in bytes."""

    def read(self, offset: int, length: int) -> Bytes:
        """Return `length` bytes from `offset` as a read-only uint8 array `[length]`."""

    def close(self) -> None:
        """Let go of the file. Arrays already handed out stay valid."""
