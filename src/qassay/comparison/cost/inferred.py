"""Float tensors whose values lie on the grid of a quantizer: weights that were rounded in place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.comparison.forms import Form
from qassay.comparison.weights import Plain, Whole
from qassay.core.errors import InputError

SIZES = (16, 32, 64, 128, 256)
_LOOKED = 64
_LEVELS = 256
_SHARE = 0.98


@dataclass(frozen=True, slots=True, eq=False)
class Inferred:
    """A float matrix in which each group holds few values, evenly spaced.

    Attributes:
        plain: The tensor.
        group: Columns that share a step.
        bits: Of a code.
    """

    plain: Plain
    group: int
    bits: int

    @property
    def name(self) -> str:
        """The tensor's name."""
        return self.plain.stored.name

    @property
    def path(self) -> str:
        """Its file."""
        return self.plain.stored.path

    @property
    def label(self) -> str:
        """What it looks like."""
        return f"{self.bits} bits in groups of {self.group}"

    @property
    def shape(self) -> tuple[int, ...]:
        """`(N, K)`."""
        return self.plain.shape

    @property
    def nbytes(self) -> int:
        """Stored bytes."""
        return self.plain.size * self.plain.encoding.block_bytes

    @property
    def whole(self) -> Whole | None:
        """No scale is kept apart."""
        return None

    def form(self, start: int, stop: int, *, local: bool) -> Form:
        """Return rows; raises `InputError` where they are on no grid."""
        del local
        found = form_of(_read(self.plain, start, stop), self.group)
        if found is None or found[1] > 1 << self.bits or found[2] < _SHARE:
            raise InputError("some of its rows lie on no grid")
        return found[0]


def _read(plain: Plain, start: int, stop: int) -> npt.NDArray[np.float64]:
    columns = plain.shape[-1]
    values = plain.read(start * columns, stop * columns)
    return np.asarray(values, np.float64).reshape(-1, columns)


def inferred(plain: Plain) -> Inferred | None:
    """Return the tensor as a quantized one, None where its values lie on no grid."""
    if len(plain.shape) < 2 or plain.encoding.kind != "float":
        return None
    columns = plain.shape[-1]
    rows = plain.size // max(1, columns)
    values = _read(plain, 0, min(rows, _LOOKED))
    for size in (columns, *reversed(SIZES)):
        if size > columns or columns % size or size < SIZES[0] or size > 1 << 16:
            continue
        found = form_of(values, size)
        if found is None or found[2] < _SHARE:
            continue
        # So few values that it is no accident: at most half as many as weights.
        if found[1] <= min(_LEVELS, size // 2):
            return Inferred(plain, size, max(1, (found[1] - 1).bit_length()))
    return None


def form_of(values: npt.NDArray[np.float64], size: int) -> tuple[Form, int, float] | None:
    """Return codes and steps of each group, the most levels of any, and the share on a grid."""
    if not np.isfinite(values).all():
        return None
    rows, columns = values.shape
    groups = values.reshape(rows, columns // size, size)
    ordered = np.sort(groups, axis=2)
    gaps = np.diff(ordered, axis=2)
    span = ordered[:, :, -1] - ordered[:, :, 0]
    # Values were rounded to their dtype: gaps below that are none.
    least = np.maximum(span * 2.0**-10, 1e-300)[:, :, None]
    step = np.where(gaps > least, gaps, np.inf).min(axis=2)
    step = np.where(np.isfinite(step), step, np.where(span > 0, span, 1.0))
    places = (groups - ordered[:, :, :1]) / step[:, :, None]
    codes = np.rint(places)
    near = (np.abs(places - codes) < 0.08).all(axis=2)
    levels = int(codes.max()) + 1
    if levels > _LEVELS:
        return None
    form = Form(
        codes=codes.reshape(rows, columns).astype(np.int16),
        scales=_refined(groups, codes, step),
        groups=(np.arange(columns) // size).astype(np.int32),
        zeros=np.zeros(step.shape, np.int16),
        minimums=ordered[:, :, 0].astype(np.float32),
    )
    return form, levels, float(near.mean())


def _refined(
    groups: npt.NDArray[np.float64], codes: npt.NDArray[np.float64], step: npt.NDArray[np.float64]
) -> npt.NDArray[np.float32]:
    """Return the step that fits all values of a group, not two neighbours alone."""
    top = codes.max(axis=2)
    span = groups.max(axis=2) - groups.min(axis=2)
    return np.where(top > 0, span / np.maximum(top, 1), step).astype(np.float32)
