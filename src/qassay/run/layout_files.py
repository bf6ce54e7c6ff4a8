"""Files of arrays that `qassay layout` reads and writes: npz, npy, safetensors.

Patterns of bf16 and f16 are uint16 in memory, whatever the file calls them. What is not moved goes
from file to file one array at a time.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qassay.containers.new_file import refusal
from qassay.containers.opening import display_name, open_container
from qassay.containers.safetensors_out import NewTensor, SafetensorsWriter
from qassay.core.container import StoredTensor
from qassay.core.errors import InputError, UsageError
from qassay.core.text import safe

Array = npt.NDArray[Any]

LARGEST_ARRAY = 1 << 32
MOST_ARRAYS = 1 << 17
_MOST_UNPACKED = 100
"""Times that an archive may grow when it is unpacked. Weights are noise, and do not shrink so."""

_FREELY_UNPACKED = 1 << 28
_BROKEN = (
    OSError, EOFError, ValueError, SyntaxError, TypeError, KeyError, OverflowError, RuntimeError,
    MemoryError, NotImplementedError, struct.error, zipfile.BadZipFile, zlib.error,
    tokenize.TokenError,
)  # fmt: skip
_VIEWS = {"BF16": "<u2", "F16": "<u2", "U16": "<u2", "U8": "u1", "I8": "u1"}


class ArrayFile(Protocol):
    """A file of named arrays."""

    path: str
    nbytes: int

    def names(self) -> list[str]:
        """Return the names, in the file's order."""

    def kind(self, name: str) -> str:
        """Return `bf16`, `f16`, `u16`, `u8`, or another word for what cannot be moved."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return an array's shape."""

    def read(self, name: str) -> Array:
        """Return an array: uint16 for `bf16`, `f16` and `u16`, uint8 for `u8`."""

    def write(self, target: Path, moved: Mapping[str, Array | None]) -> None:
        """Write all arrays to a new file, those in `moved` instead of the old; None: left out."""

    def close(self) -> None:
        """Close it."""


def open_arrays(path: Path) -> ArrayFile:
    """Open a file by its suffix.

    Raises:
        InputError: It is no such file.
    """
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _Npy(path)
    if suffix == ".npz":
        return _Npz(path)
    return _Safetensors(path)


def _kind(dtype: np.dtype[Any]) -> str:
    plain = {"u2": "u16", "f2": "f16", "u1": "u8", "i1": "u8"}
    return plain.get(dtype.str[1:], str(dtype)) if dtype.isnative else str(dtype)


def _patterns(array: Array) -> Array:
    return array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)


def _damaged(path: str, error: BaseException) -> InputError:
    said = safe(f"{type(error).__name__}: {error}", 200)
    return InputError("the file cannot be read", path=path, expected="arrays of NumPy", found=said)


class _Npy:
    """One array; its name is `array`."""

    def __init__(self, path: Path) -> None:
        self.path = display_name(path)
        try:
            self._array: Array = np.lib.format.open_memmap(path, mode="r")
            self.nbytes = path.stat().st_size
        except _BROKEN as error:
            raise _damaged(self.path, error) from None

    def names(self) -> list[str]:
        return ["array"]

    def kind(self, name: str) -> str:
        del name
        return _kind(self._array.dtype)

    def shape(self, name: str) -> tuple[int, ...]:
        del name
        return tuple(self._array.shape)

    def read(self, name: str) -> Array:
        del name
        return _patterns(np.array(self._array, order="C"))

    def write(self, target: Path, moved: Mapping[str, Array | None]) -> None:
        array = moved.get("array")
        new = self._array if array is None else array.view(self._array.dtype)
        with _whole(target) as temporary, temporary.open("wb") as stream:
            np.lib.format.write_array(stream, np.ascontiguousarray(new), allow_pickle=False)

    def close(self) -> None:
        """Do nothing: mapped arrays close themselves."""


class _Npz:
    """An archive of arrays."""

    def __init__(self, path: Path) -> None:
        self.path = display_name(path)
        try:
            self._zip = zipfile.ZipFile(path)
            members = self._zip.infolist()
            self.nbytes = path.stat().st_size
        except _BROKEN as error:
            raise _damaged(self.path, error) from None
        largest = max((one.file_size for one in members), default=0)
        if len(members) > MOST_ARRAYS or largest > LARGEST_ARRAY:
            self._zip.close()
            raise InputError("the archive is too large", path=self.path,
                             expected=f"{MOST_ARRAYS} arrays of {LARGEST_ARRAY} bytes each",
                             found=f"{len(members)}, the largest of {largest}")  # fmt: skip
        self._size = sum(one.file_size for one in members)
        self._members = {one.filename.removesuffix(".npy"): one for one in members}
        why = ""
        leading_out = [name for name in self._members if ".." in re.split(r"[/\\]", name)]
        if len(self._members) < len(members):
            why = "two arrays of one name"
        elif leading_out:  # a name may hold slashes, as those of ONNX do; it may not climb
            why = f"an array whose name leads out of a folder: {safe(leading_out[0], 80)}"
        elif self._size > max(_FREELY_UNPACKED, _MOST_UNPACKED * self.nbytes):
            why = f"{self._size} bytes once unpacked, of {self.nbytes}"
        if why:
            self._zip.close()
            raise InputError("the archive cannot be trusted", path=self.path,
                             expected="arrays, each once, that are packed a little or not at all",
                             found=why, hint="save the arrays anew with numpy.savez")  # fmt: skip
        self._headers: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}

    def names(self) -> list[str]:
        return list(self._members)

    def kind(self, name: str) -> str:
        return _kind(self._header(name)[1])

    def shape(self, name: str) -> tuple[int, ...]:
        return self._header(name)[0]

    def _header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        if name not in self._headers:
            try:
                with self._zip.open(self._members[name]) as stream:
                    version = np.lib.format.read_magic(stream)
                    reader = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, _, dtype = reader(stream)
            except _BROKEN as error:
                raise _damaged(self.path, error) from None
            self._headers[name] = (shape, dtype)
        return self._headers[name]

    def _load(self, name: str) -> Array:
        shape, dtype = self._header(name)
        total = dtype.itemsize
        for axis in shape:
            total *= axis
        if total > self._members[name].file_size:
            raise InputError(f"the array {safe(name, 80)} is cut off", path=self.path)
        try:
            with self._zip.open(self._members[name]) as stream:
                array: Array = np.lib.format.read_array(stream, allow_pickle=False)
        except _BROKEN as error:
            raise _damaged(self.path, error) from None
        return array

    def read(self, name: str) -> Array:
        return _patterns(np.ascontiguousarray(self._load(name)))

    def write(self, target: Path, moved: Mapping[str, Array | None]) -> None:
        names = [*self._members, *(name for name in moved if name not in self._members)]
        free = shutil.disk_usage(target.parent).free
        if free < self._size:
            raise UsageError("the disk has too little room for the new file",
                             path=safe(target.name), expected=f"{self._size:,} bytes free",
                             found=f"{free:,}", hint="make room, or name a file on another disk",
                             )  # fmt: skip
        with (
            _whole(target) as temporary,
            # Stored, not deflated: tpu-mlir's own reader takes no other archives.
            zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
        ):
            for name in names:
                array = moved[name] if name in moved else self._load(name)
                if array is None:
                    continue
                if name in self._members and name in moved:
                    array = _like(array, self._header(name)[1])
                with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                    np.lib.format.write_array(stream, array, allow_pickle=False)

    def close(self) -> None:
        self._zip.close()


def _like(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return patterns under the dtype that the file had for them."""
    same = array.dtype.itemsize == dtype.itemsize and _kind(dtype) in ("u16", "f16", "u8")
    return array.view(dtype) if same else array


class _Safetensors:
    """A safetensors file."""

    def __init__(self, path: Path) -> None:
        self._container = open_container(path)
        self.path = self._container.path
        self.nbytes = self._container.nbytes
        lost = [one for one in self._container.tensors if not one.readable or one.nbytes is None]
        if self._container.format != "safetensors" or lost or self._container.skipped:
            found = f"{safe(lost[0].name)} cannot be read" if lost else self._container.format
            self._container.close()
            raise InputError("this is no whole file of arrays", path=self.path,
                             expected="npz, npy or safetensors", found=found)  # fmt: skip
        self._tensors = {one.name: one for one in self._container.tensors}

    def names(self) -> list[str]:
        return list(self._tensors)

    def kind(self, name: str) -> str:
        word = str(self._tensors[name].type.label).lower()
        return "u8" if word == "i8" else word

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def read(self, name: str) -> Array:
        stored = self._tensors[name]
        return stored.raw().view(_VIEWS[str(stored.type.label)]).reshape(stored.shape)

    def write(self, target: Path, moved: Mapping[str, Array | None]) -> None:
        new, data = [], []
        for name in (*self._tensors, *(name for name in moved if name not in self._tensors)):
            array = moved.get(name)
            old = self._tensors.get(name)
            if name in moved and array is None:
                continue
            if array is None:
                assert old is not None  # noqa: S101 - a name of either
                new.append(NewTensor(name, str(old.type.label), old.shape))
            else:
                word = "U8" if old is None else str(old.type.label)
                new.append(NewTensor(name, word, array.shape))
            data.append((old, array))
        metadata = self._container.metadata
        texts = {key: text for key, text in metadata.items() if isinstance(text, str)}
        writer = SafetensorsWriter(target, new, texts)
        try:
            with writer:
                for old, array in data:
                    writer.write(_flat(old, array))
        finally:
            writer.discard()

    def close(self) -> None:
        self._container.close()


def _flat(old: StoredTensor | None, array: Array | None) -> Array:
    if array is not None:
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    assert old is not None  # noqa: S101 - one of both is there
    return old.raw()


@contextlib.contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """Yield a temporary name that takes the place of `target` when all went well."""
    temporary = target.with_name(f".{target.name[:50]}.{secrets.token_hex(4)}.part")
    try:
        yield temporary
        os.link(temporary, target)  # never over another file
    except OSError as error:
        raise refusal(error, target) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def only_of(file: ArrayFile, kinds: Sequence[str]) -> list[str]:
    """Return the names of the arrays of these kinds."""
    return [name for name in file.names() if file.kind(name) in kinds]
