"""Local files as sources: mapped, never copied, never written."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

import numpy as np

from qassay.core.errors import InputError
from qassay.core.source import Bytes

INDEX_SUFFIX = ".safetensors.index.json"
"""How the names of shard indexes end."""


class MmapSource:
    """A local file seen as one read-only uint8 array over a memory map.

    Args:
        path: Where the file is.
        name: How reports name it; `path` itself when left out.

    Raises:
        InputError: The file is missing, may not be read, or is no regular file. A FIFO or a
            device is refused without waiting for it.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._name = str(path) if name is None else name
        try:
            self._map = _map(path, self._name)
        except (OSError, ValueError) as error:
            raise refusal(error, self._name) from error
        buffer = b"" if self._map is None else self._map
        self._bytes: Bytes | None = np.frombuffer(buffer, dtype=np.uint8)
        self._size = int(self._bytes.size)

    @property
    def name(self) -> str:
        """How reports name this file."""
        return self._name

    @property
    def size(self) -> int:
        """Length in bytes when the file was opened."""
        return self._size

    def read(self, offset: int, length: int) -> Bytes:
        """Return `length` bytes from `offset` as a read-only view, shape `[length]`.

        Raises:
            InputError: The range leaves the file, the file has become shorter than that since it
                was opened, or the source is closed.
        """
        if self._bytes is None:
            raise InputError("the file was closed before it was read", path=self._name)
        if offset < 0 or length < 0 or offset + length > self._size:
            raise InputError(
                "a range outside the file was asked for",
                path=self._name,
                offset=offset,
                expected=f"at most {self._size} bytes",
                found=f"{length} bytes from {offset}",
            )
        # Touching a page that the file has lost ends the process with SIGBUS.
        mapped = self._map
        left = self._size if mapped is None else mapped.size()
        if left < offset + length:
            raise InputError(
                "the file shrank while it was read",
                path=self._name,
                offset=offset,
                expected=f"{self._size} bytes",
                found=f"{left} bytes",
                hint="wait until whatever writes this file is done, and check it again",
            )
        return self._bytes[offset : offset + length]

    def __getstate__(self) -> dict[str, object]:
        # A report is pickled with what was measured: the file stays where it is.
        return {"_name": self._name, "_size": self._size, "_map": None, "_bytes": None}

    def close(self) -> None:
        """Let go of the file. The map itself lives on as long as an array of it does."""
        # mmap.close() raises BufferError while arrays are alive, so only the reference goes.
        self._bytes = None
        self._map = None


def _map(path: Path, name: str) -> mmap.mmap | None:
    """Return the map of a file, None when the file is empty."""
    check_regular(path.stat().st_mode, name)
    # O_NONBLOCK: should the path have become a FIFO since, opening it must not wait for a writer.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags | getattr(os, "O_CLOEXEC", 0))
    try:
        status = os.fstat(handle)
        check_regular(status.st_mode, name)
        if status.st_size == 0:
            return None
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(handle)


def check_regular(mode: int, name: str) -> None:
    """Raise InputError, saying what `name` is, unless its `st_mode` is that of a regular file."""
    if stat.S_ISREG(mode):
        return
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    )
    found = next((words for test, words in kinds if test(mode)), "something else")
    raise InputError(
        "this is not a regular file",
        path=name,
        expected="a regular file",
        found=found,
        hint="copy the data to a file first: qassay maps files and reads them in any order",
    )


def refusal(error: OSError | ValueError, name: str) -> InputError:
    """Return the InputError that tells a user what the operating system said about `name`."""
    if isinstance(error, FileNotFoundError):
        return InputError(
            "there is no such file or folder",
            path=name,
            hint="check the spelling; a model that lives on a hub has to be downloaded first",
        )
    if isinstance(error, PermissionError):
        return InputError(
            "this may not be read",
            path=name,
            expected="read permission",
            found="permission denied",
            hint="ask its owner, or change its mode with chmod",
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InputError(
        f"this cannot be opened ({reason})",
        path=name,
        hint="check that the path leads to a readable file on a healthy disk",
    )
