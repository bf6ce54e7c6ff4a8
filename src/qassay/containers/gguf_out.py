"""Writing a GGUF file (version 3) whose tensor data streams by, or leaving nothing behind.

The header comes first, for sizes follow from types and shapes; then the data, tensor by tensor in
the order of the header, in pieces of any length. Everything goes to a temporary file beside the
destination, which takes the destination's name only when it is whole and on the disk: whoever
stops the process, at whatever moment, finds no half of a model under that name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from qassay.containers.gguf import DEFAULT_ALIGNMENT, MAGIC
from qassay.containers.gguf_metadata import ARRAY, STRING, UINT32
from qassay.core.container import StoredType
from qassay.core.errors import UsageError
from qassay.core.source import Bytes
from qassay.core.text import safe

VERSION = 3
_BUFFER = 1 << 20
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


@dataclass(frozen=True, slots=True)
class Pair:
    """A metadata pair.

    Attributes:
        key: Text; what was no UTF-8 in the file it comes from stands as surrogate escapes.
        type_number: GGUF's number of the value type.
        value: The bytes that follow the type number.
    """

    key: str
    type_number: int
    value: bytes | memoryview

    @classmethod
    def of_text(cls, key: str, text: str) -> Pair:
        """Return a pair with a string."""
        return cls(key, STRING, _string(text))

    @classmethod
    def of_uint32(cls, key: str, number: int) -> Pair:
        """Return a pair with an unsigned 32-bit number."""
        return cls(key, UINT32, struct.pack("<I", number))

    @classmethod
    def of_texts(cls, key: str, texts: Sequence[str]) -> Pair:
        """Return a pair with an array of strings."""
        head = struct.pack("<IQ", STRING, len(texts))
        return cls(key, ARRAY, head + b"".join(_string(text) for text in texts))


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written.

    Attributes:
        name: Text, surrogate escapes as in `Pair`.
        type: A ggml type.
        shape: Row-major, `[N, K]`; rows are whole blocks.
    """

    name: str
    type: StoredType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data, padding left out."""
        total = 1
        for dim in self.shape:
            total *= dim
        return total // self.type.block * self.type.block_bytes


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _padding(length: int) -> int:
    return -length % DEFAULT_ALIGNMENT


def header(pairs: Sequence[Pair], tensors: Sequence[NewTensor]) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a header, padded up to where data begins; large values uncopied."""
    length = 0
    for piece in _header_fields(pairs, tensors):
        length += len(piece)
        yield piece
    yield bytes(_padding(length))


def _header_fields(
    pairs: Sequence[Pair], tensors: Sequence[NewTensor]
) -> Iterator[bytes | memoryview]:
    yield MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(pairs))
    for pair in pairs:
        yield _string(pair.key) + struct.pack("<I", pair.type_number)
        yield pair.value
    offset = 0
    for tensor in tensors:
        number = int(tensor.type.label)
        axes = tensor.shape[::-1]
        yield _string(tensor.name) + struct.pack(
            f"<I{len(axes)}QIQ", len(axes), *axes, number, offset
        )
        offset += tensor.nbytes + _padding(tensor.nbytes)


def check_destination(path: Path, sources: Iterable[Path], *, overwrite: bool) -> None:
    """Raise unless a new file can take the name `path`.

    Args:
        path: The name, symbolic links resolved.
        sources: Files that the new file is made from: none of them may be replaced.
        overwrite: Whether another file may be replaced.

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
            hint="name another file, or say --force to replace it",
        )


def refusal(error: OSError, path: Path) -> UsageError:
    """Return the error that tells a user why the new file cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return UsageError(
        f"the new file cannot be written: {error.strerror or error}",
        path=safe(path.name),
        hint="make room, or name a file on another disk; nothing was left behind"
        if full
        else "name a file in a folder that may be written to",
    )


class GgufWriter:
    """A GGUF file being written; a context manager that commits, or removes what it wrote.

    Args:
        path: The destination, symbolic links resolved.
        pairs: Metadata, without `general.alignment`: it is the standard one.
        tensors: What will be written, in this order.
        overwrite: Whether a file of that name is replaced.

    Every method raises `UsageError` when the file cannot be written, a full disk included.
    """

    def __init__(
        self,
        path: Path,
        pairs: Sequence[Pair],
        tensors: Sequence[NewTensor],
        *,
        overwrite: bool = False,
    ) -> None:
        self._path = path
        self._overwrite = overwrite
        self._header = list(header(pairs, tensors))
        self._sizes = [tensor.nbytes for tensor in tensors]
        self._current = 0
        self._written = 0
        # Cut, because the longest name that a file system takes would not take an ending as well.
        self._temporary = path.with_name(f".{path.name[:50]}.{secrets.token_hex(4)}.part")
        self._stream: BinaryIO | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the whole file."""
        data = sum(size + _padding(size) for size in self._sizes)
        return sum(len(piece) for piece in self._header) + data

    def __enter__(self) -> GgufWriter:
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
            self._abandon()
            raise refusal(error, self._path) from error
        except BaseException:
            self._abandon()
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
                self._stream.write(bytes(_padding(size)))
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
            self._abandon()
            return
        try:
            self._commit()
        except OSError as failure:
            self._abandon()
            raise refusal(failure, self._path) from failure
        except BaseException:
            self._abandon()
            raise

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
        _sync_folder(self._path.parent)

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

    def _abandon(self) -> None:
        """Remove what was written; it is on the way out already, so nothing more may fail."""
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()
            # A close that failed to flush leaves the descriptor open; the second one closes it.
            with contextlib.suppress(OSError):
                self._stream.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system knows how."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
