"""The one form to which every quantized matrix can be brought, whatever its packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Canonical:
    """Some rows of a quantized matrix, unpacked.

    ::

        w[n, k] = (table[q[n, k]]  or  q[n, k] - zeros[r, g]) * scales[r, g] + minimums[r, g]
        with r = row_groups[n], g = groups[k]

    Attributes:
        codes: The integers q as the formula of the encoding takes them, `[N, K]`, uint8 or int8
            (int16 where neither holds them).
        scales: float32 `[R, G]`, a scale of the whole tensor already multiplied in.
        zeros: int16 `[R, G]`, in units of codes; None where codes stand for themselves.
        minimums: float32 `[R, G]`, added; None where the encoding has none.
        groups: Which column of `scales` each of the K columns takes, int32 `[K]`.
        row_groups: Which row of `scales` each of the N rows takes, int32 `[N]`; None: its own.
        table: What each unsigned code stands for, float32 `[2**bits]`; None: itself.
    """

    codes: npt.NDArray[Any]
    scales: Floats
    groups: npt.NDArray[np.int32]
    zeros: npt.NDArray[np.int16] | None = None
    minimums: Floats | None = None
    row_groups: npt.NDArray[np.int32] | None = None
    table: Floats | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """`(N, K)`."""
        rows, columns = self.codes.shape
        return int(rows), int(columns)

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return something of which there is one a group, `[R, G]`, for each weight, `[N, K]`."""
        rows = values if self.row_groups is None else values[self.row_groups]
        return rows[:, self.groups]

    def centred(self) -> npt.NDArray[Any]:
        """Return what the codes stand for before the scale: int16 `[N, K]`, float32 by a table."""
        if self.table is not None:
            return self.table[self.codes]
        stored = self.codes.astype(np.int16)
        return stored if self.zeros is None else stored - self.spread(self.zeros)

    def dequantize(self) -> Floats:
        """Return the weights, float32 `[N, K]`; every step is rounded to float32."""
        # 0 * inf is what a scale that is not finite decodes to: it is the answer, not a fault.
        with np.errstate(invalid="ignore", over="ignore"):
            values = self.centred().astype(np.float32) * self.spread(self.scales)
            if self.minimums is not None:
                values += self.spread(self.minimums)
        return np.asarray(values, np.float32)
