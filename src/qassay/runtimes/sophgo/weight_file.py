"""The npz beside a `.mlir`: flat arrays whose shapes and types only the text knows.

tpu-mlir stores bf16 and f16 as uint16 bit patterns, writes bytes and everything reordered as
one-dimensional arrays, and may call unsigned bytes int8. So an array is taken by its bits: its
number of elements and their size have to be those of the type; shape and type come from the text.
"""

from __future__ import annotations

import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.runtimes.sophgo.mlir import MlirModule
from qassay.runtimes.sophgo.mlir_text import TensorType

LARGEST_ARRAY = 1 << 32
"""Bytes of one array that are read."""

_MOST_MEMBERS = 1 << 17
_DTYPES: dict[str, np.dtype[Any]] = {
    "f64": np.dtype(np.float64),
    "f32": np.dtype(np.float32),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),  # bit patterns
    "i64": np.dtype(np.int64),
    "si64": np.dtype(np.int64),
    "ui64": np.dtype(np.uint64),
    "i32": np.dtype(np.int32),
    "si32": np.dtype(np.int32),
    "ui32": np.dtype(np.uint32),
    "i16": np.dtype(np.int16),
    "si16": np.dtype(np.int16),
    "ui16": np.dtype(np.uint16),
    "i8": np.dtype(np.int8),
    "si8": np.dtype(np.int8),
    "ui8": np.dtype(np.uint8),
}
# What zipfile, zlib and numpy raise for damaged, encrypted or lying archives.
_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    SyntaxError,
    TypeError,
    KeyError,
    OverflowError,
    RuntimeError,
    MemoryError,
    NotImplementedError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,  # of a header that is no Python
)


class WeightFile:
    """An open npz.

    Args:
        path: The file.
        types: Type of each array, by key: `MlirModule.weights`.

    Raises:
        InputError: It is no npz.
    """

    def __init__(self, path: str | Path, types: Mapping[str, TensorType]) -> None:
        self.path = str(path)
        self.types = types
        try:
            self._zip = zipfile.ZipFile(path)
            members = self._zip.infolist()
        except _BROKEN as error:
            raise self._broken("no npz file", error) from None
        if len(members) > _MOST_MEMBERS:
            raise InputError("too many arrays", path=self.path, expected=f"at most {_MOST_MEMBERS}")
        self._members = {one.filename.removesuffix(".npy"): one for one in members}

    def __enter__(self) -> WeightFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._zip.close()

    def names(self) -> list[str]:
        """Return the keys in the file's order."""
        return list(self._members)

    def read(self, name: str) -> npt.NDArray[Any]:
        """Return an array in the shape and dtype that the text gives it; bf16 as uint16.

        Raises:
            InputError: There is no such array or no type for it, the file is damaged, or the type
                contradicts the array: both sizes are said.
        """
        kind, member = self.types.get(name), self._members.get(name)
        if kind is None or kind.shape is None or kind.dtype not in _DTYPES:
            raise InputError(
                f"no type is known for {safe(name, 80)}",
                path=self.path,
                expected="a top.Weight of known shape and element type in the .mlir",
                found="none" if kind is None else str(kind),
            )
        if member is None:
            raise InputError(f"no array {safe(name, 80)}", path=self.path, expected=str(kind))
        dtype, elements = _DTYPES[kind.dtype], kind.elements or 0
        size = elements * dtype.itemsize
        try:
            with self._zip.open(member) as stream, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on headers that Python 2 wrote
                stored, count, whole = _header(stream, member.file_size)
                same = count == elements and stored.itemsize == dtype.itemsize
                data = stream.read(size) if same and whole and size <= LARGEST_ARRAY else b""
        except _BROKEN as error:
            raise self._broken(f"the array {safe(name, 80)} cannot be read", error) from None
        if not same:
            raise InputError(
                f"{safe(name, 80)}: the type in the .mlir is not that of the array",
                path=self.path,
                expected=f"{kind}: {elements} elements of {dtype.itemsize} bytes",
                found=f"{count} elements of {stored.itemsize} bytes ({stored})",
            )
        if len(data) != size:
            raise InputError(
                f"the array {safe(name, 80)} is cut off, too large, or in another order",
                path=self.path,
                expected=f"{size} bytes in C order, at most {LARGEST_ARRAY}",
                found=f"{member.file_size} bytes with the header",
            )
        array: npt.NDArray[Any] = np.frombuffer(data, dtype)
        return array.reshape(kind.shape)

    def _broken(self, message: str, error: BaseException) -> InputError:
        return InputError(message, path=self.path, found=safe(f"{type(error).__name__}: {error}"))


def _header(stream: Any, size: int) -> tuple[np.dtype[Any], int, bool]:
    """Return element type, number of elements, and whether the rest is just them, in C order."""
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, fortran, stored = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, fortran, stored = npy.read_array_header_2_0(stream)
    else:
        raise ValueError(f"npy format {version}")
    if stored.kind not in "iuf" or not stored.isnative:
        raise ValueError(f"dtype {stored}")
    count = 1
    for axis in shape:
        if axis < 0:
            raise ValueError(f"shape {shape}")
        count *= axis
    flat = not fortran or len(shape) < 2
    return stored, count, flat and stream.tell() + count * stored.itemsize == size


def weights_of(module: MlirModule, folder: str | Path) -> WeightFile:
    """Open the weight file that a text names, in the folder that holds the text.

    Raises:
        InputError: The text names none, or names anything but a plain file name.
    """
    name = module.weight_file
    if not name or name in (".", "..") or any(mark in name for mark in "/\\\0:"):
        raise InputError(
            "module.weight_file is no plain file name",
            expected="a file beside the .mlir",
            found=repr(safe(name, 80)),
        )
    return WeightFile(Path(folder) / name, module.weights)
