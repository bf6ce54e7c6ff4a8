"""decode(quantize(x)) of the K-quants is as close as their searches and scales allow.

A search picks scales, so a weight's error has no bound from the block's extremes alone. Two facts
hold for every sub-block, and together they leave no room for a wrong code, scale or packing:

1. Given what is stored, each weight has the code whose value is nearest. (The search's codes are
   thrown away; the weights are coded anew with D sc and Dmin m as stored.)

2. The error that the search makes small, a mean over the sub-block with ggml's weights w, is at
   most that of the plain quantization it starts from, plus what storing scales adds. Let e be a
   weight's error with the search's own scale, minimum and codes l, and e' the one that is left.
   The scale is stored off by Ds, the minimum by Dm; with the codes l the error would be at most
   e + |l| Ds + Dm, and by 1. it is no larger. The mean being a norm,

       mean(e') <= mean(e) + L Ds + Dm,     L the largest |l|

   - mean(e) <= half a step for Q2_K, Q4_K, Q5_K: the search begins with (max - min) / L and takes
     what has a smaller error. The minimum counts as 0 where it is above.
   - Q3_K and Q6_K begin with the scale extreme / -L: half a step, but a weight of the other sign
     is cut off at L - 1, up to a step away.
   - Ds <= d / 2 (a level is rounded) + level |D - d|; a level cut off at the largest loses up to
     a whole d. Dm likewise. |D - d| <= max(2^-11 d, 2^-25) is half a unit of f16.

Means and weights: Q2_K takes |x| w with w = |x|, Q3_K and Q6_K squares with w = x^2, Q4_K and Q5_K
squares with w = |x| + the root mean square of the sub-block.

The sums behind it are float32. Weights beyond some 1e7 (their cubes, beyond 1e12) overflow them,
and a sub-block may become zeros: the verdict calls such a block lost, overflowing or coarse.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from finite_rows import finite_rows, seeded
from hypothesis import given, settings

from qassay.encodings import BlockEncoding, by_id
from qassay.encodings.base import Blocks
from qassay.runtimes.ggml import GgmlEngine
from qassay.runtimes.preflight_settle import settle

Doubles = npt.NDArray[np.float64]
KINDS = ["q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]


@pytest.fixture(autouse=True, scope="module")
def _compiled():
    """Let the preflight run the compiled quantizers however few blocks there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QASSAY_KERNELS", "fast")
        yield


@dataclass(frozen=True)
class Kept:
    """What is stored of blocks: arrays `[n, groups, 1]`, and the codes' range."""

    d: Doubles
    level: Doubles
    dmin: Doubles
    low_level: Doubles
    least: int
    top: int

    @property
    def scale(self) -> Doubles:
        return self.d * self.level

    @property
    def minimum(self) -> Doubles:
        return self.dmin * self.low_level


def encoding_of(to: str) -> type[BlockEncoding]:
    encoding = by_id(to)
    assert issubclass(encoding, BlockEncoding)
    return encoding


def kept(to: str, raw: np.ndarray) -> Kept:
    encoding = encoding_of(to)
    blocks = Blocks(encoding, raw)
    ranged = encoding.sub_mins is not None
    values = encoding.codes.values(encoding.code_bits())
    nothing = np.zeros((len(raw), 1, 1))
    return Kept(
        blocks.d.astype(float),
        blocks.sc.astype(float),
        blocks.dmin.astype(float) if ranged else nothing,
        blocks.m.astype(float) if ranged else nothing,
        int(values[0]),
        int(values[-1]),
    )


def nearest_error(x: Doubles, own: Kept) -> Doubles:
    """Return how far the nearest of the stored values is from each weight."""
    scale, shifted = own.scale, x + own.minimum
    steps = np.divide(shifted, scale, out=np.zeros_like(x), where=scale != 0)
    return np.abs(np.clip(np.rint(steps), own.least, own.top) * scale - shifted)


def mean_error(to: str, x: Doubles, error: Doubles) -> Doubles:
    """Return the mean that ggml's search of this type makes small, `[n, groups]`."""
    size = np.abs(x)
    if to == "q2_k":
        total = size.sum(axis=2)
        weighted = (size * error).sum(axis=2)
        return np.divide(weighted, total, out=np.zeros_like(total), where=total != 0)
    w = size**2
    if to in ("q4_k", "q5_k"):
        w = size + np.sqrt((size**2).mean(axis=2, keepdims=True))
    total = w.sum(axis=2)
    weighted = (w * error**2).sum(axis=2)
    return np.sqrt(np.divide(weighted, total, out=np.zeros_like(total), where=total != 0))


def begun_with(x: Doubles, own: Kept) -> Doubles:
    """Return the largest error of the plain quantization of each sub-block."""
    if own.least == 0:
        low = np.minimum(x.min(axis=2), 0)
        return (x.max(axis=2) - low) / own.top / 2
    step = np.abs(x).max(axis=2) / -own.least
    other = np.take_along_axis(x, np.abs(x).argmax(axis=2, keepdims=True), axis=2) < 0
    opposite = np.where(other, x, -x).max(axis=2)
    return np.maximum(step / 2, opposite - own.top * step)


def storing(d: Doubles, level: Doubles, last: int) -> Doubles:
    """Return how far a sub-scale may be from what the search asked for."""
    unit = np.abs(d)
    off = np.maximum(2.0**-11 * unit * (1 + 2.0**-10), 2.0**-25)
    rounded = np.where(np.abs(level) >= last, 1.0, 0.5)
    return rounded * (unit + off) + np.abs(level) * off


def check(to: str, x: np.ndarray) -> None:
    encoding = encoding_of(to)
    raw = GgmlEngine.quantize(x, encoding).reshape(-1, encoding.block_bytes)
    values = encoding.dequantize(raw.reshape(-1)).astype(float).reshape(x.shape)
    verdict = settle(x, encoding)
    finite = np.isfinite(values).all(axis=1)
    assert np.array_equal(~finite, verdict.overflow)
    finite &= ~verdict.lost
    assert np.array_equal(x.any(axis=1) & ~values.any(axis=1), verdict.lost)
    assert not (verdict.coarse & (verdict.lost | verdict.overflow)).any()
    own, shape = kept(to, raw[finite]), (-1, encoding.block // encoding.group, encoding.group)
    sub = x[finite].astype(float).reshape(shape)
    error = np.abs(values[finite] - x[finite]).reshape(shape)
    rounding = 2.0**-20 * (np.abs(sub) + own.minimum + np.abs(own.scale))
    within = error <= nearest_error(sub, own) + rounding
    assert within.all(), x[finite][~within.all(axis=(1, 2))][:1]
    last = {"q2_k": 15, "q3_k": 31, "q4_k": 63, "q5_k": 63, "q6_k": 127}[to]
    codes = max(own.top, -own.least)
    added = codes * storing(own.d, own.level, last)
    if own.least == 0:
        added = added + storing(own.dmin, own.low_level, last)
    allowed = begun_with(sub, own) + added[:, :, 0] + 2.0**-149
    mean = mean_error(to, sub, error)
    within = (mean <= allowed * (1 + 2.0**-10)).all(axis=1) | verdict.coarse[finite]
    assert within.all(), x[finite][~within][:1]


@pytest.mark.parametrize("to", KINDS)
@settings(max_examples=15, deadline=None)
@given(x=finite_rows(256))
def test_blocks(to: str, x: np.ndarray) -> None:
    check(to, x)


@pytest.mark.parametrize("to", KINDS)
def test_many_blocks(to: str) -> None:
    check(to, seeded(7, 200, 256))
