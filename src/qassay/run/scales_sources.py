"""What `qassay scales` reads: float tensors of a model, an array in a .npy file, or one block."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from qassay.containers.opening import display_name
from qassay.containers.sources import MmapSource
from qassay.core.container import Container, Skipped, StoredTensor
from qassay.core.errors import InputError, UsageError
from qassay.core.source import Source
from qassay.core.text import safe
from qassay.encodings.base import Floats, PlainEncoding
from qassay.encodings.registry import open_with_encodings
from qassay.run.audit import why_not_read
from qassay.runtimes.arithmetic_published import sine_block
from qassay.runtimes.scale_storage_formats import SUPER_BLOCK

BLOCK = 32
"""Weights that share a scale."""

NPY_MAGIC = b"\x93NUMPY"
_PIECE = 1 << 19
"""Weights worked on at a time. A longer row is cut after a whole number of super-blocks, always
at the same places, so that nothing depends on the cut."""


@dataclass(frozen=True, slots=True)
class Weights:
    """One tensor to try.

    Attributes:
        name: Its name; "" where the source is no more than one array.
        shape: Row-major.
    """

    name: str
    shape: tuple[int, ...]
    _stored: StoredTensor | None = None
    _array: npt.NDArray[np.floating] | None = None

    @property
    def size(self) -> int:
        """Number of weights."""
        return int(np.prod(self.shape, dtype=object)) if self.shape else 1

    @property
    def row(self) -> int:
        """Weights in a row."""
        return self.shape[-1] if self.shape else 1

    def read(self, start: int, count: int) -> Floats:
        """Return `count` weights from the flat index `start` on, as float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            if self._array is not None:
                return np.asarray(self._array.reshape(-1)[start : start + count], np.float32)
            stored = self._stored
            assert stored is not None  # noqa: S101
            encoding, _ = why_not_read(stored)
            assert encoding is not None  # noqa: S101
            size = encoding.block_bytes
            raw = stored.source.read(stored.offset + start * size, count * size)
            return encoding.dequantize(np.ascontiguousarray(raw))

    def pieces(self) -> Iterator[Floats]:
        """Yield all weights in order, as `[n, K]` rows or pieces of one row too long to hold."""
        row = self.row
        if row <= _PIECE:
            step = _PIECE // row
            for first in range(0, self.size // row, step):
                rows = min(step, self.size // row - first)
                yield self.read(first * row, rows * row).reshape(rows, row)
            return
        whole = _PIECE // (BLOCK * SUPER_BLOCK) * BLOCK * SUPER_BLOCK
        for first in range(0, self.size, row):
            for within in range(0, row, whole):
                yield self.read(first + within, min(whole, row - within))[None, :]


@dataclass(slots=True)
class ScalesSource:
    """What was named, opened.

    Attributes:
        path: As reports name it.
        format: `gguf`, `safetensors`, `folder`, `npy`, or `published`.
        nbytes: Bytes of its files.
        tensors: What can be tried, in file order.
        left_out: Tensors that are no matter for the experiment, and why.
        unread: Tensors and files that could not be read.
        listed: Tensors that the source lists.
    """

    path: str
    format: str
    nbytes: int = 0
    tensors: list[Weights] = field(default_factory=list)
    left_out: list[Skipped] = field(default_factory=list)
    unread: list[Skipped] = field(default_factory=list)
    listed: int = 1
    _open: list[Container | Source] = field(default_factory=list)

    def close(self) -> None:
        """Close every file."""
        for one in self._open:
            one.close()


def published() -> ScalesSource:
    """Return the block of the published experiment, `3 sin(0.7 i)`, as a source."""
    block = sine_block()
    return ScalesSource(
        "3*sin(0.7*i), i = 0..31", "published", block.nbytes, [Weights("", (32,), _array=block)]
    )


def open_source(path: str | os.PathLike[str], tensor: str | None = None) -> ScalesSource:
    """Open a model, or a .npy file, for the experiment.

    Args:
        path: A safetensors or GGUF file of floats, a folder of them, or a .npy file.
        tensor: The only tensor to try; by default those of two axes and more.

    Raises:
        InputError: It cannot be read.
        UsageError: It holds no such tensor, or nothing to try.
    """
    place = Path(path)
    source = _npy(place) if _is_npy(place) else _model(place, tensor)
    if tensor is not None and source.format == "npy":
        source.close()
        raise UsageError(
            "a .npy file holds one array without a name",
            path=source.path,
            hint="leave out --tensor",
        )
    if not source.tensors and not source.unread:
        reasons = dict.fromkeys(skip.reason for skip in source.left_out)
        source.close()
        raise UsageError(
            "there is nothing here to try",
            path=source.path,
            expected=f"float tensors with rows of a multiple of {BLOCK} weights",
            found="; ".join(reasons) or "no tensors",
        )
    return source


def _model(place: Path, tensor: str | None) -> ScalesSource:
    container = open_with_encodings(place)
    source = ScalesSource(
        container.path,
        container.format,
        container.nbytes,
        unread=list(container.skipped),
        listed=len(container.tensors),
        _open=[container],
    )
    try:
        chosen = _chosen(container, tensor)
    except UsageError:
        container.close()
        raise
    for stored in chosen:
        encoding, reason = why_not_read(stored)
        if encoding is None:
            source.unread.append(Skipped(stored.name, reason))
            continue
        why = _why_left_out(stored, encoding.kind, named=tensor is not None)
        if why or not issubclass(encoding, PlainEncoding):
            source.left_out.append(Skipped(stored.name, why))
        else:
            source.tensors.append(Weights(stored.name, stored.shape, stored))
    return source


def _chosen(container: Container, tensor: str | None) -> list[StoredTensor]:
    if tensor is None:
        return container.tensors
    found = [stored for stored in container.tensors if stored.name == tensor]
    if not found:
        raise UsageError(
            f"there is no tensor called {safe(tensor)}",
            path=container.path,
            hint="`qassay inspect` lists their names",
        )
    return found[:1]


def _why_left_out(stored: StoredTensor, kind: str, *, named: bool) -> str:
    """Return why a readable tensor is not tried, "" if it is."""
    if stored.part_of:
        return "a part of a weight that is quantized already"
    if kind == "block":
        return "quantized already"
    if kind == "integer":
        return "integers"
    if stored.size == 0:
        return "empty"
    if len(stored.shape) < 2 and not named:
        return "one axis: such tensors are not quantized"
    if not stored.shape or stored.shape[-1] % BLOCK:
        return f"rows are no whole number of blocks of {BLOCK}"
    return ""


def _is_npy(place: Path) -> bool:
    try:
        if not place.is_file():
            return False
        with place.open("rb") as file:
            return file.read(len(NPY_MAGIC)) == NPY_MAGIC
    except OSError:
        return False


def _npy(place: Path) -> ScalesSource:
    """Open a NumPy array; nothing in it is ever executed, and its header must fit its size."""
    name = display_name(place)
    file = MmapSource(place, name)
    try:
        array = np.load(place, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        file.close()
        raise InputError(
            "this NumPy array cannot be read",
            path=name,
            expected="an array of floats, as numpy.save writes it",
            found=safe(f"{type(error).__name__}: {error}"),
        ) from error
    if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
        file.close()
        raise UsageError(
            "this array holds no floats",
            path=name,
            expected="float16, float32 or float64",
            found=safe(str(getattr(array, "dtype", type(array).__name__))),
            hint="save the weights as float32",
        )
    source = ScalesSource(name, "npy", file.size, _open=[file])
    stored_shape = array.shape
    if not array.size:
        source.left_out.append(Skipped(name, "empty"))
    elif not stored_shape or stored_shape[-1] % BLOCK:
        source.left_out.append(Skipped(name, f"rows are no whole number of blocks of {BLOCK}"))
    else:
        source.tensors.append(Weights("", stored_shape, _array=np.asarray(array, order="C")))
    return source
