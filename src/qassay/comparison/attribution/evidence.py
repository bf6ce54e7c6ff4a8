"""How well a prediction fits an output: element by element, and as a whole.

An element is *equal*, or *tolerable* (another order of adding up could have made it), or
*impossible*::

    tolerable   |y - p| <= ulp(max(|y|, |p|)) + ulp(max + |bias|) + 2^-19 * |x| * rms(w)

Units are those of bf16. A bias of its own size counts because y = product + bias may cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.setup import Floats

Mask = npt.NDArray[np.bool_]

_EQUAL, _TOLERABLE, _IMPOSSIBLE = math.log(0.998), math.log(0.002), math.log(1e-8)
NATS = 10.0
"""By how much the second best explanation has to trail the best."""


@dataclass(frozen=True, slots=True)
class Fit:
    """How a prediction fits.

    Attributes:
        elements: How many outputs were compared.
        equal: How many of them are equal bit for bit.
        impossible: How many no order of adding up explains.
        even: Whether what is unequal is spread, not one channel's or one row's.
    """

    elements: int
    equal: int
    impossible: int
    even: bool

    @property
    def share_equal(self) -> float:
        """Share of outputs that are equal."""
        return self.equal / self.elements if self.elements else 0.0

    @property
    def likelihood(self) -> float:
        """Logarithm of how likely this is, if the prediction is right."""
        tolerable = self.elements - self.equal - self.impossible
        return self.equal * _EQUAL + tolerable * _TOLERABLE + self.impossible * _IMPOSSIBLE

    def holds(self, most_impossible: float = 1e-4) -> bool:
        """Whether the prediction is right as far as these outputs can tell."""
        return (
            self.elements > 0
            and self.share_equal >= 0.99
            and self.impossible <= most_impossible * self.elements
            and self.even
        )


def unit(values: Floats) -> Floats:
    """Return the unit in the last place of bf16 at each magnitude."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & 0x7F800000
    exponent: Floats = bits.view(np.float32)
    return np.asarray(exponent * np.float32(2**-7), np.float32)


@np.errstate(all="ignore")
def tolerance(y: Floats, p: Floats, bias: Floats | None, size: Floats) -> Floats:
    """Return by how much each element may differ; `size` is |x| * rms(w), `[M, N]`."""
    most = np.maximum(np.abs(y), np.abs(p))
    allowed = unit(most) + size * np.float32(2**-19)
    more = unit(most) if bias is None else unit(most + np.abs(bias))
    return np.asarray(allowed + more, np.float32)


@np.errstate(all="ignore")
def fit(y: Floats, p: Floats, bias: Floats | None, size: Floats, known: Mask | None = None) -> Fit:
    """Return how a prediction fits; only elements in `known` count."""
    same = (y == p) | (np.isnan(y) & np.isnan(p))
    off = ~same
    if known is not None:
        off &= known
    elements = int(y.size if known is None else np.count_nonzero(known))
    unequal = int(np.count_nonzero(off))
    impossible = 0
    if unequal:
        where = np.nonzero(off)
        b = None if bias is None else bias[where[1]]
        allowed = tolerance(y[where], p[where], b, size[where])
        impossible = int(np.count_nonzero(~(np.abs(y[where] - p[where]) <= allowed)))
    return Fit(elements, elements - unequal, impossible, even(off))


def even(off: Mask) -> bool:
    """Whether no row and no channel is off by much more than the rest.

    Chance puts an output on the other side of a tie once in hundreds; a channel or a row where a
    quarter is off is another arithmetic, or another weight, there.
    """
    for axis in (0, 1):
        size = off.shape[axis]
        worst = int(off.sum(axis=axis).max(initial=0))
        if worst > max(4, size // 4) and size >= 8:
            return False
    return True


_MOST_ROUNDING = 3.0
_SUMS = 2048.0
"""Sums of 2048 products, added up 64 at a time in bf16, have a ratio of 1.6; it grows with the
square root of their number."""
_WORST_CHANNEL = 10.0
_MOST_SLOPE = 2.0**-8


@dataclass(frozen=True, slots=True)
class Rounding:
    """A difference in units of bf16's rounding, over rows that add up.

    Of |x| * rms(w), which sums of random terms are as large as; or of half the sum, where the
    terms have one sign and so has what is rounded off along the way.

    Attributes:
        ratio: Root mean square of all.
        worst: That of the worst output channel.
        slope: By which share of the prediction the output is off on average.
        doubt: What chance may make of `slope`.
        most: Up to which ratio it may be rounding.
    """

    ratio: float = math.inf
    worst: float = math.inf
    slope: float = 0.0
    doubt: float = 0.0
    most: float = _MOST_ROUNDING

    def small(self) -> bool:
        """Whether another width or order of adding up makes such differences.

        No channel is off by much more than the rest, and outputs are not all too large or small.
        """
        return (
            self.ratio <= self.most
            and self.worst <= _WORST_CHANNEL
            and abs(self.slope) <= _MOST_SLOPE + self.doubt
        )


@np.errstate(all="ignore")
def rounding(y: Floats, p: Floats, size: Floats, rows: Mask, k: int) -> Rounding:
    """Return a difference over some rows, sums of K, in units of rounding.

    `size` is |x| * rms(w).
    """
    most = _MOST_ROUNDING * max(1.0, math.sqrt(k / _SUMS))
    if not rows.any():
        return Rounding(0.0, 0.0, most=most)
    least = np.maximum(np.maximum(size[rows], np.abs(p[rows]) / 2), np.float32(1e-30))
    scaled = np.asarray((y[rows] - p[rows]) / least, np.float64)
    told = np.asarray(p[rows] / least, np.float64)
    squares = np.square(scaled)
    power, mean = float(np.sum(told * told)), float(np.mean(squares))
    if not math.isfinite(mean) or not math.isfinite(power):
        return Rounding()
    slope = float(np.sum(scaled * told)) / power if power > 0 else 0.0
    doubt = 5 * math.sqrt(mean / power) if power > 0 else math.inf
    worst = math.sqrt(float(squares.mean(axis=0).max(initial=0)))
    return Rounding(math.sqrt(mean) * 256, worst * 256, slope, doubt, most)


@np.errstate(all="ignore")
def explained(y: Floats, p: Floats, clean: Floats, size: Floats) -> float:
    """Return the share of the difference from the clean output that a prediction explains.

    The difference is what is left when the clean output is scaled as well as can be: otherwise
    whatever makes outputs smaller would explain a half of any output that is unrelated.
    """
    least = np.maximum(size, np.float32(1e-30))
    got, told, plain = (np.asarray(each / least, np.float64) for each in (y, p, clean))
    power = float(np.sum(plain * plain))
    factor = float(np.sum(plain * got)) / power if power > 0 else 0.0
    rest = float(np.sum(np.square(got - told)))
    whole = float(np.sum(np.square(got - factor * plain)))
    if not math.isfinite(whole) or not math.isfinite(rest) or whole <= 0:
        return 0.0
    return 1 - rest / whole
