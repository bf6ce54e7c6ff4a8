"""ggml's K-quantizers in NumPy.

Sub-blocks are searched, their scales quantized, and the weights coded anew with those.
Arrays of a super-block's parts are `[part, super-block]`. Integers narrow exactly where C's do:
it shows as soon as weights are not finite.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import Floats
from qassay.kernels.quantize_reference_parts import (
    TINY,
    Halves,
    floats,
    half,
    half_bytes,
    in_pieces,
    largest,
    nearest,
    over,
    plus,
    serial_sum,
    spread_weights,
    sub_blocks,
    unhalf,
)
from qassay.kernels.quantize_reference_search import (
    Q2_K,
    Q2_WEIGHTED,
    Q4_K,
    Q4_WEIGHTED,
    Q5_K,
    Q5_WEIGHTED,
    Affine,
    affine,
    positive,
    refined,
    symmetric,
)

_SUPER = 256
_ONE = np.float32(1)
_ZERO = np.float32(0)
_LOW = np.uint8(15)
_FOUR = np.uint8(4)


def _by_part(values: Floats, parts: int) -> Floats:
    """Return what was found for sub-blocks, `[n * parts]`, as `[parts, n]`."""
    return np.ascontiguousarray(values.reshape(-1, parts).T)


def _by_sub_block(values: Floats) -> Floats:
    """Return `[parts, n]` as `[n * parts]`."""
    return values.T.reshape(-1)


def _spread(blocks: Floats, importance: Floats, length: int, factor: int) -> tuple[Floats, Floats]:
    """Return the sub-blocks' weights, and the sums of weights by part."""
    squares = np.ascontiguousarray((blocks * blocks).T)
    mean = np.float32(factor) * serial_sum(squares) / np.float32(_SUPER)
    weights = spread_weights(blocks, importance, mean[:, None])
    w = sub_blocks(weights, length)
    return w, _by_part(serial_sum(w), _SUPER // length)


def _tiled(importance: Floats, blocks: Floats) -> Floats:
    """Return the importance of every weight of blocks that come row after row."""
    own = importance.reshape(-1, _SUPER)
    return np.tile(own, (blocks.shape[0] // own.shape[0], 1))


def _recoded(
    x: Floats,
    codes: npt.NDArray[np.generic],
    scale: Floats,
    low: Floats | None,
    least: int,
    top: int,
) -> Bytes:
    """Code the weights with the stored scales; where those are zero the search's codes stay.

    Returns:
        Codes `[n, 256]`, raised by `-least`.
    """
    shifted = x if low is None else plus(low, x)
    fresh = np.clip(nearest(over(shifted, scale)), least, top) - np.int32(least)
    chosen = np.where(scale != 0, fresh.astype(np.uint8), codes.astype(np.uint8))
    return chosen.T.reshape(-1, _SUPER)


def _quarters(codes: Bytes) -> Bytes:
    """Return 2-bit codes `[n, 256]` as bytes `[n, 64]`: in each half, four runs of 32 a byte."""
    runs = codes.reshape(-1, 2, 4, 32)
    joined = runs[:, :, 0] | runs[:, :, 1] << np.uint8(2) | runs[:, :, 2] << _FOUR
    return (joined | runs[:, :, 3] << np.uint8(6)).reshape(-1, 64)


def _pairs(codes: Bytes) -> Bytes:
    """Return 4-bit codes `[n, 256]` as bytes `[n, 128]`: in each 64, two runs of 32 a byte."""
    runs = codes.reshape(-1, 4, 2, 32)
    return (runs[:, :, 0] | runs[:, :, 1] << _FOUR).reshape(-1, 128)


def _six_bits(scales: Bytes, lows: Bytes) -> Bytes:
    """Return eight sub-scales and sub-minimums `[8, n]` as bytes `[n, 12]`, as ggml ors them."""
    out = np.empty((12, scales.shape[1]), np.uint8)
    out[:4] = scales[:4] | scales[4:] >> _FOUR << np.uint8(6)
    out[4:8] = lows[:4] | lows[4:] >> _FOUR << np.uint8(6)
    out[8:] = (scales[4:] & _LOW) | (lows[4:] & _LOW) << _FOUR
    return out.T


def _six_bits_read(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Return the sub-scales and sub-minimums that a decoder reads (`get_scale_min_k4`)."""
    raw = packed.T
    high = np.uint8(6)
    scales = np.concatenate([raw[:4] & np.uint8(63), raw[8:] & _LOW | raw[:4] >> high << _FOUR])
    lows = np.concatenate([raw[4:8] & np.uint8(63), raw[8:] >> _FOUR | raw[4:8] >> high << _FOUR])
    return scales, lows


def _most(parts: Floats) -> Floats:
    """Return the largest of `[parts, n]`, zero where none is positive; NaN never counts."""
    most = np.zeros(parts.shape[1:], np.float32)
    for row in parts:
        most = np.where(row > most, row, most)
    return most


def _levels(parts: Floats, top: int) -> tuple[Halves, Bytes]:
    """Return the f16 scale of `[parts, n]` and their levels, narrowed to uint8 unclamped."""
    most = _most(parts)
    inverse = np.where(most > 0, np.float32(top) / most, _ZERO)
    return half(most / np.float32(top)), nearest(inverse * parts).astype(np.uint8)


def _affine_k(
    rows: Floats, importance: Floats | None, plain: Affine, weighted: Affine, *, clamp: bool
) -> tuple[Bytes, Bytes]:
    """Quantize to eight sub-blocks of 32 with scale and minimum; return the head and the codes."""
    blocks = rows.reshape(-1, _SUPER)
    x = sub_blocks(blocks, 32)
    if importance is None:
        mean = np.sqrt(serial_sum(x * x) / np.float32(32))
        scale, low, codes = affine(x, mean + np.abs(x), plain)
        d, scales = _levels(_by_part(scale, 8), 63)
        dmin, lows = _levels(_by_part(low, 8), 63)
        clamp = True
    else:
        w, sums = _spread(blocks, _tiled(importance, blocks), 32, 2)
        scale, low, codes = affine(x, w, weighted)
        wide, scales = positive(_by_part(scale, 8), sums, 63)
        wide_low, lows = positive(_by_part(low, 8), sums, 63)
        d, dmin = half(wide), half(wide_low)
    if clamp:
        scales, lows = np.minimum(scales, np.uint8(63)), np.minimum(lows, np.uint8(63))
    packed = _six_bits(scales, lows)
    scales, lows = _six_bits_read(packed)
    stored = _by_sub_block(unhalf(d) * floats(scales))
    stored_low = _by_sub_block(unhalf(dmin) * floats(lows))
    final = _recoded(x, codes, stored, stored_low, 0, plain.top)
    return np.concatenate([half_bytes(d), half_bytes(dmin), packed], axis=1), final


def _q4_k(rows: Floats, importance: Floats | None) -> Bytes:
    head, codes = _affine_k(rows, importance, Q4_K, Q4_WEIGHTED, clamp=False)
    return np.concatenate([head, _pairs(codes)], axis=1)


def _q5_k(rows: Floats, importance: Floats | None) -> Bytes:
    head, codes = _affine_k(rows, importance, Q5_K, Q5_WEIGHTED, clamp=True)
    fifth = np.packbits(codes.reshape(-1, 8, 32) >> _FOUR, axis=1, bitorder="little")
    return np.concatenate([head, fifth.reshape(-1, 32), _pairs(codes & _LOW)], axis=1)


def _q2_k(rows: Floats, importance: Floats | None) -> Bytes:
    blocks = rows.reshape(-1, _SUPER)
    x = sub_blocks(blocks, 16)
    if importance is None:
        scale, low, codes = affine(x, np.abs(x), Q2_K)
        d, scales = _levels(_by_part(scale, 16), 15)
        dmin, lows = _levels(_by_part(low, 16), 15)
    else:
        w, sums = _spread(blocks, _tiled(importance, blocks), 16, 1)
        scale, low, codes = affine(x, w, Q2_WEIGHTED)
        wide, scales = positive(_by_part(scale, 16), sums, 15)
        wide_low, lows = positive(_by_part(low, 16), sums, 15)
        d, dmin = half(wide), half(wide_low)
    packed = scales | lows << _FOUR
    stored = _by_sub_block(unhalf(d) * floats(packed & _LOW))
    stored_low = _by_sub_block(unhalf(dmin) * floats(packed >> _FOUR))
    final = _recoded(x, codes, stored, stored_low, 0, 3)
    return np.concatenate([packed.T, _quarters(final), half_bytes(d), half_bytes(dmin)], axis=1)


def _q3_scales(levels: Bytes) -> Bytes:
    """Return sixteen 6-bit levels `[16, n]` as bytes `[n, 12]`."""
    low, high = levels & _LOW, levels >> _FOUR & np.uint8(3)
    top = high[:4] | high[4:8] << np.uint8(2) | high[8:12] << _FOUR | high[12:] << np.uint8(6)
    return np.concatenate([low[:8] | low[8:] << _FOUR, top]).T


def _q3_k(rows: Floats, importance: Floats | None) -> Bytes:
    blocks = rows.reshape(-1, _SUPER)
    x = sub_blocks(blocks, 16)
    if importance is None:
        scale, codes = refined(x, 4)
        parts = _by_part(scale, 16)
        inverse = np.float32(-32) / largest(parts)[1]
        lost = np.isinf(inverse) & (largest(parts)[1] == 0)
        narrow = nearest(inverse * parts).astype(np.int8)
        levels = np.clip(narrow, -32, 31).astype(np.int32) + np.int32(32)
        levels = np.where(lost, np.int32(0), levels)
        d = half(np.where(lost, _ZERO, _ONE / inverse))
    else:
        w, sums = _spread(blocks, _tiled(importance, blocks), 16, 2)
        scale, codes = symmetric(x, w, 4)
        wide, levels = symmetric(_by_part(scale, 16), sums, 32)
        d = half(wide)
    stored = _by_sub_block(unhalf(d) * floats(levels - np.int32(32)))
    final = _recoded(x, codes, stored, None, -4, 3)
    high = np.packbits(final.reshape(-1, 8, 32) > 3, axis=1, bitorder="little").reshape(-1, 32)
    low = _quarters(final & np.uint8(3))
    return np.concatenate([high, low, _q3_scales(levels.astype(np.uint8)), half_bytes(d)], axis=1)


def _q6_k(rows: Floats, importance: Floats | None) -> Bytes:
    blocks = rows.reshape(-1, _SUPER)
    x = sub_blocks(blocks, 16)
    w = x * x if importance is None else sub_blocks(_tiled(importance, blocks), 16)
    scale, codes = symmetric(x, w, 32)
    parts = _by_part(scale, 16)
    most, signed = largest(parts)
    inverse = np.float32(-128) / signed
    d = half(_ONE / inverse)
    levels = np.minimum(nearest(inverse * parts), 127).astype(np.int8)
    stored = _by_sub_block(unhalf(d) * floats(levels))
    final = _recoded(x, codes, stored, None, -32, 31)
    runs = final.reshape(-1, 2, 4, 32)
    low = (runs[:, :, :2] & _LOW) | (runs[:, :, 2:] & _LOW) << _FOUR
    high = _quarters(final >> _FOUR)
    out = np.concatenate(
        [low.reshape(-1, 128), high, levels.T.view(np.uint8), half_bytes(d)], axis=1
    )
    out[most < TINY] = 0
    return out


def q2_k(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q2_K: `quantize_q2_K`."""
    return in_pieces(rows, importance, rows.shape[1] // _SUPER * 84, _q2_k)


def q3_k(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q3_K: `quantize_q3_K`."""
    return in_pieces(rows, importance, rows.shape[1] // _SUPER * 110, _q3_k)


def q4_k(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q4_K: `quantize_q4_K`."""
    return in_pieces(rows, importance, rows.shape[1] // _SUPER * 144, _q4_k)


def q5_k(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q5_K: `quantize_q5_K`."""
    return in_pieces(rows, importance, rows.shape[1] // _SUPER * 176, _q5_k)


def q6_k(rows: Floats, importance: Floats | None) -> Bytes:
    """Write Q6_K: `quantize_q6_K`."""
    return in_pieces(rows, importance, rows.shape[1] // _SUPER * 210, _q6_k)
