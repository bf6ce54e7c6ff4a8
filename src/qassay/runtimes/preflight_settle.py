"""Judging blocks exactly: what would their scale be, and what is it stored as.

Legacy types: the scale follows from the block's extremes (`preflight.of_extremes`). K-quants and
microscaling types find their scales by a search, so the real quantizer runs, twice: on the block
as it is and on the block times a power of two that makes every stored scale a normal f16. Except
for the rounding of the scales the two are the same quantization, so their difference is what that
rounding does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.encodings.base import (
    BlockEncoding,
    Blocks,
    Encoding,
    Floats,
    PlainEncoding,
    per_encoding,
)
from qassay.encodings.fields import Role
from qassay.encodings.registry import by_id
from qassay.kernels.select import wanted
from qassay.runtimes.arithmetic import Doubles, halves, of_halves
from qassay.runtimes.preflight import COARSE_STEPS, extremes, of_extremes, scaling
from qassay.runtimes.registry import engine

Bools = npt.NDArray[np.bool_]

HALF_ULP = 2.0**-25
"""Half the smallest f16: what is at most this large rounds to zero."""

F16_OVERFLOW = 65520.0
BF16_MAX = 3.38e38
"""About where bfloat16, and F32 with it, ends: of larger numbers there are only doubles."""

LEAST_SHARE = 0.01
"""A rounding that moves no weight by this share of the block's largest does no harm."""

WORSE = 1.5
"""How much larger the error of a searched block must be than with scales that are not rounded."""

_FAST_FROM = 1 << 17
"""Weights from which on a compiled quantizer is worth its start."""
_AT_ONCE = 1 << 13
"""Blocks settled at once: bounds memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Settled:
    """What becomes of blocks; arrays `[n]`.

    Attributes:
        lost: Blocks with weights, all of which become zero.
        overflow: Blocks that become NaN or infinite.
        coarse: Blocks with weights that the rounding of scale or minimum moves too far.
        steps: How far it moves the one moved most, in steps of the block's largest sub-block.
        exact: The scale as computed (0 where it is not told).
        stored: The scale as stored.
        of_minimum: Whether those two are the block's minimum, because that moves it farthest.
    """

    lost: Bools
    overflow: Bools
    coarse: Bools
    steps: Doubles
    exact: Doubles
    stored: Doubles
    of_minimum: Bools


@per_encoding
def spans(encoding: type[BlockEncoding]) -> tuple[float, float, float]:
    """Return, from a declaration, (weight per scale, largest code, weight per minimum).

    A block's largest magnitude is about the first times its scale, and the third times its
    minimum scale (0 where there is none).
    """
    code = float(np.abs(encoding.codes.values(encoding.code_bits())).max())
    per_scale = code
    if encoding.sub_scales is not None:
        per_scale *= float(
            np.abs(encoding.sub_scales.values(encoding.sub_scales.bits(encoding.runs))).max()
        )
    per_minimum = 1.0 if encoding.scale_of(Role.OFFSET) is not None else 0.0
    if encoding.sub_mins is not None:
        per_minimum = float(encoding.sub_mins.values(encoding.sub_mins.bits(encoding.runs)).max())
    return per_scale, code, per_minimum


@per_encoding
def doubtful(encoding: type[BlockEncoding]) -> tuple[float, float]:
    """Return the magnitudes between which a block's scale is stored well enough for sure.

    Necessary conditions, with room for a search that picks other scales than the extreme's.
    """
    field = encoding.scale_of(Role.SCALE)
    if field is None or field.format != "f16":
        # A power of two holds any magnitude but those below its own range.
        return 2.0**-120, float("inf")
    per_scale, code, per_minimum = spans(encoding)
    low = HALF_ULP * per_scale * code * 1.5
    high = F16_OVERFLOW * min(per_scale, per_minimum or per_scale) / 2
    return low, high


def survivors(least: float, most: float, *, block: bool = True) -> list[str]:
    """Return common types whose scales hold blocks with largest magnitudes in this range."""
    names = ("q4_0", "q5_0", "q8_0", "q4_k", "q6_k") if block else ()
    found = []
    for name in names:
        encoding = by_id(f"ggml.{name}")
        if not issubclass(encoding, BlockEncoding):
            continue
        low, high = doubtful(encoding)
        if low < least and most < high:
            found.append(name.upper())
    halves = ["F16"] if most < 65504 and least > 2.0**-14 else []
    return [*found, *halves, *(["BF16"] if most < BF16_MAX else [])]


def settle(blocks: Floats, encoding: type[BlockEncoding]) -> Settled:
    """Return what becomes of float32 blocks `[n, block]`, all finite."""
    parts = [
        _settle(blocks[start : start + _AT_ONCE], encoding)
        for start in range(0, blocks.shape[0], _AT_ONCE)
    ]
    if len(parts) == 1:
        return parts[0]
    return Settled(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("lost", "overflow", "coarse", "steps", "exact", "stored", "of_minimum")
        )
    )


def _settle(blocks: Floats, encoding: type[BlockEncoding]) -> Settled:
    if scaling(encoding) is not None:
        return _from_extremes(blocks, encoding)
    if has_engine(encoding):
        return _from_engine(blocks, encoding)
    return _estimated(blocks, encoding)


def has_engine(encoding: type[Encoding]) -> bool:
    """Return whether an engine here writes the encoding as ggml does."""
    return encoding.id in engine("ggml").routes


@np.errstate(all="ignore")
def _from_extremes(blocks: Floats, encoding: type[BlockEncoding]) -> Settled:
    rule = scaling(encoding)
    if rule is None:
        raise TypeError(f"the scales of {encoding.id} do not follow from the weights")
    facts = of_extremes(extremes(blocks), encoding)
    amax = facts.amax.astype(np.float64)
    step = np.abs(facts.exact).astype(np.float64)
    lost = (amax > 0) & (facts.stored == 0) & (facts.stored_offset == 0)
    coarse = (facts.steps > COARSE_STEPS) & (facts.steps * step >= LEAST_SHARE * amax)
    # The minimum moves all weights alike. Where they are equal, or nearly so, the block's own step
    # is next to nothing: what counts is a step of a block that reaches from zero to its weights.
    width = np.maximum(step, amax / abs(rule.divisor))
    moved = np.abs(facts.stored_offset.astype(np.float64) - facts.offset.astype(np.float64))
    offset_steps = np.where(width > 0, moved / width, 0.0)
    of_minimum = (offset_steps > COARSE_STEPS) & ~(coarse & (facts.steps > offset_steps))
    of_minimum &= ~lost & ~facts.overflows
    exact, stored = (
        np.where(of_minimum, one, other).astype(np.float64)
        for one, other in ((facts.offset, facts.exact), (facts.stored_offset, facts.stored))
    )
    return Settled(
        lost=lost,
        overflow=facts.overflows,
        coarse=(coarse | of_minimum) & ~lost & ~facts.overflows,
        steps=np.where(of_minimum, offset_steps, facts.steps),
        exact=exact,
        stored=stored,
        of_minimum=of_minimum,
    )


def written(blocks: Floats, encoding: type[Encoding], name: str = "ggml") -> npt.NDArray[np.uint8]:
    """Return the bytes `[n, block_bytes]` that an engine writes for blocks."""
    kernels = wanted() or ("fast" if blocks.size >= _FAST_FROM else "reference")
    with np.errstate(all="ignore"):
        return engine(name).quantize(blocks, encoding, kernels=kernels)


def decoded(raw: npt.NDArray[np.uint8], encoding: type[Encoding]) -> Doubles:
    """Return the weights `[n, block]` that blocks of bytes stand for."""
    return encoding.dequantize(raw.reshape(-1)).reshape(raw.shape[0], -1).astype(np.float64)


@np.errstate(all="ignore")
def _from_engine(blocks: Floats, encoding: type[BlockEncoding]) -> Settled:
    amax = np.abs(blocks).max(axis=1)
    power = -np.frexp(amax)[1][:, None]
    # Two factors, as one may be beyond float32; weights far below the largest may be rounded.
    lifted = np.ldexp(np.ldexp(blocks, power // 2), power - power // 2)
    raw, raw_lifted = written(blocks, encoding), written(lifted, encoding)
    got = decoded(raw, encoding)
    ideal = np.ldexp(decoded(raw_lifted, encoding), -power)
    overflow = np.logical_not(np.isfinite(got).all(axis=1))
    lost = (amax > 0) & np.logical_not(got.any(axis=1))
    exact, step = _scale_and_step(raw_lifted, encoding)
    stored, _ = _scale_and_step(raw, encoding)
    exact, step = np.ldexp(exact, -power[:, 0]), np.ldexp(step, -power[:, 0])
    moved = np.abs(got - ideal).max(axis=1)
    steps = np.where(step > 0, moved / step, 0.0)
    weights = blocks.astype(np.float64)
    worse = np.linalg.norm(got - weights, axis=1) > WORSE * np.linalg.norm(ideal - weights, axis=1)
    coarse = (steps > COARSE_STEPS) & (moved >= LEAST_SHARE * amax) & worse & ~lost & ~overflow
    steps = np.nan_to_num(steps, posinf=0.0)
    return Settled(lost, overflow, coarse, steps, exact, stored, np.zeros_like(coarse))


def _scale_and_step(
    raw: npt.NDArray[np.uint8], encoding: type[BlockEncoding]
) -> tuple[Doubles, Doubles]:
    """Return each block's scale, and the step of its widest sub-block."""
    field = encoding.scale_of(Role.SCALE)
    if field is None:
        raise TypeError(f"{encoding.id} has no scale")
    scale = field.values[field.patterns_of(raw)].astype(np.float64)
    if encoding.sub_scales is None:
        return scale, np.abs(scale)
    sub = np.abs(np.asarray(Blocks(encoding, raw).sc, np.float64)).reshape(raw.shape[0], -1)
    return scale, np.abs(scale) * sub.max(axis=1)


@np.errstate(all="ignore")
def _estimated(blocks: Floats, encoding: type[BlockEncoding]) -> Settled:
    """Judge by the scale that the block's extreme asks for: no engine here writes the type."""
    per_scale, _, _ = spans(encoding)
    amax = np.abs(blocks).max(axis=1)
    exact = amax.astype(np.float64) / per_scale
    stored = of_halves(halves(exact)).astype(np.float64)
    codes = 1 << (encoding.code_bits().width - 1)
    steps = np.where(exact > 0, np.abs(stored - exact) / exact * codes, 0.0)
    lost = (amax > 0) & (stored == 0)
    overflow = np.logical_not(np.isfinite(stored))
    coarse = (steps > COARSE_STEPS) & ~lost & ~overflow
    return Settled(lost, overflow, coarse, steps, exact, stored, np.zeros_like(coarse))


@np.errstate(over="ignore")  # F64 ends where float64 does
def plain_limits(encoding: type[PlainEncoding]) -> tuple[float, float]:
    """Return (the largest magnitude that rounds to zero, the smallest that overflows).

    Both as float32 bounds: a float32 `x` is lost if `x <= first`, and overflows if `x >= second`.
    """
    least = encoding.numbers(1)[0] / 2  # a tie goes to the even code, which is zero
    top = encoding.first_nonfinite - 1
    last, before = encoding.numbers(top)[0], encoding.numbers(top - 1)[0]
    limit = last + (last - before) / 2
    if top % 2 == 0:  # the tie stays with the even code
        limit = float(np.nextafter(np.float32(limit), np.float32(np.inf)))
    return float(least), float(limit)
