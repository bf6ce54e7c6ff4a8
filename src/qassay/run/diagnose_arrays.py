"""Files of named arrays that people bring back from a device: npz, npy, safetensors, raw dumps.

A folder of raw dumps holds a JSON file that says of each dump its shape and dtype::

    {"arrays": {"y": {"file": "y.bin", "shape": [1, 4, 128], "dtype": "float32"}}}

`dtype` is a word of NumPy or `bfloat16`; the outer `"arrays"` may be left out.
"""

from __future__ import annotations

import json
import math
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.containers.opening import display_name
from qassay.core.errors import InputError, UsageError
from qassay.core.text import safe
from qassay.encodings.registry import for_stored_type, open_with_encodings
from qassay.run.layout_files import LARGEST_ARRAY, open_arrays
from qassay.runtimes.sophgo.bfloat16 import of_bf16

Array = npt.NDArray[Any]

BROKEN = (
    OSError, EOFError, ValueError, SyntaxError, TypeError, KeyError, OverflowError, RuntimeError,
    MemoryError, NotImplementedError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""What damaged, encrypted or lying archives raise."""

_LARGEST_JSON = 1 << 20
_DTYPES = {
    name: np.dtype(name)
    for name in ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32")
} | {"bfloat16": np.dtype(np.uint16)}


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file or folder by name; bf16 as float32, all else as stored.

    Raises:
        InputError: It cannot be read, or is not what it says.
    """
    if path.is_dir():
        return _dumps(path)
    if path.suffix.lower() in (".npz", ".npy"):
        return _numpy(path)
    container = open_with_encodings(path)
    try:
        found = {}
        for stored in container.tensors:
            known = for_stored_type(stored.type)
            if known is None or not stored.readable:
                continue
            values = known.dequantize(stored.raw()).reshape(stored.shape)
            found[stored.name] = np.array(values)
    finally:
        container.close()
    if not found:
        raise InputError("no array in it can be read", path=display_name(path))
    return found


def _numpy(path: Path) -> dict[str, Array]:
    file = open_arrays(path)
    try:
        wide = [name for name in file.names() if math.prod(file.shape(name)) > LARGEST_ARRAY // 4]
        if wide:
            raise InputError(f"the array {safe(wide[0], 80)} is too large", path=file.path)
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"array": np.array(loaded)}
        with loaded:
            return {name: np.array(loaded[name]) for name in loaded.files}
    except BROKEN as error:
        found = safe(f"{type(error).__name__}: {error}", 120)
        raise InputError("an array cannot be read", path=file.path, found=found) from None
    finally:
        file.close()


def _dumps(folder: Path) -> dict[str, Array]:
    texts = sorted(folder.glob("*.json"))
    shown = display_name(folder)
    if len(texts) != 1:
        raise InputError(
            "a folder of raw dumps needs one JSON file that says their shapes",
            path=shown,
            expected='{"y": {"file": "y.bin", "shape": [4, 128], "dtype": "float32"}}',
            found=f"{len(texts)} JSON files",
        )
    try:
        if texts[0].stat().st_size > _LARGEST_JSON:
            raise InputError("the JSON file is too large", path=shown)
        told = json.loads(texts[0].read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(
            "the JSON file cannot be read", path=display_name(texts[0]), found=safe(str(error), 120)
        ) from None
    listed = told.get("arrays", told) if isinstance(told, dict) else None
    if not isinstance(listed, dict):
        raise InputError("the JSON file lists no arrays", path=display_name(texts[0]))
    return {safe(str(name), 200): _dump(folder, name, one) for name, one in listed.items()}


def _dump(folder: Path, name: str, said: Any) -> Array:
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
    size = dtype.itemsize
    for axis in shape:
        size *= axis
    path = folder / file
    try:
        real = path.stat().st_size
        if real != size or size > LARGEST_ARRAY:
            raise InputError(
                f"{safe(file, 80)} is not of that shape",
                path=display_name(folder),
                expected=f"{size} bytes",
                found=f"{real} bytes",
            )
        array = np.fromfile(path, dtype).reshape(shape)
    except OSError as error:
        raise InputError(
            f"{safe(file, 80)} cannot be read", path=display_name(folder), found=safe(str(error))
        ) from None
    return of_bf16(array) if said.get("dtype") == "bfloat16" else array


def as_floats(array: Array, what: str) -> npt.NDArray[np.float32]:
    """Return numbers as float32; uint16 as bf16 bit patterns, which is how tpu-mlir stores them.

    Raises:
        UsageError: They are no numbers of a kind that is known.
    """
    if array.dtype == np.uint16:
        return of_bf16(np.ascontiguousarray(array))
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{what} holds no numbers", expected="floats", found=str(array.dtype))
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)
