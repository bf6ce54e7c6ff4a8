"""What a quantizer did with rounding, told from the source and the quantized bytes alone.

Decoded values are compared with the source in units of each weight's own step (the stored scale,
times the sub-scale where there is one). A quantizer that rounds to nearest is off by half a step
at most and its errors average out for positive and for negative weights. `(int)(x + 0.5)` is off
by up to a step and a half, and only on negative weights.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Blocks, Encoding, Floats
from qassay.encodings.fields import Role
from qassay.encodings.registry import by_id
from qassay.runtimes.arithmetic import Doubles, halves, of_halves

BIAS_STEPS = 0.1
"""Mean error, in steps, that counts as a bias (if it is no chance: over four standard errors)."""

_SPREAD = 12**-0.5  # standard deviation of an error that is uniform over one step


@dataclass(frozen=True, slots=True)
class RoundingProfile:
    """Errors of decoded weights in steps; profiles of parts of a tensor add up.

    Weights beyond the codes' range (clipped), in blocks of scale zero, or not finite, are counted
    as `unmeasured`.

    Attributes:
        positive, negative: Weights measured, by the sign of the weight.
        max_positive, max_negative: Largest absolute error.
        excess_positive, excess_negative: By how much the largest error goes beyond half a step
            plus what rounding the scale to its stored type explains; zero or less is in order.
        sum_positive, sum_negative: Sums of the signed errors (decoded minus source).
        above_positive, above_negative: Weights whose error goes beyond that bound.
        unmeasured: Weights left out.
    """

    positive: int = 0
    negative: int = 0
    max_positive: float = 0.0
    max_negative: float = 0.0
    excess_positive: float = -0.5
    excess_negative: float = -0.5
    sum_positive: float = 0.0
    sum_negative: float = 0.0
    above_positive: int = 0
    above_negative: int = 0
    unmeasured: int = 0

    def __add__(self, other: RoundingProfile) -> RoundingProfile:
        merged: dict[str, float] = {}
        for field in fields(self):
            mine, theirs = getattr(self, field.name), getattr(other, field.name)
            larger = field.name.startswith(("max_", "excess_"))
            merged[field.name] = max(mine, theirs) if larger else mine + theirs
        return RoundingProfile(**merged)  # type: ignore[arg-type]

    @property
    def max_steps(self) -> float:
        """Largest absolute error in steps."""
        return max(self.max_positive, self.max_negative)

    @property
    def bias_positive(self) -> float:
        """Mean signed error of positive weights, in steps."""
        return self.sum_positive / self.positive if self.positive else 0.0

    @property
    def bias_negative(self) -> float:
        """Mean signed error of negative weights, in steps."""
        return self.sum_negative / self.negative if self.negative else 0.0

    @property
    def above_bound(self) -> bool:
        """Whether some error is larger than rounding to nearest can make it."""
        return self.above_positive + self.above_negative > 0

    @property
    def biased(self) -> str:
        """Which weights are biased: `none`, `positives`, `negatives` or `both`."""
        positive = _is_bias(self.bias_positive, self.positive)
        negative = _is_bias(self.bias_negative, self.negative)
        if positive and negative:
            return "both"
        return "positives" if positive else "negatives" if negative else "none"

    def words(self) -> str:
        """Return the finding in words."""
        error = "error above half a step" if self.above_bound else "error of nearest rounding"
        sides = {
            "none": "no bias",
            "both": "biased on positives and negatives",
            "positives": "biased on positives only",
            "negatives": "biased on negatives only",
        }
        return f"{error}; {sides[self.biased]}"


def _is_bias(mean: float, count: int) -> bool:
    return count > 0 and abs(mean) > max(BIAS_STEPS, 4 * _SPREAD / count**0.5)


@dataclass(frozen=True, slots=True)
class _Grid:
    """Where codes lie: `offset + step * code`, arrays that broadcast to `[blocks, groups, n]`."""

    step: Floats
    offset: Floats
    low: int
    high: int
    slack: Doubles


@np.errstate(all="ignore")
def rounding_profile(
    source: npt.ArrayLike, raw: Bytes, encoding: str | type[Encoding]
) -> RoundingProfile:
    """Compare float weights with their quantized bytes; what wrote the bytes need not be known.

    Args:
        source: The float weights, as many as the blocks hold; any shape, rows in order.
        raw: The stored blocks.
        encoding: What they mean; its codes must be evenly spaced.

    Raises:
        UsageError: The codes are not evenly spaced (a lookup table), or the numbers of weights
            disagree.
    """
    known = by_id(encoding) if isinstance(encoding, str) else encoding
    if not issubclass(known, BlockEncoding) or known.codes.lookup is not None:
        raise UsageError(f"{known.id} has no even steps to measure rounding in")
    flat = np.ascontiguousarray(source, np.float32).reshape(-1)
    stored = np.ascontiguousarray(raw).reshape(-1)
    if stored.size % known.block_bytes or stored.size // known.block_bytes * known.block != (
        flat.size
    ):
        raise UsageError(
            "source and blocks hold different numbers of weights",
            expected=f"{stored.size / known.block_bytes * known.block:g}",
            found=str(flat.size),
        )
    shape = (-1, known.block // known.group, known.group)
    weights = flat.reshape(shape).astype(np.float64)
    decoded = known.dequantize(stored).reshape(shape).astype(np.float64)
    grid = _grid(known, stored)
    place = (weights - grid.offset) / grid.step
    usable = np.isfinite(place) & np.isfinite(decoded) & (grid.step != 0)
    usable &= (place >= grid.low - 0.5) & (place <= grid.high + 0.5)
    error = (decoded - weights) / np.abs(grid.step)
    excess = np.abs(error) - 0.5 - grid.slack
    positive, negative = usable & (weights > 0), usable & (weights < 0)
    sides = {"positive": positive, "negative": negative}
    measured: dict[str, float] = {"unmeasured": int((~usable & (weights != 0)).sum())}
    for side, chosen in sides.items():
        found, beyond = error[chosen], excess[chosen]
        measured[side] = found.size
        measured[f"max_{side}"] = float(np.abs(found).max(initial=0.0))
        measured[f"excess_{side}"] = float(beyond.max(initial=-0.5))
        measured[f"sum_{side}"] = float(found.sum())
        measured[f"above_{side}"] = int((beyond > 0).sum())
    return RoundingProfile(**measured)  # type: ignore[arg-type]


def _grid(encoding: type[BlockEncoding], stored: Bytes) -> _Grid:
    """Return where the codes of stored blocks lie, and how far stored numbers may be off.

    The slack, in steps: half a unit in the last place of the f16 scale for each step that the
    farthest code is away from zero, the same of a stored minimum, and float32's own rounding.
    """
    parts = Blocks(encoding, encoding.as_blocks(stored))
    field = encoding.scale_of(Role.SCALE)
    assert field is not None  # noqa: S101
    scale = np.asarray(getattr(parts, field.name), np.float32)
    values = encoding.codes.values(encoding.code_bits())
    low, high = int(values[0]), int(values[-1])
    step = scale * parts.sc if encoding.sub_scales is not None else scale
    slack = _ulp(scale) / np.abs(scale.astype(np.float64)) / 2 * max(-low, high)
    offset = np.zeros_like(scale)
    for role, sign in ((Role.OFFSET, 1), (Role.MIN_SCALE, -1)):
        minimum = encoding.scale_of(role)
        if minimum is not None:
            offset = np.asarray(sign * getattr(parts, minimum.name), np.float32)
            if role is Role.MIN_SCALE:
                offset = offset * parts.m
            else:
                slack = slack + _ulp(offset) / 2 / np.abs(step.astype(np.float64))
    return _Grid(step, offset, low, high, np.asarray(slack + 1e-3, np.float64))


def _ulp(values: Floats) -> Doubles:
    """Return the distance from |value| to the next f16 number, float64."""
    bits = halves(np.abs(values))
    return of_halves((bits + np.uint16(1)).astype(np.uint16)).astype(np.float64) - np.abs(values)
