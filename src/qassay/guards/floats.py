"""Arrays of any library as float32, without importing that library."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.containers.ggml_types import ggml_type
from qassay.core.container import StoredType
from qassay.core.errors import UsageError
from qassay.core.source import Bytes
from qassay.core.text import safe
from qassay.encodings.base import Floats

_LABELS = {"float32": 0, "float16": 1, "float64": 28, "bfloat16": 30}
"""Number of the ggml type by kind."""
_BEYOND_NUMPY = ("bfloat16", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """An array of floats, converted piece by piece.

    Attributes:
        shape: As given; a scalar has no axes.
        kind: Name of the type of its elements: `float32`, `bfloat16`.
    """

    shape: tuple[int, ...]
    kind: str
    _flat: npt.NDArray[Any]

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._flat.size

    def floats(self, start: int, count: int) -> Floats:
        """Return elements from the flat index `start` on as float32; too large becomes infinite."""
        piece = self._flat[start : start + count]
        if self.kind == "bfloat16" and piece.dtype == np.uint16:
            return (piece.astype(np.uint32) << 16).view(np.float32)
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(piece.astype(np.float32))

    def was_finite(self, place: int) -> bool:
        """Tell whether the element at a flat index is finite as given, whatever float32 holds."""
        return self.kind == "float64" and bool(np.isfinite(self._flat[place]))

    def stored(self) -> tuple[StoredType, Bytes]:
        """Return the elements as a file would hold them; not copied where they may stay as is."""
        label = _LABELS.get(self.kind)
        flat = self._flat
        if label is None:
            label, flat = 0, self.floats(0, self.size)
        elif self.kind != "bfloat16":
            flat = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        return ggml_type(label), flat.view(np.uint8)


def as_array(given: Any) -> Array:
    """Return what a NumPy array, a torch tensor, or numbers in lists hold.

    Raises:
        UsageError: It holds no floats.
    """
    if type(given).__module__.partition(".")[0] == "torch" or _is_torch(given):
        return _of_torch(given)
    array = given if isinstance(given, np.ndarray) else np.asarray(given)
    kind = array.dtype.name
    if array.dtype.kind != "f" and kind not in _BEYOND_NUMPY:
        raise _no_floats(kind)
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind == "bfloat16":
        flat = flat.view(np.uint16)
    elif kind == "longdouble" or array.dtype.itemsize > 8:
        kind, flat = "float64", flat.astype(np.float64)
    return Array(array.shape, kind, flat)


def _is_torch(given: Any) -> bool:
    """Tell whether it is a torch tensor, a subclass such as Parameter included."""
    torch = sys.modules.get("torch")
    tensor = getattr(torch, "Tensor", None)
    return isinstance(tensor, type) and isinstance(given, tensor)


def _of_torch(given: Any) -> Array:
    kind = str(given.dtype).rpartition(".")[2]
    if kind not in ("float16", "float32", "float64", *_BEYOND_NUMPY):
        raise _no_floats(f"torch.{kind}")
    tensor = given.detach().cpu().contiguous()
    shape = tuple(int(axis) for axis in tensor.shape)
    if kind == "bfloat16":
        bits = tensor.view(sys.modules["torch"].int16).numpy()
        return Array(shape, kind, bits.view(np.uint16).reshape(-1))
    if kind in _BEYOND_NUMPY:
        tensor = tensor.float()
    return Array(shape, kind, tensor.numpy().reshape(-1))


def _no_floats(found: str) -> UsageError:
    return UsageError(
        "only floats can be checked before quantizing",
        expected="float16, float32, float64 or bfloat16",
        found=safe(found),
        hint="pass the weights themselves, not codes or packed bytes",
    )
