"""What quantizing cost: the new values against the source's, measured while both are at hand.

Sums are taken in float64 over fixed units of rows and added exactly (`math.fsum`), so that
neither chunks nor threads show in them. Pairs with a value that is not finite are
left out of every sum and maximum and counted apart, on either side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Blocks, Encoding
from qassay.encodings.fields import Role

UNIT = 1 << 16
"""About as many weights are summed at once; a multiple of every block."""

Doubles = npt.NDArray[np.float64]


@dataclass(slots=True)
class RoundTrip:
    """The measured error of a tensor or of a part of one.

    Attributes:
        weights: How many were written.
        compared: Pairs in which both values are finite.
        nonfinite_source: NaN and infinities in the source.
        nonfinite_result: NaN and infinities that the new bytes decode to.
        max_error: Largest |new - source| among the compared.
        max_steps: The same in steps of each block's (or sub-block's) stored scale; None where
            the encoding has no uniform step, or no block has a scale.
        errors: Sums of squared errors, one a unit.
        signals: Sums of squared source values, one a unit.
    """

    weights: int = 0
    compared: int = 0
    nonfinite_source: int = 0
    nonfinite_result: int = 0
    max_error: float = 0.0
    max_steps: float | None = None
    errors: list[float] = field(default_factory=list)
    signals: list[float] = field(default_factory=list)

    def merge(self, other: RoundTrip) -> None:
        """Add another part; the order does not matter."""
        self.weights += other.weights
        self.compared += other.compared
        self.nonfinite_source += other.nonfinite_source
        self.nonfinite_result += other.nonfinite_result
        self.max_error = max(self.max_error, other.max_error)
        if other.max_steps is not None:
            self.max_steps = max(self.max_steps or 0.0, other.max_steps)
        self.errors += other.errors
        self.signals += other.signals

    @property
    def rmse(self) -> float | None:
        """Root of the mean squared error; None where nothing could be compared."""
        if not self.compared:
            return None
        return math.sqrt(_total(self.errors) / self.compared)

    @property
    def snr_db(self) -> float | None:
        """Signal to noise in dB: infinite where nothing was lost; None where all is zero."""
        noise, signal = _total(self.errors), _total(self.signals)
        if noise == 0:
            return math.inf if signal else None
        if math.isinf(noise) or math.isinf(signal):
            return None
        return 10 * math.log10(signal / noise) if signal else -math.inf


def _total(sums: list[float]) -> float:
    return math.inf if math.inf in sums else math.fsum(sums)


def has_steps(encoding: type[Encoding]) -> bool:
    """Tell whether the codes of `encoding` are evenly spaced, a scale apart."""
    return (
        issubclass(encoding, BlockEncoding)
        and encoding.codes.lookup is None
        and encoding.scale_of(Role.SCALE) is not None
    )


def measure(
    source: npt.NDArray[np.floating],
    result: npt.NDArray[np.floating],
    stored: Bytes,
    encoding: type[Encoding],
    unit: int = UNIT,
) -> RoundTrip:
    """Return the error of `result` against `source`.

    Args:
        source: Values `[n]`, float32 or float64, beginning at the beginning of a unit.
        result: What the new bytes decode to, `[n]`.
        stored: The new bytes, `[n / block * block_bytes]`.
        encoding: Theirs.
        unit: Weights that are summed at once, whole blocks.
    """
    total = RoundTrip()
    for start in range(0, source.size, unit):
        end = min(start + unit, source.size)
        first, last = (place // encoding.block * encoding.block_bytes for place in (start, end))
        [part] = measure_each(
            source[start:end], result[start:end], stored[first:last], encoding, [end - start]
        )
        total.merge(part)
    return total


@np.errstate(all="ignore")  # what is not finite is counted, signalling NaN included
def measure_each(
    source: npt.NDArray[np.floating],
    result: npt.NDArray[np.floating],
    stored: Bytes,
    encoding: type[Encoding],
    sizes: Sequence[int],
) -> list[RoundTrip]:
    """Return the errors of runs of weights that follow each other, a unit each.

    Args:
        source: As for `measure`, `[n]`.
        result: As for `measure`, `[n]`.
        stored: The new bytes.
        encoding: Theirs.
        sizes: Weights of each run, whole blocks; `n` together.
    """
    olds, news = source.astype(np.float64), result.astype(np.float64)
    errors = np.abs(news - olds)
    noises, signals = errors * errors, olds * olds
    found = []
    ends = np.cumsum(sizes).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        total = RoundTrip(weights=end - start)
        noise, signal = float(np.sum(noises[start:end])), float(np.sum(signals[start:end]))
        if math.isfinite(noise) and math.isfinite(signal):
            total.compared = end - start
        else:
            noise, signal = _finite_only(olds[start:end], news[start:end], errors[start:end], total)
        total.errors.append(noise)
        total.signals.append(signal)
        total.max_error = float(errors[start:end].max())
        found.append(total)
    if issubclass(encoding, BlockEncoding) and has_steps(encoding):
        steps = _steps(errors, stored, encoding)
        for total, start, end in zip(found, [0, *ends], ends, strict=False):
            largest = float(steps[start // encoding.group : end // encoding.group].max())
            total.max_steps = largest if largest >= 0 else None
    return found


def _finite_only(
    old: Doubles, new: Doubles, error: Doubles, total: RoundTrip
) -> tuple[float, float]:
    """Count what is not finite, clear it from `error`, and return both sums over the rest."""
    sound_old, sound_new = np.isfinite(old), np.isfinite(new)
    both = sound_old & sound_new
    total.nonfinite_source += int(old.size - np.count_nonzero(sound_old))
    total.nonfinite_result += int(new.size - np.count_nonzero(sound_new))
    total.compared += int(np.count_nonzero(both))
    error[~both] = 0
    kept = np.where(both, old, 0.0)
    with np.errstate(over="ignore"):  # doubles near the end of their range
        return float(np.sum(error * error)), float(np.sum(kept * kept))


def _steps(error: Doubles, stored: Bytes, encoding: type[BlockEncoding]) -> Doubles:
    """Return each (sub-)block's largest error in steps; -1 where its step is no number above 0."""
    blocks = Blocks(encoding, encoding.as_blocks(stored))
    scale = encoding.scale_of(Role.SCALE)
    assert scale is not None  # noqa: S101  (has_steps)
    with np.errstate(all="ignore"):
        step = np.abs(getattr(blocks, scale.name).astype(np.float64))
        if encoding.sub_scales is not None:
            step = np.abs(step * blocks.sc)
        largest = error.reshape(step.shape[0], -1, encoding.group).max(axis=2)
        step = np.broadcast_to(step[:, :, 0], largest.shape)
        known = (step > 0) & np.isfinite(step)
        return np.where(known, largest / step, -1.0).reshape(-1)
