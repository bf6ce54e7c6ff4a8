"""What polygraphy saves: JSON in which each array is an npy file in base64.

Outputs (`RunResults`, `--save-outputs`)::

    {"lst": [["RUNNER", [ITERATION, ...]], ...], "polygraphy_class": "RunResults"}
    ITERATION: {"outputs": {NAME: ARRAY, ...}, ..., "polygraphy_class": "IterationResult"}
    ARRAY: {"values": {"array": "BASE64", "polygraphy_class": "ndarray"},
            "polygraphy_class": "LazyArray"}

Inputs (`--save-inputs`) are a list with one object of arrays an iteration, without the outer
`values`. Newer versions also write folders with one file an iteration.

Base64 needs no escapes, so the text is walked once and each array's place noted; what is left is
small, and parsed. An array is decoded when it is read, one at a time.
"""

from __future__ import annotations

import base64
import binascii
import io
import mmap
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.containers.opening import display_name
from qassay.containers.sources import check_regular
from qassay.containers.strict_json import JsonObject
from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.run.dumps_raw import whole_json

Array = npt.NDArray[Any]
Place = tuple[Path, int, int]

LARGEST_FRAME = 1 << 24
"""Bytes of the text that is left without its arrays."""
LARGEST_ARRAY = 1 << 30
"""Bytes of one array: the text, what it stands for and a copy are in memory at once."""
MOST_ARRAYS = 1 << 17
_KEY = re.compile(rb'"array"\s{0,16}:\s{0,16}"')
_CODED = re.compile(rb'[A-Za-z0-9+/=]*"')
_LONGEST_KEY = 64
_CLASS = "polygraphy_class"
_BROKEN = (
    ValueError, TypeError, KeyError, EOFError, OSError, OverflowError, MemoryError, SyntaxError,
    RuntimeError, binascii.Error, tokenize.TokenError,
)  # fmt: skip


class PolygraphyJson:
    """The arrays of some files, by name.

    Several iterations of an output become one array: one above the other, as rows. With several
    runners each name begins with its runner's: `trt-runner/logits`.

    Args:
        files: One, or one an iteration.

    Raises:
        InputError: One is no such file.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self.path = display_name(files[0] if len(files) == 1 else files[0].parent)
        self._at: list[Place] = []
        self._arrays: dict[str, list[Place]] = {}
        for file in files:
            self._at = []
            try:
                status = file.stat()
                check_regular(status.st_mode, display_name(file))
                told = whole_json(self._frame(file)) if status.st_size else None
            except (OSError, ValueError) as error:
                raise self._bad("the JSON file cannot be read", str(error)) from None
            for name, place in self._listed(told):
                self._arrays.setdefault(name, []).append(place)
        if not self._arrays:
            raise InputError(
                "there is no array of polygraphy in this JSON file",
                path=self.path,
                expected="what --save-outputs or --save-inputs writes",
            )

    def names(self) -> list[str]:
        """Return the names in the order of the file."""
        return list(self._arrays)

    def nbytes(self, name: str) -> int:
        """Return about how many bytes an array has."""
        return sum(end - start for _, start, end in self._arrays[name]) * 3 // 4

    def read(self, name: str) -> Array:
        """Return an array.

        Raises:
            InputError: It is none.
        """
        parts = [self._load(name, place) for place in self._arrays[name]]
        if len(parts) == 1:
            return parts[0]
        first = parts[0]
        if any(one.dtype != first.dtype for one in parts):
            raise self._bad(f"the iterations of {safe(name, 80)} differ in dtype")
        if all(one.shape == first.shape for one in parts):
            return np.stack(parts)
        if not first.ndim or any(not one.ndim or one.shape[-1] != first.shape[-1] for one in parts):
            raise self._bad(f"the iterations of {safe(name, 80)} differ in shape")
        return np.concatenate([one.reshape(-1, first.shape[-1]) for one in parts])

    def close(self) -> None:
        """Do nothing: the file is open only while it is read."""

    def _bad(self, what: str, found: str | None = None) -> InputError:
        return InputError(what, path=self.path, found=None if found is None else safe(found, 120))

    def _frame(self, file: Path) -> str:
        """Return the text with each array's number in its place; the places are noted."""
        kept: list[bytes] = []
        size = at = look = 0
        with (
            file.open("rb") as stream,
            mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text,
        ):
            while True:
                # No further than the frame may reach: a file without arrays is not read to its end.
                left = at + LARGEST_FRAME - size + _LONGEST_KEY
                key = _KEY.search(text, look, left) if look < min(left, len(text)) else None
                coded = None if key is None else _CODED.match(text, key.end())
                if key is not None and coded is None:  # text of another kind
                    look = key.end()
                    continue
                start, end = (
                    (len(text), len(text)) if coded is None else (coded.start(), coded.end() - 1)
                )
                size += start - at
                if size > LARGEST_FRAME or len(self._at) == MOST_ARRAYS:
                    raise ValueError("too many arrays, or too much beside them")
                kept.append(text[at:start])
                if coded is None:
                    return b"".join(kept).decode("utf-8-sig")
                kept.append(str(len(self._at)).encode())
                self._at.append((file, start, end))
                at = look = end

    def _listed(self, told: Any) -> Iterator[tuple[str, Place]]:
        if isinstance(told, list):
            for one in told:
                yield from self._of_iteration(one, "")
            return
        if not isinstance(told, dict):
            return
        if told.get(_CLASS) != "RunResults":
            yield from self._of_iteration(told, "")
            return
        runs = told.get("lst")
        several = isinstance(runs, list) and len(runs) > 1
        for run in runs if isinstance(runs, list) else ():
            if not isinstance(run, list) or len(run) != 2 or not isinstance(run[1], list):
                raise self._bad("a run holds no iterations")
            for one in run[1]:
                yield from self._of_iteration(one, f"{run[0]}/" if several else "")

    def _of_iteration(self, one: Any, start: str) -> Iterator[tuple[str, Place]]:
        if not isinstance(one, Mapping):
            return
        arrays = one.get("outputs") if one.get(_CLASS) == "IterationResult" else one
        if isinstance(arrays, JsonObject) and arrays.repeated:
            raise self._bad(f"two arrays are called {safe(arrays.repeated[0][0], 80)}")
        for name, said in arrays.items() if isinstance(arrays, Mapping) else ():
            inner = said.get("values", said) if isinstance(said, Mapping) else None
            if not isinstance(inner, Mapping) or inner.get(_CLASS) != "ndarray":
                if isinstance(inner, Mapping) and inner.get(_CLASS) == "Tensor":
                    raise self._bad(f"{safe(str(name), 80)} is a pickled tensor of PyTorch",
                                    "save NumPy arrays")  # fmt: skip
                continue
            number = inner.get("array")
            if not (isinstance(number, str) and number.isascii() and number.isdigit()
                    and len(number) < 9 and int(number) < len(self._at)):  # fmt: skip
                raise self._bad(f"{safe(str(name), 80)} is no array in base64")
            yield f"{start}{name}", self._at[int(number)]

    def _load(self, name: str, place: Place) -> Array:
        file, start, end = place
        if (end - start) // 4 * 3 > LARGEST_ARRAY + (1 << 16):
            raise self._bad(
                f"the array {safe(name, 80)} is too large", f"{end - start:,} characters"
            )
        try:
            with file.open("rb") as stream:
                stream.seek(start)
                coded = stream.read(end - start)
            raw = base64.b64decode(coded, validate=True)
            del coded
            inside = io.BytesIO(raw)
            version = np.lib.format.read_magic(inside)
            header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, order, dtype = header(inside)
            size = dtype.itemsize
            for axis in shape:
                size *= axis
            if dtype.hasobject or size != len(raw) - inside.tell() or size > LARGEST_ARRAY:
                raise ValueError(f"{len(raw) - inside.tell()} bytes for {dtype} {shape}")
            if not size:
                return np.zeros(shape, dtype)
            flat: Array = np.frombuffer(raw, dtype, offset=inside.tell())
            return flat.reshape(shape, order="F" if order else "C")
        except _BROKEN as error:
            found = f"{type(error).__name__}: {error}"
            raise self._bad(f"the array {safe(name, 80)} cannot be read", found) from None
