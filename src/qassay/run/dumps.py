"""Files of named arrays, read one array at a time: npz, npy, safetensors, raw dumps, polygraphy.

A folder of raw dumps holds a JSON file that says of each dump its shape and dtype::

    {"arrays": {"y": {"file": "y.bin", "shape": [1, 4, 128], "dtype": "float32"}}}

`dtype` is a word of NumPy or `bfloat16`; the outer `"arrays"` may be left out. A folder without
raw dumps, of JSON files that polygraphy wrote, is one file an iteration.
"""

from __future__ import annotations

import json
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from qassay.containers.opening import display_name
from qassay.core.container import StoredTensor
from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.encodings.registry import for_stored_type, open_with_encodings
from qassay.run.layout_files import LARGEST_ARRAY, ArrayFile, open_arrays
from qassay.run.polygraphy import PolygraphyJson
from qassay.runtimes.sophgo.bfloat16 import of_bf16

Array = npt.NDArray[Any]

BROKEN = (
    OSError, EOFError, ValueError, SyntaxError, TypeError, KeyError, OverflowError, RuntimeError,
    MemoryError, NotImplementedError, struct.error, zipfile.BadZipFile, zlib.error,
    tokenize.TokenError,
)  # fmt: skip
"""What damaged, encrypted or lying archives raise."""

_LARGEST_JSON = 1 << 20
_DTYPES = {
    name: np.dtype(name)
    for name in ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32")
} | {"bfloat16": np.dtype(np.uint16)}


class Dump(Protocol):
    """A file or folder of named arrays."""

    path: str

    def names(self) -> list[str]:
        """Return the names, in the order of the file."""

    def nbytes(self, name: str) -> int:
        """Return about how many bytes an array has."""

    def read(self, name: str) -> Array:
        """Return an array; bf16 as float32, all else as stored.

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
    if path.is_dir():
        texts = sorted(path.glob("*.json"))
        if texts and all(map(_of_polygraphy, texts)):
            return PolygraphyJson(texts)
        return _Raw(path, texts)
    suffix = path.suffix.lower()
    if suffix in (".npz", ".npy"):
        return _Numpy(path)
    if suffix == ".json":
        return PolygraphyJson([path])
    return _Container(path)


def _size(file: ArrayFile, name: str) -> int:
    """Return how many numbers an array has; 0 of a damaged one, which fails when it is read."""
    try:
        return math.prod(file.shape(name))
    except InputError:
        return 0


class _Numpy:
    """npz or npy."""

    def __init__(self, path: Path) -> None:
        file = open_arrays(path)
        self.path = file.path
        try:
            sizes = {name: _size(file, name) for name in file.names()}
            wide = [name for name, size in sizes.items() if size > LARGEST_ARRAY // 4]
            if wide:
                raise InputError(f"the array {safe(wide[0], 80)} is too large", path=self.path)
            self._sizes = sizes
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
        return self._sizes[name] * 4

    def read(self, name: str) -> Array:
        try:
            if isinstance(self._loaded, np.ndarray):
                return np.array(self._loaded)
            return np.array(self._loaded[name])
        except BROKEN as error:
            raise self._broken(error) from None

    def close(self) -> None:
        if not isinstance(self._loaded, np.ndarray):
            self._loaded.close()


class _Container:
    """safetensors, or whatever else the registry opens."""

    def __init__(self, path: Path) -> None:
        self._container = open_with_encodings(path)
        self.path = self._container.path
        self._stored: dict[str, StoredTensor] = {
            one.name: one
            for one in self._container.tensors
            if one.readable and for_stored_type(one.type) is not None
        }
        if not self._stored:
            self.close()
            raise InputError("no array in it can be read", path=display_name(path))

    def names(self) -> list[str]:
        return list(self._stored)

    def nbytes(self, name: str) -> int:
        return self._stored[name].size * 4

    def read(self, name: str) -> Array:
        stored = self._stored[name]
        known = for_stored_type(stored.type)
        assert known is not None  # noqa: S101 - others are not listed
        return np.array(known.dequantize(stored.raw()).reshape(stored.shape))

    def close(self) -> None:
        self._container.close()


def _of_polygraphy(text: Path) -> bool:
    """Tell whether a JSON file is one that polygraphy wrote; those that say shapes are small."""
    try:
        with text.open("rb") as stream:
            start = stream.read(_LARGEST_JSON + 1)
    except OSError:
        return False
    return len(start) > _LARGEST_JSON or b'"polygraphy_class"' in start


class _Raw:
    """A folder of raw dumps and one JSON file."""

    def __init__(self, folder: Path, texts: list[Path]) -> None:
        self.path = display_name(folder)
        self._folder = folder
        if len(texts) != 1:
            raise InputError(
                "a folder of raw dumps needs one JSON file that says their shapes",
                path=self.path,
                expected='{"y": {"file": "y.bin", "shape": [4, 128], "dtype": "float32"}}',
                found=f"{len(texts)} JSON files",
            )
        try:
            if texts[0].stat().st_size > _LARGEST_JSON:
                raise InputError("the JSON file is too large", path=self.path)
            told = json.loads(texts[0].read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise InputError(
                "the JSON file cannot be read",
                path=display_name(texts[0]),
                found=safe(str(error), 120),
            ) from None
        listed = told.get("arrays", told) if isinstance(told, dict) else None
        if not isinstance(listed, dict):
            raise InputError("the JSON file lists no arrays", path=display_name(texts[0]))
        self._said = {
            safe(str(name), 200): _said(folder, name, one) for name, one in listed.items()
        }

    def names(self) -> list[str]:
        return list(self._said)

    def nbytes(self, name: str) -> int:
        return self._said[name].nbytes

    def read(self, name: str) -> Array:
        return self._said[name].read(self.path)

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What the JSON file says of one dump."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    bf16: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def read(self, shown: str) -> Array:
        try:
            real = self.path.stat().st_size
            if real != self.nbytes or real > LARGEST_ARRAY:
                raise InputError(
                    f"{safe(self.path.name, 80)} is not of that shape",
                    path=shown,
                    expected=f"{self.nbytes} bytes",
                    found=f"{real} bytes",
                )
            array = np.fromfile(self.path, self.dtype).reshape(self.shape)
        except (OSError, ValueError) as error:
            raise InputError(
                f"{safe(self.path.name, 80)} cannot be read", path=shown, found=safe(str(error))
            ) from None
        return of_bf16(array) if self.bf16 else array


def _said(folder: Path, name: str, said: Any) -> _Said:
    if not isinstance(said, Mapping):
        raise InputError(f"{safe(name, 80)}: no file, shape and dtype", path=display_name(folder))
    shape, dtype = said.get("shape"), _DTYPES.get(str(said.get("dtype")))
    file = str(said.get("file", f"{name}.bin"))
    plain = file not in ("", ".", "..") and not any(mark in file for mark in "/\\\0:")
    sound = isinstance(shape, list) and all(
        isinstance(axis, int) and not isinstance(axis, bool) and 0 <= axis < 2**31 for axis in shape
    )
    if not plain or not sound or dtype is None or shape is None:
        raise InputError(
            f"{safe(name, 80)}: file, shape or dtype is none",
            path=display_name(folder),
            expected=f"a plain file name, a list of numbers, and one of {', '.join(_DTYPES)}",
            found=safe(json.dumps(dict(said)), 120),
        )
    return _Said(folder / file, tuple(shape), dtype, said.get("dtype") == "bfloat16")
