"""A folder of raw dumps, and the JSON file that says what is in them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.containers.opening import display_name
from qassay.containers.sources import check_regular, refusal
from qassay.containers.strict_json import JsonError, JsonObject, is_integer, parse_json
from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.runtimes.sophgo.bfloat16 import of_bf16

Array = npt.NDArray[Any]

LARGEST_JSON = 1 << 20
LARGEST_DUMP = 1 << 31
"""Bytes of a dump that are read."""

MOST_AXES = 32
_KNOWN = (
    "float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
)  # fmt: skip
_ALIASES = {"fp16": "float16", "f16": "float16", "half": "float16", "fp32": "float32",
            "f32": "float32", "float": "float32", "fp64": "float64", "f64": "float64",
            "double": "float64", "bf16": "bfloat16"}  # fmt: skip
_EXAMPLE = '{"y": {"file": "y.bin", "shape": [4, 128], "dtype": "float32"}}'


class RawDumps:
    """A folder of raw dumps.

    Args:
        folder: The folder.
        texts: The JSON files in it; there has to be one.

    Raises:
        InputError: It says nothing about dumps.
    """

    def __init__(self, folder: Path, texts: list[Path]) -> None:
        self.path = display_name(folder)
        if len(texts) != 1:
            raise InputError(
                "a folder of raw dumps needs one JSON file that says their shapes",
                path=self.path,
                expected=_EXAMPLE,
                found=f"{len(texts)} JSON files",
            )
        told = _parsed(texts[0])
        shown = display_name(texts[0])
        listed = told.get("arrays", told) if isinstance(told, dict) else None
        if not isinstance(listed, JsonObject):
            raise InputError("the JSON file lists no arrays", path=shown, expected=_EXAMPLE)
        if listed.repeated:
            raise InputError(f"two arrays are called {safe(listed.repeated[0][0], 80)}", path=shown)
        self._said = {name: _said(folder, name, one, shown) for name, one in listed.items()}

    def names(self) -> list[str]:
        """Return the names in the order of the JSON file."""
        return list(self._said)

    def nbytes(self, name: str) -> int:
        """Return how many bytes an array has; 0 of one that is not as it was said."""
        said = self._said[name]
        return said.nbytes if isinstance(said, _Said) and said.fits() else 0

    def read(self, name: str) -> Array:
        """Return an array.

        Raises:
            InputError: It is not as it was said.
        """
        said = self._said[name]
        if isinstance(said, InputError):
            raise said
        return said.read(self.path)

    def close(self) -> None:
        """Do nothing: files are open only while they are read."""


def _parsed(text: Path) -> Any:
    shown = display_name(text)
    try:
        status = text.stat()
        check_regular(status.st_mode, shown)
        if status.st_size > LARGEST_JSON:
            raise InputError("the JSON file is too large", path=shown,
                             expected=f"at most {LARGEST_JSON:,} bytes",
                             found=f"{status.st_size:,}")  # fmt: skip
        words = text.read_text("utf-8-sig")
        told = whole_json(words)
    except JsonError as error:
        raise InputError("the JSON file cannot be read", path=shown, offset=error.offset,
                         found=safe(str(error), 120)) from None  # fmt: skip
    except UnicodeDecodeError as error:
        raise InputError("the JSON file cannot be read", path=shown, offset=error.start,
                         expected="UTF-8", found=error.reason) from None  # fmt: skip
    except OSError as error:
        raise refusal(error, shown) from None
    return told


def whole_json(text: str) -> Any:
    """Return the one JSON value of a text; objects as `JsonObject`.

    Raises:
        JsonError: It is none, or not all of the text.
    """
    told, end = parse_json(text)
    if text[end:].strip():
        raise JsonError("there is more behind the first value", end)
    return told


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

    def fits(self) -> bool:
        try:
            return self.path.stat().st_size == self.nbytes
        except OSError:
            return False

    def read(self, shown: str) -> Array:
        name = safe(self.path.name, 80)
        try:
            status = self.path.stat()
            check_regular(status.st_mode, name)
            real = status.st_size
            if real != self.nbytes:
                raise InputError(
                    f"{name} is not of that shape",
                    path=shown,
                    expected=f"{self.nbytes:,} bytes: {self.dtype} {list(self.shape)}",
                    found=f"{real:,} bytes",
                    hint=self._hint(real),
                )
            if real > LARGEST_DUMP:
                raise InputError(f"{name} is too large", path=shown,
                                 expected=f"at most {LARGEST_DUMP:,} bytes",
                                 found=f"{real:,}")  # fmt: skip
            array = np.fromfile(self.path, self.dtype).reshape(self.shape)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise InputError(
                f"{name} cannot be read", path=shown, found=safe(reason, 120)
            ) from None
        return of_bf16(array) if self.bf16 else array

    def _hint(self, real: int) -> str:
        size = math.prod(self.shape)
        if size and real % size == 0 and real // size in (1, 2, 4, 8):
            return f"it has {real // size} bytes a number: is the dtype another one?"
        return "correct the shape, or dump it again"


def _said(folder: Path, name: str, said: Any, shown: str) -> _Said | InputError:
    """Return what is said of a dump, or why that cannot be."""

    def wrong(what: str, expected: str, found: object) -> InputError:
        return InputError(f"{safe(name, 80)}: {what}", path=shown, expected=expected,
                          found=safe(json.dumps(found), 120))  # fmt: skip

    if not isinstance(said, Mapping):
        return wrong("no file, shape and dtype", _EXAMPLE, said)
    shape, dtype, file = said.get("shape"), said.get("dtype"), said.get("file", f"{name}.bin")
    if (
        not isinstance(file, str)
        or file in ("", ".", "..")
        or any(mark in file for mark in "/\\\0:")
    ):
        return wrong("the file is not one of the folder's", "a plain file name", file)
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_AXES
        or not all(is_integer(axis) and 0 <= axis < 2**31 for axis in shape)
    ):
        return wrong("the shape is none", f"at most {MOST_AXES} whole numbers below 2^31", shape)
    word = dtype.lower() if isinstance(dtype, str) else ""
    word = _ALIASES.get(word, word)
    if word != "bfloat16" and word not in _KNOWN:
        return wrong("the dtype is not known", f"one of {', '.join(_KNOWN)}, bfloat16", dtype)
    bf16 = word == "bfloat16"
    return _Said(folder / file, tuple(shape), np.dtype("uint16" if bf16 else word), bf16)
