"""What storing a block's scale would do to it, before anyone quantizes.

Everything follows from the encoding's declaration: which code the block's extreme gets, whether
the format has a minimum beside the scale, and how narrow the stored scale is. Nothing is a table
of limits, so that a threshold found by bisection here is the threshold of the quantizer.

Encodings whose scales are found by a search (K-quants, IQ) have no scale that could be told
beforehand; `measurable` says which encodings do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.encodings.base import BlockEncoding, Encoding, Floats
from qassay.encodings.fields import Role
from qassay.encodings.registry import by_id
from qassay.runtimes.arithmetic import Doubles, halves, of_halves

COARSE_STEPS = 1.27
"""Steps that the rounding of a scale may move a block's extreme; for Q8_0 1 % of the scale."""

F16_MAX = 65504.0

Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scaling:
    """How a quantizer picks a block's scale from its weights.

    Attributes:
        divisor: The scale is the extreme (or the range) divided by this; negative where the
            extreme gets the smallest code and the scale carries its sign.
        ranged: Whether the range (largest minus smallest) is divided, and the smallest stored.
    """

    divisor: int
    ranged: bool

    @property
    def largest_code(self) -> int:
        """The largest distance of a code from zero."""
        return abs(self.divisor)


def scaling(encoding: type[Encoding]) -> Scaling | None:
    """Return how the scale of `encoding` follows from a block's weights; None if it does not."""
    if not issubclass(encoding, BlockEncoding) or encoding.codes.lookup is not None:
        return None
    field = encoding.scale_of(Role.SCALE)
    if field is None or field.format != "f16" or encoding.sub_scales is not None:
        return None
    values = encoding.codes.values(encoding.code_bits())
    low, high = int(values[0]), int(values[-1])
    if encoding.scale_of(Role.OFFSET) is not None:
        return Scaling(high - low, ranged=True)
    return Scaling(low if field.signed else high, ranged=False)


def measurable(encoding: str | type[Encoding]) -> bool:
    """Return whether the scales of `encoding` can be told from the weights."""
    return scaling(by_id(encoding) if isinstance(encoding, str) else encoding) is not None


@dataclass(frozen=True, slots=True, eq=False)
class Preflight:
    """What each block's scale would become; arrays `[n]`.

    Blocks with elements that are not finite are described by their other elements.

    Attributes:
        amax: Largest magnitude among the finite elements, float32.
        live: Whether the block needs a scale: it holds something other than zero (with a stored
            minimum: other than one constant).
        exact: The scale as computed, float32; negative where the format's scale carries a sign.
        stored: The scale as it would be stored, as float32.
        offset: The minimum as computed, float32, zero where the format stores none.
        stored_offset: The minimum as it would be stored.
        steps: How far the rounding of the scale moves the extreme, in steps of the exact scale.
        offset_steps: How far the rounding of the minimum moves every weight, in the same steps.
        nan, inf: Elements that are NaN, and infinite, int64.
        first: Index of the first element that is not finite; -1 where all are.
    """

    amax: Floats
    live: Bools
    exact: Floats
    stored: Floats
    offset: Floats
    stored_offset: Floats
    steps: Doubles
    offset_steps: Doubles
    nan: Indices
    inf: Indices
    first: Indices

    @property
    def overflows(self) -> Bools:
        """Blocks whose scale or minimum would be stored as infinity."""
        return ~(np.isfinite(self.stored) & np.isfinite(self.stored_offset))

    @property
    def lost(self) -> Bools:
        """Live blocks whose scale would be stored as zero."""
        found: Bools = self.live & (self.stored == 0)
        return found

    @property
    def coarse(self) -> Bools:
        """Blocks whose stored scale or minimum is off by more than `COARSE_STEPS`.

        Lost and overflowing blocks are no coarse ones.
        """
        moved = np.maximum(self.steps, self.offset_steps)
        found: Bools = (moved > COARSE_STEPS) & ~self.lost & ~self.overflows
        return found

    @property
    def not_finite(self) -> Bools:
        """Blocks with an element that is NaN or infinite."""
        return self.first >= 0

    @property
    def refused_by_published_check(self) -> Bools:
        """Blocks that the check published for candle's Q8_0 refuses, taken literally.

        Every element finite; d at most 65504; if d is above zero, its f16 rounding off by at
        most 1 %.
        """
        scale = np.abs(self.exact).astype(np.float64)
        with np.errstate(all="ignore"):
            off = np.abs(np.abs(self.stored) - scale) > 0.01 * scale
        return self.not_finite | (scale > F16_MAX) | ((scale > 0) & off)


@dataclass(frozen=True, slots=True, eq=False)
class Extremes:
    """All that a preflight needs to know of blocks; arrays `[n]`, over the finite elements.

    A kernel that reads blocks once can fill this in and leave the rest to `of_extremes`.

    Attributes:
        extreme: The first element of largest magnitude, sign kept; 0 where there is none.
        least, most: The smallest and largest element; 0 where there is none.
        nan, inf: Elements that are NaN, and infinite, int64.
        first: Index of the first element that is not finite; -1 where all are.
    """

    extreme: Floats
    least: Floats
    most: Floats
    nan: Indices
    inf: Indices
    first: Indices


def extremes(blocks: Floats) -> Extremes:
    """Return the extremes of float32 blocks `[n, block]`."""
    finite = np.isfinite(blocks)
    bad = ~finite.all(axis=1)
    known = np.where(finite, blocks, np.float32(0)) if bad.any() else blocks
    place = np.abs(known).argmax(axis=1)[:, None]
    least, most = known.min(axis=1), known.max(axis=1)
    if bad.any():
        none = ~finite.any(axis=1)
        lowest = np.where(finite, blocks, np.float32(np.inf)).min(axis=1)
        highest = np.where(finite, blocks, np.float32(-np.inf)).max(axis=1)
        least = np.where(none, np.float32(0), lowest)
        most = np.where(none, np.float32(0), highest)
    nan = np.isnan(blocks).sum(axis=1)
    return Extremes(
        extreme=np.take_along_axis(known, place, axis=1)[:, 0],
        least=least,
        most=most,
        nan=nan,
        inf=(~finite).sum(axis=1) - nan,
        first=np.where(bad, finite.argmin(axis=1), -1),
    )


def preflight(blocks: npt.ArrayLike, to: str | type[Encoding]) -> Preflight:
    """Return what the scales of float32 blocks `[n, block]` would become under encoding `to`.

    Raises:
        UsageError: The encoding's scales do not follow from the weights alone, or the blocks
            have another length.
    """
    encoding = by_id(to) if isinstance(to, str) else to
    weights = np.atleast_2d(np.ascontiguousarray(blocks, np.float32))
    if weights.shape[1] != encoding.block:
        raise UsageError(
            f"no preflight of these blocks for {encoding.id}",
            expected=f"blocks of {encoding.block} weights",
            found=f"{list(weights.shape)}",
        )
    return of_extremes(extremes(weights), encoding)


@np.errstate(all="ignore")
def of_extremes(known: Extremes, to: str | type[Encoding]) -> Preflight:
    """Return what the scales of blocks with these extremes would become under encoding `to`.

    Raises:
        UsageError: The encoding's scales do not follow from the weights alone.
    """
    encoding = by_id(to) if isinstance(to, str) else to
    rule = scaling(encoding)
    if rule is None:
        raise UsageError(
            f"no preflight of these blocks for {encoding.id}",
            expected="an encoding with an f16 scale that follows from the weights",
            found=encoding.id,
        )
    amax = np.abs(known.extreme)
    live, offset = amax > 0, np.zeros_like(amax)
    if rule.ranged:
        live, offset = known.most > known.least, known.least
        exact = (known.most - known.least) / np.float32(rule.divisor)
    else:
        exact = (known.extreme if rule.divisor < 0 else amax) / np.float32(rule.divisor)
    stored, stored_offset = of_halves(halves(exact)), of_halves(halves(offset))
    return Preflight(
        amax=amax,
        live=live,
        exact=exact,
        stored=stored,
        offset=offset,
        stored_offset=stored_offset,
        steps=_steps(exact, stored, exact) * rule.largest_code,
        offset_steps=_steps(offset, stored_offset, exact),
        nan=known.nan,
        inf=known.inf,
        first=known.first,
    )


def _steps(exact: Floats, stored: Floats, step: Floats) -> Doubles:
    """Return |stored - exact| / |step| in float64, 0 where the step is 0."""
    width = np.abs(step).astype(np.float64)
    moved = np.abs(stored.astype(np.float64) - exact.astype(np.float64))
    return np.asarray(np.where(width == 0, 0.0, moved / width), np.float64)


def published_message(facts: Preflight, weights: Floats, block: int) -> str | None:
    """Return what the check published for candle's Q8_0 says of a block; None where it passes.

    Args:
        facts: The preflight of `weights`.
        weights: The blocks, float32 `[n, block]`.
        block: Which of them.
    """
    if not facts.refused_by_published_check[block]:
        return None
    first = int(facts.first[block])
    if first >= 0:
        value = weights[block, first]
        name = "NaN" if np.isnan(value) else "inf" if value > 0 else "-inf"
        return f"block {block}: element {first} is {name}"
    amax = shortest(facts.amax[block])
    exact, stored = np.abs(facts.exact[block]), np.abs(facts.stored[block])
    if exact > F16_MAX:
        return f"block {block}: amax {amax} overflows the f16 scale"
    return (
        f"block {block}: amax {amax}, scale {shortest(exact)} is stored as {shortest(stored)}"
        " in f16"
    )


def shortest(value: Any) -> str:
    """Return the fewest digits that give this float32 back, in scientific form: `5e-6`."""
    text = np.format_float_scientific(np.float32(value), trim="-", exp_digits=1)
    return text.replace("e+", "e")
