"""Writing a large file that is there whole or not at all.

Everything goes to a temporary file beside the destination, which takes the destination's name only
when it is whole and on the disk: whoever stops the process, at whatever moment, finds no half of a
model under that name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, TypeVar

from qassay.core.errors import UsageError
from qassay.core.source import Bytes
from qassay.core.text import safe

_BUFFER = 1 << 20
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_W = TypeVar("_W", bound="TensorFile")


def check_destination(
    path: Path, sources: Iterable[Path], *, overwrite: bool, force: bool = True
) -> None:
    """Raise unless a new file can take the name `path`.

    Args:
        path: The name, symbolic links resolved.
        sources: Files that the new file is made from: none of them may be replaced.
        overwrite: Whether another file may be replaced.
        force: Whether there is an option --force that says so.

    Raises:
        UsageError: It is one of the sources, exists, or is in no folder.
    """
    shown = safe(path.name)
    if not path.parent.is_dir():
        raise UsageError(
            "there is no folder to write the new file into",
            path=safe(str(path.parent)),
            hint="create it, or name another file",
        )
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise refusal(error, path) from error
    if not stat.S_ISREG(mode):
        raise UsageError("the new file cannot take the place of what is no file", path=shown)
    for source in sources:
        with contextlib.suppress(OSError):
            if path.samefile(source):
                raise UsageError(
                    "the new file would replace the source",
                    path=shown,
                    hint="name another file; the source is never written to",
                )
    if not overwrite:
        raise UsageError(
            "there is a file of this name already",
            path=shown,
            hint=f"name another file{', or say --force to replace it' if force else ''}",
        )


def refusal(error: OSError, path: Path) -> UsageError:
    """Return the error that tells a user why the new file cannot be written."""
    if isinstance(error, FileExistsError):
        return UsageError(
            "another program made a file of this name meanwhile",
            path=safe(path.name),
            hint="name another file; nothing was left behind",
        )
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return UsageError(
        f"the new file cannot be written: {error.strerror or error}",
        path=safe(path.name),
        hint="make room, or name a file on another disk; nothing was left behind"
        if full
        else "name a file in a folder that may be written to",
    )


class TensorFile:
    """A header and the data of tensors, in order; commits at the end, or removes what it wrote.

    Args:
        path: The destination, symbolic links resolved.
        header: All that comes before data, in pieces.
        sizes: Bytes of each tensor.
        alignment: What each tensor's data is padded to.
        overwrite: Whether a file of that name is replaced.

    Every method raises `UsageError` when the file cannot be written, a full disk included.

    An interrupt can come between any two lines, those at the ends of `__enter__` and `__exit__`
    included, where no `with` calls anything any more. So whoever writes says:

        writer = TensorFile(...)
        try:
            with writer:
                writer.write(...)
        finally:
            writer.discard()
    """

    def __init__(
        self,
        path: Path,
        header: Sequence[bytes | memoryview],
        sizes: Sequence[int],
        *,
        alignment: int = 1,
        overwrite: bool = False,
    ) -> None:
        self._path = path
        self._overwrite = overwrite
        self._header = header
        self._sizes = sizes
        self._alignment = alignment
        self._current = 0
        self._written = 0
        # Cut, because the longest name that a file system takes would not take an ending as well.
        self._temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.part")
        self._stream: BinaryIO | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        data = sum(size + self._padding(size) for size in self._sizes)
        return sum(len(piece) for piece in self._header) + data

    def __enter__(self: _W) -> _W:
        try:
            self._check_room()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
            # The umask, not a mode of our own, decides who may read the new file.
            handle = os.open(self._temporary, flags, 0o666)
            self._stream = os.fdopen(handle, "wb", buffering=_BUFFER)
            for piece in self._header:
                self._stream.write(piece)
        except OSError as error:
            self.discard()
            raise refusal(error, self._path) from error
        except BaseException:
            self.discard()
            raise
        return self

    def write(self, data: Bytes) -> None:
        """Append data `[n]` of the tensor whose turn it is; its last byte ends its turn."""
        while self._current < len(self._sizes) and self._sizes[self._current] == 0:
            self._current += 1
        size = self._sizes[self._current] if self._current < len(self._sizes) else 0
        if self._stream is None or self._written + data.size > size:
            raise ValueError(f"{data.size} bytes too many for tensor {self._current}")
        try:
            self._stream.write(data.data)
            self._written += data.size
            if self._written == size:
                self._stream.write(bytes(self._padding(size)))
                self._current += 1
                self._written = 0
        except OSError as error:
            raise refusal(error, self._path) from error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self._commit()
        except OSError as failure:
            self.discard()
            raise refusal(failure, self._path) from failure
        except BaseException:
            self.discard()
            raise

    def _padding(self, length: int) -> int:
        return -length % self._alignment

    def _check_room(self) -> None:
        free = shutil.disk_usage(self._path.parent).free
        if free < self.nbytes:
            raise UsageError(
                "the disk has too little room for the new file",
                path=safe(self._path.name),
                expected=f"{self.nbytes:,} bytes free",
                found=f"{free:,}",
                hint="make room, or name a file on another disk",
            )

    def _commit(self) -> None:
        if self._stream is None or any(self._sizes[self._current :]):
            raise ValueError(f"tensor {self._current} is not whole")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        if self._overwrite:
            self._temporary.replace(self._path)
        else:
            self._take_free_name()
        sync_folder(self._path.parent)

    def _take_free_name(self) -> None:
        """Give the file its name unless another file took it meanwhile."""
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            raise
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if self._path.exists():
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from error
            self._temporary.replace(self._path)
        else:
            self._temporary.unlink()

    def discard(self) -> None:
        """Remove what was written unless it has its name already; may be called at any time.

        It is on the way out already, so nothing more may fail.
        """
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            # A close that failed to flush leaves the descriptor open; the second one closes it.
            with contextlib.suppress(OSError):
                self._stream.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()


def sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system knows how."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
