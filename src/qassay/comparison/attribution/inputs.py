"""The rows of input that were run: what kind each is, and what a device may do to them first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.runtimes.sophgo.bfloat16 import bf16

Floats = npt.NDArray[np.float32]
Index = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

MODES = {
    "": "as it is",
    "int8-row-even": "quantized to int8 with one scale a row, ties to even",
    "int8-row-away": "quantized to int8 with one scale a row, ties away from zero",
    "int8-tensor-even": "quantized to int8 with one scale for all rows, ties to even",
    "int8-tensor-away": "quantized to int8 with one scale for all rows, ties away from zero",
    "int8-group-even": "quantized to int8 with one scale a group, ties to even",
    "int8-group-away": "quantized to int8 with one scale a group, ties away from zero",
}
"""What may be done to an input; `+f32` behind a mode: not rounded to bf16 again afterwards."""


@dataclass(slots=True, eq=False)
class Inputs:
    """Rows of input.

    Attributes:
        x: float32 `[M, K]`, finite.
        group: Weights of a row that share a scale.
    """

    x: Floats
    group: int
    _made: dict[str, Floats] = field(default_factory=dict)
    _norms: Floats | None = None

    @property
    def norms(self) -> Floats:
        """Euclidean length of each row, `[M, 1]`."""
        if self._norms is None:
            wide = np.linalg.norm(self.x.astype(np.float64), axis=1, keepdims=True)
            self._norms = wide.astype(np.float32)
        return self._norms

    @property
    def nonzero(self) -> Index:
        """How many features of each row are not zero."""
        counts: Index = np.count_nonzero(self.x, axis=1)
        return counts

    @property
    def exact(self) -> Mask:
        """Rows in which nothing is added up: at most one feature is not zero."""
        return self.nonzero <= 1

    def dense_rows(self) -> int:
        """Return how many rows add up many products, no two of them alike."""
        return len(np.unique(self.x[self.nonzero > 1], axis=0))

    def values(self, mode: str) -> Floats:
        """Return the rows as the device multiplies them, values of bf16 unless the mode says."""
        made = self._made.get(mode)
        if made is None:
            made = self._made[mode] = self._make(mode)
        return made

    def _make(self, mode: str) -> Floats:
        kind, _, wide = mode.partition("+")
        rounded = bf16(self.x)
        if not kind:
            return rounded
        blocks = rounded
        if kind.startswith("int8-group"):
            m, k = rounded.shape
            group = self.group if self.group and k % self.group == 0 else k
            blocks = rounded.reshape(m * (k // group), group)
        axis = None if "tensor" in kind else 1
        largest = np.abs(blocks).max(axis=axis, keepdims=True, initial=0)
        scale = (np.where(largest > 0, largest, 1) / np.float32(127)).astype(np.float32)
        ratio = blocks / scale
        codes = np.rint(ratio) if kind.endswith("even") else _away(ratio)
        back = (codes * scale).astype(np.float32).reshape(rounded.shape)
        return back if wide else bf16(back)


def _away(values: Floats) -> Floats:
    done: Floats = np.copysign(np.floor(np.abs(values) + np.float32(0.5)), values)
    return done.astype(np.float32)


def spread_over(total: int, wanted: int) -> Index:
    """Return at most `wanted` of `total` places, evenly spread, first and last among them."""
    if total <= wanted:
        return np.arange(total)
    return np.unique(np.linspace(0, total - 1, wanted).round().astype(np.intp))


def screening_rows(inputs: Inputs) -> Index:
    """Return some 44 rows that stand for all: zeros, one-hots, dense ones, the loudest."""
    nonzero = inputs.nonzero
    kinds: list[npt.NDArray[Any]] = [
        np.flatnonzero(nonzero == 0)[:1],
        np.flatnonzero(nonzero == 1),
        np.flatnonzero(nonzero > 1),
    ]
    chosen = [
        kind[spread_over(len(kind), most)] for kind, most in zip(kinds, (1, 24, 18), strict=True)
    ]
    loudest = np.argmax(inputs.norms[:, 0]) if len(inputs.x) else 0
    return np.unique(np.concatenate([*chosen, [loudest]]).astype(np.intp))[: len(inputs.x)]
