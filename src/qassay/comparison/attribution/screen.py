"""A small part of the outputs, on which predictions are tried first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.evidence import tolerance
from qassay.comparison.attribution.inputs import Inputs, spread_over
from qassay.comparison.attribution.setup import Floats, Index, Setup
from qassay.comparison.attribution.sums import Sums
from qassay.runtimes.sophgo.arithmetic import Model

Mask = npt.NDArray[np.bool_]
Scores = npt.NDArray[np.float64]

_NEAR = np.float32(2**-7)
_PAIR_ELEMENTS = 48


@dataclass(slots=True, eq=False)
class Screen:
    """A small part of the outputs.

    Attributes:
        sums: Predicts it.
        model: The arithmetic that is predicted.
        y: The outputs there, `[m, n]`.
        clean: What should be there.
        size: |x| * rms(w) there.
        known: Which of them count.
        shares: Channels whose difference stands for that of all.
    """

    sums: Sums
    model: Model
    y: Floats
    clean: Floats
    size: Floats
    known: Mask
    shares: slice
    _got: Scores = field(init=False)
    _whole: float = field(init=False)

    @np.errstate(all="ignore")
    def __post_init__(self) -> None:
        # As `evidence.explained`, of which only the prediction is not the same for all.
        size = np.maximum(self.size[:, self.shares], np.float32(1e-30))
        clean = self.clean[:, self.shares]
        here = np.where(self.known, self.y, self.clean)[:, self.shares]
        got, plain = (np.asarray(each / size, np.float64) for each in (here, clean))
        power = float(np.sum(plain * plain))
        factor = float(np.sum(plain * got)) / power if power > 0 else 0.0
        self._got, self._whole = got, float(np.sum(np.square(got - factor * plain)))

    def look(self, setups: Sequence[Setup], *, shares: bool = True) -> tuple[Scores, Scores]:
        """Return how good predictions are, `[J]` each.

        Args:
            setups: What is predicted.
            shares: Whether the second number is wanted.

        Returns:
            The share of outputs that are near the prediction, whatever the arithmetic; and which
            share of the difference from clean it explains.
        """
        p, bias = self.sums.predict(setups, self.model)
        with np.errstate(all="ignore"):
            allowed = tolerance(self.y, p, bias, self.size) + self.size * _NEAR
            good = (np.abs(self.y - p) <= allowed) & self.known
        total = max(1, int(np.count_nonzero(self.known)))
        near = np.asarray(np.count_nonzero(good, axis=(1, 2)) / total, np.float64)
        return near, self._explained(p) if shares else np.zeros(len(setups))

    @np.errstate(all="ignore")
    def _explained(self, p: Floats) -> Scores:
        size = np.maximum(self.size[:, self.shares], np.float32(1e-30))
        told = np.where(self.known, p, self.clean)[:, :, self.shares] / size
        rest = np.square(self._got - told.astype(np.float64)).sum(axis=(1, 2))
        if not np.isfinite(self._whole) or self._whole <= 0:
            return np.zeros(len(p))
        return np.where(np.isfinite(rest), 1 - rest / self._whole, 0.0)

    def part(self, true: Setup, inputs: Inputs) -> Screen:
        """Return a part of the screen that nearly every wrong pair fails."""
        nonzero = inputs.nonzero[self.sums.rows]
        dense, single = np.flatnonzero(nonzero > 1), np.flatnonzero(nonzero == 1)
        rows = np.concatenate([dense[spread_over(len(dense), 4)],
                               single[spread_over(len(single), 4)],
                               np.flatnonzero(nonzero == 0)[:1]])  # fmt: skip
        wanted = max(6, -(-_PAIR_ELEMENTS // max(1, len(rows))))
        columns = np.arange(min(wanted, len(self.sums.channels)))
        at = np.ix_(rows, columns)
        sums = Sums(true, inputs, self.sums.rows[rows], self.sums.channels[columns])
        return Screen(sums, self.model, self.y[at], self.clean[at], self.size[at], self.known[at],
                      slice(None))  # fmt: skip


def screened(
    true: Setup, inputs: Inputs, rows: Index, channels: Index, model: Model, outputs: Floats,
    clean: Floats, size: Floats, known: Mask, shares: slice,
) -> Screen:  # fmt: skip
    """Return the screen of some rows and channels; arrays are those of all, `[M, N]`."""
    at = np.ix_(rows, channels)
    sums = Sums(true, inputs, rows, channels)
    return Screen(sums, model, outputs[at], clean[at], size[at], known[at], shares)
