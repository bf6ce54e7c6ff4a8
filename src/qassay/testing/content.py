"""Healthy bytes for any registered encoding, made from its declaration alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Codes, Encoding, PlainEncoding
from qassay.encodings.fields import Health, Role, ScaleField

FILLS = ("zeros", "ramp", "normal", "random")
"""`zeros` is what writers leave for zeros; the others are sound weights, `ramp` without chance."""

Numbers = npt.NDArray[np.float64]
_FLAWED = Health.NOT_FINITE | Health.ZERO | Health.SUBNORMAL | Health.MAY_OVERFLOW
_TYPICAL = 2.0**-7
"""Magnitude of healthy scales."""


def healthy(encoding: type[Encoding], units: int, fill: str = "ramp", seed: int = 0) -> Bytes:
    """Return the bytes of `units` blocks (or values) that no rule has anything to say about.

    Args:
        encoding: A block or plain encoding.
        units: Blocks of a block encoding, values of a plain one.
        fill: One of `FILLS`; `zeros` are dead blocks, which is worth an info.
        seed: Of the random generator.

    Returns:
        A writable uint8 array `[units * block_bytes]`; the same arguments give the same bytes.
    """
    if fill not in FILLS:
        raise ValueError(f"no fill is called {fill!r}; there are {', '.join(FILLS)}")
    rng = np.random.default_rng(seed)
    if issubclass(encoding, BlockEncoding):
        return _blocks(encoding, units, fill, rng)
    if issubclass(encoding, PlainEncoding):
        return encode(encoding, _numbers(encoding, units, fill, rng))
    raise TypeError(f"no content for {encoding.__name__}")


def encode(encoding: type[PlainEncoding], numbers: npt.ArrayLike) -> Bytes:
    """Return `numbers` as a plain encoding stores them, uint8 `[n * block_bytes]`."""
    values = np.atleast_1d(np.asarray(numbers, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        if encoding.id == "bf16":
            stored: npt.NDArray[Any] = (values.astype("<f4").view("<u4") >> 16).astype("<u2")
        elif encoding.kind == "float" and encoding.block_bytes == 1:
            stored = _nearest_byte(encoding, values)
        else:
            stored = values.astype(encoding.dtype)
    raw: Bytes = np.ascontiguousarray(stored).view(np.uint8).copy()
    return raw


def _nearest_byte(encoding: type[PlainEncoding], values: Numbers) -> Bytes:
    table = encoding.numbers(np.arange(256))
    finite = np.where(np.isfinite(table), table, np.inf)
    stored = np.abs(finite - np.nan_to_num(values)[:, None]).argmin(axis=1)
    for place in np.flatnonzero(~np.isfinite(values)):
        same = (table == values[place]) | (np.isnan(table) & np.isnan(values[place]))
        # E4M3 has no infinity: its NaN stands for one.
        stored[place] = int(same.argmax() if same.any() else np.isnan(table).argmax())
    return np.asarray(stored, np.uint8)


def _numbers(
    encoding: type[PlainEncoding], count: int, fill: str, rng: np.random.Generator
) -> Numbers:
    step = np.arange(count)
    if fill == "zeros":
        return np.zeros(count)
    if encoding.kind == "integer":
        most = 1 if encoding.allowed_max == 1 else 100
        drawn = rng.integers(0, most + 1, count)
        return np.asarray(step % (most + 1) if fill == "ramp" else drawn, np.float64)
    if fill == "ramp":
        return np.asarray((step % 31 - 15.5) / 16, np.float64)
    return rng.normal(0, 0.25, count) if fill == "normal" else rng.uniform(-1, 1, count)


def _blocks(
    encoding: type[BlockEncoding], units: int, fill: str, rng: np.random.Generator
) -> Bytes:
    raw = np.zeros((units, encoding.block_bytes), np.uint8)
    for scale in encoding.scale_fields.values():
        patterns = _scales(scale, units, fill, rng)
        width = scale.offset + scale.nbytes
        raw[:, scale.offset : width] = (
            patterns.astype(f"<u{scale.nbytes}").view(np.uint8).reshape(units, scale.nbytes)
        )
    for part in (encoding.sub_scales, encoding.sub_mins):
        if part is not None:
            bits = part.bits(encoding.runs)
            bits.pack(_positive(part, encoding, units, fill, rng), raw)
    encoding.code_bits().pack(_codes(encoding, units, fill, rng), raw)
    return raw.reshape(-1)


def _scales(
    scale: ScaleField, units: int, fill: str, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return bit patterns near `_TYPICAL`, with a sign where sound files have one."""
    if fill == "zeros":
        return np.zeros(units, np.int64)
    steps = _TYPICAL * (1 + np.arange(8) / 8)
    if scale.role is Role.OFFSET:
        steps = -8 * steps
    elif scale.signed:
        steps = np.concatenate([steps, -steps])
    sound = np.flatnonzero((scale.health & int(_FLAWED)) == 0)
    near = np.abs(scale.magnitudes[sound].astype(np.float64) - steps[:, None]).argmin(axis=1)
    order = np.arange(units) % steps.size
    chosen = order if fill == "ramp" else rng.integers(0, steps.size, units)
    return np.asarray(sound[near[chosen]], np.int64)


def _positive(
    part: Codes, encoding: type[BlockEncoding], units: int, fill: str, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return integers above zero (for `zeros`: zero itself), `[units, count]`."""
    bits = part.bits(encoding.runs)
    shape = (units, bits.count)
    if fill == "zeros":
        return np.full(shape, part.zero, np.int64)
    above = np.arange(part.zero + 1, part.range(bits)[1] + 1)
    order = (np.arange(units)[:, None] + np.arange(bits.count)) % above.size
    return np.asarray(above[order if fill == "ramp" else rng.integers(0, above.size, shape)])


def usable_codes(encoding: type[BlockEncoding]) -> npt.NDArray[np.int64]:
    """Return the stored codes that writers produce, ascending."""
    low, high = encoding.codes.range(encoding.code_bits())
    codes = np.arange(low, high + 1)
    for field in encoding.bits_fields.values():
        if len(encoding.codes.runs) == 1 and encoding.codes.runs[0] in field.runs:
            codes = codes[~np.isin(codes, list(field.forbidden))]
    return codes


def _codes(
    encoding: type[BlockEncoding], units: int, fill: str, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    bits = encoding.code_bits()
    shape = (units, bits.count)
    if fill == "zeros":
        blanks = (*encoding.codes.blank, *encoding.codes.zeros(bits), 0)
        return np.full(shape, blanks[0], np.int64)
    usable = usable_codes(encoding)
    if fill == "normal":
        drawn = rng.normal(usable.size / 2, usable.size / 6, shape)
        chosen = np.clip(drawn, 0, usable.size - 1).astype(np.int64)
    elif fill == "random":
        chosen = rng.integers(0, usable.size, shape)
    else:
        # A step prime to every power of two visits all codes, in each block from another one on.
        chosen = (np.arange(units)[:, None] * 3 + np.arange(bits.count) * 7) % usable.size
    return np.asarray(usable[chosen], np.int64)
