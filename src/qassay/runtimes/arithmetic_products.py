"""Products of quantized weights with quantized activations, in the order of the scalar code.

Each weight type has a partner that activations are quantized to. The dot product of a block is
taken in integers, scaled in float32, and added to a float32 sum block after block. Vector code
adds in another order and differs in the last bits; the order here is that of ggml's
`ggml_vec_dot_*_generic` and candle's `vec_dot_unopt`, which differ from one another too.

All integer sums fit in 24 bits, so that float32 matrix products compute them exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Blocks, Floats
from qassay.runtimes.arithmetic_activations import Activations, q8_0, q8_1, q8_k

Product = Callable[["Weights", Activations], Floats]


class Weights:
    """A quantized matrix taken apart: float32 arrays `[N, blocks, ...]`.

    Attributes:
        codes: `[N, blocks, block]`, what the codes stand for.
        group: Weights under one sub-scale.
    """

    def __init__(self, encoding: type[BlockEncoding], raw: Bytes, rows: int) -> None:
        self._parts = Blocks(encoding, encoding.as_blocks(raw))
        self._rows = rows
        self.group = encoding.group
        self.codes = self.part("q", encoding.block)

    def part(self, name: str, count: int = 1) -> Floats:
        """Return a field or run of integers, `count` of it to a block."""
        values: npt.NDArray[Any] = getattr(self._parts, name)
        return np.asarray(values, np.float32).reshape(self._rows, -1, count)

    def number(self, name: str) -> Floats:
        """Return a number stored once a block, `[blocks, 1, N]`: ready to meet `[M, N]`."""
        turned: Floats = self.part(name)[:, :, 0].T[:, None, :]
        return turned


def _dots(weights: Weights, x: Activations, block: int) -> Floats:
    """Return the integer dot products of block `block`, float32 `[M, N]`, exact."""
    dots: Floats = x.codes[:, block].astype(np.float32) @ weights.codes[:, block].T
    return dots


def _plain(order: str) -> Product:
    """Return the product with Q8_0 partners; `order` says which two factors meet first."""

    def product(weights: Weights, x: Activations) -> Floats:
        scales = weights.number("d")
        total = np.zeros((x.scale.shape[0], weights.codes.shape[0]), np.float32)
        for block in range(x.scale.shape[1]):
            dots, scale = _dots(weights, x, block), x.scale[:, block, None]
            if order == "(q w) x":
                total = total + dots * scales[block] * scale
            else:
                total = total + dots * (scales[block] * scale)
        return total

    return product


def _power_of_two(weights: Weights, x: Activations) -> Floats:
    """Multiply MXFP4 weights with Q8_0 activations."""
    scales = weights.number("e")
    total = np.zeros((x.scale.shape[0], weights.codes.shape[0]), np.float32)
    for block in range(x.scale.shape[1]):
        total = total + (x.scale[:, block, None] * scales[block]) * _dots(weights, x, block)
    return total


def _with_offset(order: str) -> Product:
    """Return the product with Q8_1 partners: the minimum meets the stored sum `s`."""

    def product(weights: Weights, x: Activations) -> Floats:
        scales, offsets = weights.number("d"), weights.number("m")
        total = np.zeros((x.scale.shape[0], weights.codes.shape[0]), np.float32)
        assert x.sums is not None  # noqa: S101
        for block in range(x.scale.shape[1]):
            dots, scale = _dots(weights, x, block), x.scale[:, block, None]
            if order == "(q w) x":
                first = dots * scales[block] * scale
            else:
                first = (scales[block] * scale) * dots
            total = total + (first + offsets[block] * x.sums[:, block, None])
        return total

    return product


def _lanes(weights: Weights, x: Activations, block: int) -> Floats:
    """Return eight integer sums `[8, M, N]`: lane l adds the elements whose index mod 8 is l."""
    sub_scales = np.repeat(weights.part("sc", 256 // weights.group)[:, block], weights.group, 1)
    scaled = (weights.codes[:, block] * sub_scales).reshape(-1, 32, 8)
    codes = x.codes[:, block].astype(np.float32).reshape(-1, 32, 8)
    lanes: Floats = np.matmul(codes.transpose(2, 0, 1), scaled.transpose(2, 1, 0))
    return lanes


def _in_lanes(*, minimum: bool, sums_first: bool) -> Product:
    """Return the product of Q3_K to Q6_K with Q8_K: eight float32 lanes, added up at the end.

    Args:
        minimum: Whether the type has `dmin`, whose part is subtracted block by block.
        sums_first: Whether the lanes are added up before they meet the minimums' part (candle).
    """

    def product(weights: Weights, x: Activations) -> Floats:
        scales = weights.number("d")
        shape = (x.scale.shape[0], weights.codes.shape[0])
        lanes, below = np.zeros((8, *shape), np.float32), np.zeros(shape, np.float32)
        for block in range(x.scale.shape[1]):
            scale = x.scale[:, block, None]
            lanes = lanes + (scales[block] * scale) * _lanes(weights, x, block)
            if minimum:
                below = below - weights.number("dmin")[block] * scale * _mins(weights, x, block)
        total = np.zeros(shape, np.float32) if sums_first else below
        for lane in lanes:
            total = total + lane
        return below + total if sums_first else total

    return product


def _mins(weights: Weights, x: Activations, block: int) -> Floats:
    """Return the integer sums that `dmin` multiplies, `[M, N]`."""
    assert x.sums is not None  # noqa: S101
    mins = np.repeat(weights.part("m", 256 // weights.group)[:, block], weights.group // 16, 1)
    dots: Floats = x.sums[:, block].astype(np.float32) @ mins.T
    return dots


def _q2_k(weights: Weights, x: Activations) -> Floats:
    """Multiply Q2_K weights with Q8_K activations."""
    scales, mins = weights.number("d"), weights.number("dmin")
    total = np.zeros((x.scale.shape[0], weights.codes.shape[0]), np.float32)
    for block in range(x.scale.shape[1]):
        scale = x.scale[:, block, None]
        dots = _lanes(weights, x, block).sum(axis=0)
        first = (scale * scales[block]) * dots
        total = total + (first - (scale * mins[block]) * _mins(weights, x, block))
    return total


def _iq4_xs(weights: Weights, x: Activations) -> Floats:
    """Multiply IQ4_XS weights with Q8_K activations, sub-block after sub-block."""
    scales, subs = weights.number("d"), weights.part("sc", 8)
    total = np.zeros((x.scale.shape[0], weights.codes.shape[0]), np.float32)
    for block in range(x.scale.shape[1]):
        both = scales[block] * x.scale[:, block, None]
        for sub in range(8):
            cut = slice(32 * sub, 32 * sub + 32)
            dots = x.codes[:, block, cut].astype(np.float32) @ weights.codes[:, block, cut].T
            total = total + (both * subs[:, block, sub]) * dots
    return total


Partner = Callable[..., Activations]

GGML: dict[str, tuple[Partner, Product]] = {
    "ggml.q4_0": (q8_0, _plain("(q w) x")),
    "ggml.q5_0": (q8_0, _plain("q (w x)")),
    "ggml.q8_0": (q8_0, _plain("q (w x)")),
    "ggml.iq4_nl": (q8_0, _plain("q (w x)")),
    "ggml.mxfp4": (q8_0, _power_of_two),
    "ggml.q4_1": (q8_1, _with_offset("q (w x)")),
    "ggml.q5_1": (q8_1, _with_offset("q (w x)")),
    "ggml.q2_k": (q8_k, _q2_k),
    "ggml.q3_k": (q8_k, _in_lanes(minimum=False, sums_first=False)),
    "ggml.q4_k": (q8_k, _in_lanes(minimum=True, sums_first=False)),
    "ggml.q5_k": (q8_k, _in_lanes(minimum=True, sums_first=False)),
    "ggml.q6_k": (q8_k, _in_lanes(minimum=False, sums_first=False)),
    "ggml.iq4_xs": (q8_k, _iq4_xs),
}
"""Partner and product of each weight type on ggml's CPU path."""

CANDLE: dict[str, tuple[Partner, Product]] = {
    "ggml.q4_0": (q8_0, _plain("(q w) x")),
    "ggml.q5_0": (q8_0, _plain("(q w) x")),
    "ggml.q8_0": (q8_0, _plain("(q w) x")),
    "ggml.q4_1": (q8_1, _with_offset("(q w) x")),
    "ggml.q5_1": (q8_1, _with_offset("(q w) x")),
    "ggml.q2_k": (q8_k, _q2_k),
    "ggml.q3_k": (q8_k, _in_lanes(minimum=False, sums_first=False)),
    "ggml.q4_k": (q8_k, _in_lanes(minimum=True, sums_first=True)),
    "ggml.q5_k": (q8_k, _in_lanes(minimum=True, sums_first=True)),
    "ggml.q6_k": (q8_k, _in_lanes(minimum=False, sums_first=False)),
}
"""Partner and product of each weight type on candle's CPU path."""

CANDLE_PAIRS = frozenset({"ggml.q4_1", "ggml.q5_0", "ggml.q5_1"})
"""Types whose rows candle's CPU path only multiplies when they are an even number of blocks."""
