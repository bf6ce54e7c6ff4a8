"""Files of named arrays, read one array at a time: npz, npy, safetensors, raw dumps, polygraphy.

A folder of raw dumps holds a JSON file that says of each dump its shape and dtype::

    {"arrays": {"y": {"file": "y.bin", "shape": [1, 4, 128], "dtype": "float32"}}}

`dtype` is a word of NumPy or `bfloat16`; the outer `"arrays"` may be left out. A folder without
raw dumps, of JSON files that polygraphy wrote, is one file an iteration.

What is wrong with one array is said when that array is read, so that the others can be compared.
"""

from __future__ import annotations

import math
import stat
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qassay.containers.opening import display_name
from qassay.containers.sources import check_regular, refusal
from qassay.core.container import Container, StoredTensor
from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.encodings.registry import for_stored_type, open_with_encodings
from qassay.run.dumps_raw import LARGEST_JSON, RawDumps
from qassay.run.layout_files import ArrayFile, open_arrays
from qassay.run.polygraphy import PolygraphyJson

Array = npt.NDArray[Any]

BROKEN = (
    OSError, EOFError, ValueError, SyntaxError, TypeError, KeyError, OverflowError, RuntimeError,
    MemoryError, NotImplementedError, struct.error, zipfile.BadZipFile, zlib.error,
    tokenize.TokenError,
)  # fmt: skip
"""What damaged, encrypted or lying archives raise."""

MOST_NUMBERS = 1 << 29
"""Numbers of an array that has to be copied to be read: 2 GiB of float32. Mapped ones may be more.
"""
_UNSOUND = ("Q001", "Q002", "Q003", "Q005", "Q007")
_MAPPED = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
_MAGIC = {b"PK\x03\x04": ".npz", b"PK\x05\x06": ".npz", b"\x93NUM": ".npy"}


class Dump(Protocol):
    """A file or folder of named arrays."""

    path: str

    def names(self) -> list[str]:
        """Return the names, in the order of the file."""

    def nbytes(self, name: str) -> int:
        """Return about how many bytes an array has."""

    def read(self, name: str) -> Array:
        """Return an array; bf16 as float32, all else as stored. It may lie in a file, unchanged.

        Raises:
            InputError: It cannot be read.
        """

    def close(self) -> None:
        """Close it."""


def open_dump(path: Path) -> Dump:
    """Open a file or folder of arrays.

    Raises:
        InputError: It cannot be read, or is not what it says.
    """
    shown = display_name(path)
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            texts = sorted(path.glob("*.json"))
        else:
            check_regular(mode, shown)
            with path.open("rb") as stream:
                head = stream.read(4)
    except (OSError, ValueError) as error:
        raise refusal(error, shown) from None
    if stat.S_ISDIR(mode):
        if texts and all(map(_of_polygraphy, texts)):
            return _filled(PolygraphyJson(texts))
        return _filled(RawDumps(path, texts))
    suffix = path.suffix.lower()
    real = _MAGIC.get(head, suffix)
    if real != suffix and suffix in ("", ".npy", ".npz", ".json"):
        raise InputError(
            "its name is not that of its content",
            path=shown,
            expected=f"a name that ends in {real}",
            found=safe(path.name, 80),
            hint="rename it",
        )
    if suffix in (".npz", ".npy"):
        return _filled(_Numpy(path))
    return _filled(PolygraphyJson([path]) if suffix == ".json" else _Container(path))


def _filled(dump: Dump) -> Dump:
    if dump.names():
        return dump
    dump.close()
    raise InputError("it holds no arrays", path=dump.path)


def _of_polygraphy(text: Path) -> bool:
    """Tell whether a JSON file is one that polygraphy wrote; those that say shapes are small."""
    try:
        if not stat.S_ISREG(text.stat().st_mode):
            return False
        with text.open("rb") as stream:
            start = stream.read(LARGEST_JSON + 1)
    except OSError:
        return False
    return len(start) > LARGEST_JSON or b'"polygraphy_class"' in start


def _size(file: ArrayFile, name: str) -> int:
    """Return how many numbers an array has; 0 of a damaged one, which fails when it is read."""
    try:
        return max(0, math.prod(file.shape(name)))
    except InputError:
        return 0


def _refuse_size(size: int, path: str, name: str) -> None:
    if size > MOST_NUMBERS:
        raise InputError(
            f"the array {safe(name, 80)} is too large",
            path=path,
            expected=f"at most {MOST_NUMBERS:,} numbers",
            found=f"{size:,}",
            hint="save it as npy, or as safetensors in F32 or F16: these are read where they lie",
        )


class _Numpy:
    """npz or npy; an npy stays where it is, mapped."""

    def __init__(self, path: Path) -> None:
        self.path = display_name(path)
        try:
            with np.errstate(over="ignore"):  # of headers that lie
                file = open_arrays(path)
        except (TypeError, ValueError) as error:
            raise self._broken(error) from None
        try:
            self._sizes = {name: _size(file, name) for name in file.names()}
            with np.errstate(over="ignore"):
                self._loaded = np.load(path, allow_pickle=False, mmap_mode="r")
        except BROKEN as error:
            raise self._broken(error) from None
        finally:
            file.close()

    def _broken(self, error: BaseException) -> InputError:
        found = safe(f"{type(error).__name__}: {error}", 120)
        return InputError("an array cannot be read", path=self.path, found=found)

    def names(self) -> list[str]:
        return list(self._sizes)

    def nbytes(self, name: str) -> int:
        return min(self._sizes[name], MOST_NUMBERS) * 4

    def read(self, name: str) -> Array:
        if isinstance(self._loaded, np.ndarray):
            return self._loaded
        _refuse_size(self._sizes[name], self.path, name)
        try:
            return np.array(self._loaded[name])
        except BROKEN as error:
            raise self._broken(error) from None

    def close(self) -> None:
        if not isinstance(self._loaded, np.ndarray):
            self._loaded.close()


class _Container:
    """safetensors, or whatever else the registry opens; floats stay where they are, mapped."""

    def __init__(self, path: Path) -> None:
        self._container = open_with_encodings(path)
        self.path = self._container.path
        self._stored: dict[str, StoredTensor] = {one.name: one for one in self._container.tensors}
        try:
            _refuse_unsound(self._container)
        except InputError:
            self.close()
            raise

    def names(self) -> list[str]:
        return list(self._stored)

    def nbytes(self, name: str) -> int:
        return self._stored[name].nbytes or 0

    def read(self, name: str) -> Array:
        stored = self._stored[name]
        known = for_stored_type(stored.type)
        if known is None or not stored.readable:
            raise InputError(
                f"{safe(name, 80)} is of a type that is not read",
                path=stored.path,
                offset=stored.offset,
                found=stored.type.name,
            )
        form = _MAPPED.get(str(stored.type.label)) if stored.type.family == "safetensors" else None
        if form is not None:
            return stored.raw().view(form).reshape(stored.shape)
        _refuse_size(stored.size, self.path, name)
        return np.array(known.dequantize(stored.raw()).reshape(stored.shape))

    def close(self) -> None:
        self._container.close()


def _refuse_unsound(container: Container) -> None:
    """Refuse a file whose tensors may not be where it says, or may be lacking."""
    wrong = [one for one in container.defects if not one.minor and one.code in _UNSOUND]
    if wrong:
        raise InputError(
            f"its structure is not sound ({wrong[0].code}): {wrong[0].message}",
            path=container.path,
            offset=wrong[0].byte_offset,
            hint="`qassay check` tells more; dump it again",
        )
    if container.skipped:
        raise InputError(container.skipped[0].reason, path=container.path)
