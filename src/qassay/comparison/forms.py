"""The canonical form once more, brought so far that two packings can be set side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.encodings.layers.canonical import Canonical, Floats

Ints = npt.NDArray[np.int16]


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """Some rows of a weight: every part of a row beside its codes.

    ::

        w[n, k] = (table[codes[n, k]]  or  codes[n, k] - zeros[n, g]) * scales[n, g]
                  + minimums[n, g],   g = groups[k]

    Attributes:
        codes: Unsigned integers, int16 `[n, K]`.
        scales: float32 `[n, G]`; without the scale of the whole tensor where `Weight.whole` has it.
        zeros: int16 `[n, G]`; None with a table.
        minimums: float32 `[n, G]`, or None.
        groups: int32 `[K]`.
        table: float32, what each code stands for, or None.
    """

    codes: Ints
    scales: Floats
    groups: npt.NDArray[np.int32]
    zeros: Ints | None = None
    minimums: Floats | None = None
    table: Floats | None = None

    def part(self, name: str) -> npt.NDArray[Any] | None:
        """Return `codes`, `scales`, `zeros` or `minimums`."""
        found: npt.NDArray[Any] | None = getattr(self, name)
        return found

    def spread(self) -> Form:
        """Return the same weights with groups of one column: everything is `[n, K]`."""
        wide = np.arange(self.codes.shape[1], dtype=np.int32)
        return replace(
            self,
            scales=self.scales[:, self.groups],
            zeros=None if self.zeros is None else self.zeros[:, self.groups],
            minimums=None if self.minimums is None else self.minimums[:, self.groups],
            groups=wide,
        )

    def centred(self) -> npt.NDArray[Any]:
        """Return what the codes stand for before the scale, `[n, K]`."""
        if self.table is not None:
            return self.table[self.codes]
        return self.codes if self.zeros is None else self.codes - self.zeros[:, self.groups]

    def values(self) -> Floats:
        """Return the weights, float32 `[n, K]`."""
        # 0 * inf is what a scale that is not finite decodes to: it is the answer, not a fault.
        with np.errstate(invalid="ignore", over="ignore"):
            values = self.centred().astype(np.float32) * self.scales[:, self.groups]
            if self.minimums is not None:
                values += self.minimums[:, self.groups]
        return np.asarray(values, np.float32)


def form_of(rows: Canonical, bits: int) -> Form:
    """Return rows in canonical form as a `Form`.

    Signed codes are counted from their lowest, and so is a zero point that is not written down:
    two families that keep the same integers in another offset come out the same.
    """
    codes = rows.codes.astype(np.int16)
    scales = _per_row(np.asarray(rows.scales, np.float32), rows.row_groups)
    minimums = None if rows.minimums is None else _per_row(rows.minimums, rows.row_groups)
    zeros = None
    if rows.table is None:
        up = np.int16(1 << (bits - 1)) if rows.codes.dtype.kind == "i" else np.int16(0)
        codes = codes + up
        stored = np.zeros_like(rows.scales, np.int16) if rows.zeros is None else rows.zeros
        zeros = _per_row(stored.astype(np.int16) + up, rows.row_groups)
    return Form(codes, scales, rows.groups, zeros, minimums, rows.table)


def _per_row(
    values: npt.NDArray[Any], row_groups: npt.NDArray[np.int32] | None
) -> npt.NDArray[Any]:
    return values if row_groups is None else values[row_groups]


def same(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where two arrays are the same; NaN is the same as NaN, and 0 as -0."""
    equal: npt.NDArray[np.bool_] = a == b
    if a.dtype.kind == "f":
        equal |= np.isnan(a) & np.isnan(b)
    return equal


def plain_zero(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return floats whose bytes are the same where `same` says so: one zero, one NaN."""
    if values.dtype.kind != "f":
        return values
    with np.errstate(invalid="ignore"):  # a signalling NaN is an answer, not a fault
        cleaned: npt.NDArray[Any] = values + values.dtype.type(0)
    cleaned[np.isnan(cleaned)] = np.nan
    return cleaned


def steps_of(table: Floats) -> Floats:
    """Return the step at each code of a table: how far it is to the nearest other value."""
    finite = np.unique(table[np.isfinite(table)])
    steps = np.ones_like(table)
    if finite.size > 1:
        gaps = np.diff(finite)
        nearest = np.minimum(np.append(gaps, np.inf), np.insert(gaps, 0, np.inf))
        at = np.clip(np.searchsorted(finite, np.nan_to_num(table)), 0, finite.size - 1)
        steps = nearest[at].astype(np.float32)
    return steps


def ranks_of(table: Floats) -> npt.NDArray[np.int16]:
    """Return the place of each code's value in ascending order: neighbours differ by one."""
    order = np.unique(table[np.isfinite(table)])
    return np.asarray(np.searchsorted(order, np.nan_to_num(table)), np.int16)
