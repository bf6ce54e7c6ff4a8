"""What was measured of one weight: sums, and what follows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.profile import Histogram, along
from qassay.kernels.cost import Doubles, Of

_SUMMED = (
    Of.COMPARED, Of.HIDDEN, Of.BORN, Of.BOTH, Of.ERR2, Of.REF2, Of.CROSS, Of.ERR, Of.REF,
    Of.BEST2, Of.PAR2, Of.NEGATIVE, Of.NEGATIVE_BIAS, Of.NEGATIVE_EXCESS, Of.POSITIVE,
    Of.POSITIVE_BIAS, Of.POSITIVE_EXCESS, Of.ASTRAY, Of.CLIPPED,
)  # fmt: skip
_KEPT = (Of.ERR2, Of.REF2, Of.BEST2, Of.PAR2, Of.COMPARED, Of.GROUP, Of.GROUP_AT)
TINY_ROW = 1e-4
"""Of what the usual row should cost (squared): what any row may cost."""
QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)
_WORST = 8


@dataclass(slots=True)
class Cost:
    """The error of one weight against its source.

    Attributes:
        gridded: Whether the second side is quantized, so that steps and grids mean something.
        sums: By `Of`, a sum for each piece of rows; added exactly when asked for.
        rows: By `Of`, one number a row.
        largest: Largest |e|, with row and column.
        steps: The same in steps of the weight's own group.
        hidden: Where first a value is finite only when quantized.
        born: Where first the reverse.
        histogram: How errors are spread over a step; None where that was not looked at.
    """

    gridded: bool = True
    sums: dict[Of, list[float]] = field(default_factory=lambda: {name: [] for name in _SUMMED})
    rows: dict[Of, list[npt.NDArray[np.float64]]] = field(
        default_factory=lambda: {name: [] for name in _KEPT}
    )
    largest: tuple[float, int, int] = (0.0, 0, 0)
    steps: tuple[float, int, int] = (0.0, 0, 0)
    hidden: int | None = None
    born: int | None = None
    histogram: Histogram | None = None
    _floor: float | None = None

    def add(self, start: int, rows: Doubles) -> None:
        """Add the measures of rows `start` and following, in order."""
        self._floor = None
        totals = np.einsum("rm->m", rows).tolist()  # a third of what `sum` takes for so few columns
        for name in _SUMMED:
            self.sums[name].append(totals[name])
        for name in _KEPT:
            self.rows[name].append(rows[:, name].copy())
        for name, word in ((Of.LARGEST, "largest"), (Of.STEPS, "steps")):
            at = int(np.argmax(rows[:, name]))
            value = float(rows[at, name])
            if value > getattr(self, word)[0]:
                setattr(self, word, (value, start + at, int(rows[at, name + 1])))
        for name, word in ((Of.HIDDEN, "hidden"), (Of.BORN, "born")):
            if totals[name] and getattr(self, word) is None:
                setattr(self, word, start + int(np.argmax(rows[:, name] != 0)))

    def total(self, name: Of) -> float:
        """Return a sum over all rows."""
        parts = self.sums[name]
        return math.inf if math.inf in parts else math.fsum(parts)

    def count(self, name: Of) -> int:
        """Return the same as an integer."""
        return int(self.total(name))

    def each(self, name: Of) -> npt.NDArray[np.float64]:
        """Return one number a row."""
        parts = self.rows[name]
        if len(parts) != 1:
            parts[:] = [np.concatenate(parts) if parts else np.zeros(0)]
        return parts[0]

    @property
    def rmse(self) -> float:
        """Root of the mean squared error."""
        return _root(self.total(Of.ERR2), self.total(Of.COMPARED))

    @property
    def ratio(self) -> float:
        """RMSE as multiples of what the scheme should cost on these weights."""
        return _ratio(self.total(Of.ERR2), self.total(Of.PAR2))

    @property
    def code_ratio(self) -> float:
        """RMSE as multiples of what the nearest codes would cost, the scales as stored."""
        return _ratio(self.total(Of.ERR2), self.total(Of.BEST2))

    @property
    def scale_ratio(self) -> float:
        """What the nearest codes would cost, as multiples of what the scheme should cost."""
        return _ratio(self.total(Of.BEST2), self.total(Of.PAR2))

    @property
    def snr_db(self) -> float | None:
        """Signal to noise: infinite where nothing was lost, None where the source is zero."""
        return _decibels(self.total(Of.REF2), self.total(Of.ERR2))

    @property
    def sqnr_db(self) -> float | None:
        """The same after taking both means out, as tpu-mlir's `npz_tool` has it."""
        n = max(1.0, self.total(Of.COMPARED))
        signal = self.total(Of.REF2) - self.total(Of.REF) ** 2 / n
        noise = self.total(Of.ERR2) - self.total(Of.ERR) ** 2 / n
        return _decibels(max(signal, 0.0), max(noise, 0.0))

    @property
    def cosine(self) -> float | None:
        """Cosine of the two tensors; 1 where both are zero, None where one is."""
        one = self.total(Of.REF2)
        two = one + 2 * self.total(Of.CROSS) + self.total(Of.ERR2)
        if one <= 0 or two <= 0:
            return 1.0 if one <= 0 and two <= 0 else None
        return max(-1.0, min(1.0, (one + self.total(Of.CROSS)) / math.sqrt(one) / math.sqrt(two)))

    @property
    def euclid(self) -> float:
        """`1 - |w - w'| / |(w + w') / 2|`, as `npz_tool` has it."""
        both = 4 * self.total(Of.REF2) + 4 * self.total(Of.CROSS) + self.total(Of.ERR2)
        return 1 - math.sqrt(self.total(Of.ERR2)) / (math.sqrt(max(both, 0.0)) / 2 + 1e-7)

    @property
    def relative(self) -> float | None:
        """Norm of the error over the norm of the source."""
        return _root(self.total(Of.ERR2), self.total(Of.REF2)) if self.total(Of.REF2) else None

    def row_ratios(self) -> npt.NDArray[np.float64]:
        """Return RMSE of each row as multiples of what the row should cost.

        Rows much smaller than the usual one share its floor: a row of zeros that decodes to
        something tiny is no failure, nor one whose scale is at the end of its float type's range.
        """
        cost, par = self.each(Of.ERR2), self.each(Of.PAR2)
        with np.errstate(all="ignore"):
            found = np.sqrt(cost / np.maximum(par, self.floor))
        return np.where(cost > 0, found, 0.0)

    def group_ratios(self) -> npt.NDArray[np.float64]:
        """Return RMSE of each row's worst group as multiples of what it should cost.

        A group may cost what its row should on average, and a row its floor.
        """
        worst, par, floor = self.each(Of.GROUP), self.each(Of.PAR2), self.floor
        with np.errstate(all="ignore"):
            share = np.where(par < floor, par / floor, 1.0)
            return np.sqrt(worst * share)

    @property
    def group(self) -> tuple[float, int, int]:
        """The worst group of all: its ratio, its row, and its first column."""
        ratios = self.group_ratios()
        if not ratios.any():
            return 0.0, 0, 0
        at = int(np.argmax(ratios))
        return float(ratios[at]), at, int(self.each(Of.GROUP_AT)[at])

    @property
    def floor(self) -> float:
        """What any row may cost, squared, whatever it should cost by itself."""
        if self._floor is None:
            par = self.each(Of.PAR2)
            self._floor = TINY_ROW * float(np.median(par)) if par.size else 0.0
        return self._floor

    @property
    def par(self) -> float:
        """What a weight should cost on average, squared."""
        return self.total(Of.PAR2) / max(1.0, self.total(Of.COMPARED))

    def row_errors(self) -> npt.NDArray[np.float64]:
        """Return each row's relative error; the norm of small rows counts as 1/1000 of the mean."""
        cost, norm = self.each(Of.ERR2), self.each(Of.REF2)
        floor = 1e-6 * float(norm.mean()) if norm.size else 0.0
        with np.errstate(all="ignore"):
            found = np.sqrt(cost / np.maximum(norm, floor))
        return np.where(cost > 0, found, 0.0)

    def bias(self, sign: Of, *, excess: bool = False) -> float | None:
        """Return the mean error in steps over weights of one sign (`NEGATIVE`, `POSITIVE`)."""
        seen = self.total(sign)
        return self.total(Of(sign + (2 if excess else 1))) / seen if seen else None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; sums are rounded to the digits that both kernels share."""
        errors = self.row_errors()
        told: dict[str, Any] = {
            "compared": self.count(Of.COMPARED),
            "nonfinite": {
                "hidden": self.count(Of.HIDDEN),
                "born": self.count(Of.BORN),
                "both": self.count(Of.BOTH),
            },
            "rmse": rounded(self.rmse),
            "max_error": _place(self.largest),
            "relative_error": rounded(self.relative),
            "snr_db": rounded(self.snr_db),
            "cosine": rounded(self.cosine, 9),
            "euclid": rounded(self.euclid),
            "sqnr_db": rounded(self.sqnr_db),
            "rows": {
                "relative_error": _quantiles(errors),
                "worst": [int(at) for at in _worst(errors)],
                "profile": along(errors),
            },
            "passes_at": {"absolute": rounded(self.largest[0]), "cosine": rounded(self.cosine, 9),
                          "euclid": rounded(self.euclid), "sqnr_db": rounded(self.sqnr_db)},
        }  # fmt: skip
        if not self.gridded:
            return told
        ratios = self.row_ratios()
        told["max_steps"] = _place(self.steps)
        told["passes_at"]["steps"] = rounded(self.steps[0])
        told["expected"] = {
            "rmse": rounded(_root(self.total(Of.PAR2), self.total(Of.COMPARED))),
            "attainable_rmse": rounded(_root(self.total(Of.BEST2), self.total(Of.COMPARED))),
            "ratio": rounded(self.ratio),
            "code_ratio": rounded(self.code_ratio),
            "scale_ratio": rounded(self.scale_ratio),
            "worst_group": _place(self.group),
        }
        told["rows"]["ratio"] = _quantiles(ratios)
        told["bias_steps"] = {
            "negative": rounded(self.bias(Of.NEGATIVE)),
            "positive": rounded(self.bias(Of.POSITIVE)),
        }
        told["astray"] = self.count(Of.ASTRAY)
        told["clipped"] = self.count(Of.CLIPPED)
        if self.histogram is not None:
            told["histogram"] = self.histogram.to_dict()
        return told


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Return a number with so many significant digits."""
    if value is None or not math.isfinite(value) or value == 0:
        return value
    return float(f"{value:.{digits - 1}e}")


def _place(found: tuple[float, int, int]) -> dict[str, Any]:
    return {"value": rounded(found[0]), "row": found[1], "column": found[2]}


def _quantiles(values: npt.NDArray[np.float64]) -> list[float | None]:
    if not values.size:
        return []
    with np.errstate(invalid="ignore"):
        return [rounded(float(each)) for each in np.quantile(values, QUANTILES, method="lower")]


def _worst(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    falling = -values
    if values.size > _WORST:
        least = np.partition(falling, _WORST - 1)[_WORST - 1]
        chosen = np.flatnonzero(~(falling > least))  # ties with it, too; and all if it is NaN
    else:
        chosen = np.arange(values.size)
    return chosen[np.argsort(falling[chosen], kind="stable")][:_WORST].astype(np.int64)


def _root(total: float, count: float) -> float:
    return math.sqrt(total / count) if count > 0 else 0.0


def _ratio(one: float, two: float) -> float:
    if one <= 0:
        return 0.0
    return math.sqrt(one / two) if two > 0 else math.inf


def _decibels(signal: float, noise: float) -> float | None:
    if noise <= 0:
        return math.inf if signal > 0 else None
    if math.isinf(noise) or math.isinf(signal):
        return None
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf
