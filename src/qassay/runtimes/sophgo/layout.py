"""The order in which the device wants scales and zero points: there and back.

With P lanes, h = N / P and w = K / g, channel n = j * P + i goes to lane i, row j::

    before                          after, PLAIN
    scale [N, w]                    scale [P, h, w] u16      scale'[i, j, k] = scale[j*P + i, k]
    zero  [N, w]                    zero  [P, h, w] u8       zero'[i, j, k]  = zero[j*P + i, k]

                                    after, INTERLEAVED: one tensor [P, h, 2w] of u16
                                    column   2k                    2k + 1
                                             zero[j*P + i, k]      scale[j*P + i, k]
                                             as bf16 or f16
                                    read as u32:  [31:16] scale  [15:0] zero point

                                    after, INTERLEAVED_IN_ORDER: typed [P, h, 2w], but the bytes
                                    are those of [N, 2w] in the old order of channels

    N = P is the identity: a test with it alone proves nothing.

The packed weight does not move (SG2380 with four cores and one row of input excepted, which is
not undone here). Source: `chips.SOURCES`, weight_reorder_A16MatMul.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.runtimes.sophgo.bfloat16 import bf16_bits, of_bf16
from qassay.runtimes.sophgo.chips import PER_CHANNEL_GROUP, Branch

Half = Literal["bf16", "f16"]
Patterns = npt.NDArray[np.uint16]
Zeros = npt.NDArray[np.uint8]

ABORT_TEXT = "invalid scale channel"
"""What the compiler prints, in each of the branches, before it aborts."""


@dataclass(frozen=True, slots=True, eq=False)
class Reordered:
    """Scale and zero point as the device takes them.

    Attributes:
        scales: uint16 bit patterns, `[P, h, w]`; interleaved with zero points `[P, h, 2w]`.
        zeros: uint8 `[P, h, w]`; None where they are interleaved with the scales.
        branch: Which layout.
    """

    scales: Patterns
    zeros: Zeros | None
    branch: Branch


def _matrix(array: npt.NDArray[Any], what: str, kind: type[np.generic]) -> None:
    if array.ndim != 2 or array.dtype != kind:
        raise UsageError(
            f"{what} before the reorder is a matrix",
            expected=f"{np.dtype(kind).name} [N, K/g]",
            found=f"{array.dtype} {list(array.shape)}",
        )


def _lanes(lanes: int) -> None:
    if lanes < 1:
        raise UsageError("a number of lanes is positive", expected="P >= 1", found=str(lanes))


def check_channels(n: int, lanes: int) -> int:
    """Return h = N / P.

    Raises:
        UsageError: N is no multiple of P: the compiler aborts with `invalid scale channel`. The
            check looks at dimension 0 of the scale; no group size changes that.
    """
    _lanes(lanes)
    if n % lanes or n < 1:
        raise UsageError(
            ABORT_TEXT,
            expected=f"N a positive multiple of {lanes} (scale_shape[0] % NPU_NUM == 0)",
            found=f"N = {n}",
            hint=f"pad N to {-(-max(n, 1) // lanes) * lanes}, or keep this layer at 16 bits;"
            " another group size changes K/g only",
        )
    return n // lanes


def reorder(
    scales: Patterns, zeros: Zeros, *, lanes: int, branch: Branch, half: Half = "bf16"
) -> Reordered:
    """Return scale and zero point in the device's order.

    Args:
        scales: uint16 bit patterns `[N, w]`, w = K/g.
        zeros: uint8 `[N, w]`.
        lanes: P.
        branch: The layout; `Branch.NONE` leaves everything as it is.
        half: What the 16 bits are; an interleaved zero point becomes a number of that type.

    Raises:
        UsageError: N is no multiple of P, with the compiler's own text, or types or shapes
            disagree.
    """
    _matrix(scales, "the scale", np.uint16)
    _matrix(zeros, "the zero point", np.uint8)
    if scales.shape != zeros.shape:
        raise UsageError(
            "scale and zero point have different shapes",
            expected=str(list(scales.shape)),
            found=str(list(zeros.shape)),
        )
    if branch is Branch.NONE:
        return Reordered(scales, zeros, branch)
    n, w = scales.shape
    h = check_channels(n, lanes)
    if branch is Branch.PLAIN:
        return Reordered(deal(scales, lanes), deal(zeros, lanes), branch)
    both = np.empty((n, 2 * w), np.uint16)
    both[:, 0::2] = _as_half(zeros, half)
    both[:, 1::2] = scales
    if branch is Branch.INTERLEAVED:
        return Reordered(deal(both, lanes), None, branch)
    return Reordered(both.reshape(lanes, h, 2 * w), None, branch)


def restore(reordered: Reordered, *, half: Half = "bf16") -> tuple[Patterns, Zeros]:
    """Return scale, uint16 `[N, w]`, and zero point, uint8 `[N, w]`; the inverse of `reorder`.

    Raises:
        UsageError: Shapes or types are not those of that layout, or an interleaved zero point is
            no whole number from 0 to 255.
    """
    scales, zeros, branch = reordered.scales, reordered.zeros, reordered.branch
    if branch is Branch.NONE:
        if zeros is None:
            raise UsageError("the zero point is missing", expected="uint8 [N, w]", found="none")
        _matrix(scales, "the scale", np.uint16)
        _matrix(zeros, "the zero point", np.uint8)
        return scales, zeros
    if scales.ndim != 3 or scales.dtype != np.uint16:
        raise UsageError(
            "the scale is not in the device's order",
            expected="uint16 [P, h, w]",
            found=f"{scales.dtype} {list(scales.shape)}",
        )
    if branch is Branch.PLAIN:
        if zeros is None or zeros.shape != scales.shape or zeros.dtype != np.uint8:
            raise UsageError(
                "scale and zero point are reordered together",
                expected=f"uint8 {list(scales.shape)}",
                found="none" if zeros is None else f"{zeros.dtype} {list(zeros.shape)}",
            )
        return collect(scales), collect(zeros)
    if zeros is not None or scales.shape[2] % 2:
        raise UsageError(
            "interleaved scales hold their zero points",
            expected="[P, h, 2w] and no tensor of zero points",
            found=f"{list(scales.shape)}" + ("" if zeros is None else " and one"),
        )
    lanes, h, double = scales.shape
    permuted = branch is Branch.INTERLEAVED
    both = collect(scales) if permuted else scales.reshape(lanes * h, double)
    return np.ascontiguousarray(both[:, 1::2]), _of_half(both[:, 0::2], half)


def deal(rows: npt.NDArray[Any], lanes: int) -> npt.NDArray[Any]:
    """Deal rows `[N, ...]` to P lanes: `[P, N/P, ...]`, row j * P + i to lane i.

    Raises:
        UsageError: N is no multiple of P, with the compiler's own text.
    """
    h = check_channels(rows.shape[0], lanes)
    return np.ascontiguousarray(rows.reshape(h, lanes, *rows.shape[1:]).swapaxes(0, 1))


def collect(dealt: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `[P, h, ...]` as rows `[P * h, ...]` in the order before `deal`."""
    lanes, h = dealt.shape[:2]
    rows: npt.NDArray[Any] = np.ascontiguousarray(dealt.swapaxes(0, 1))
    old: npt.NDArray[Any] = rows.reshape(lanes * h, *dealt.shape[2:])
    return old


def per_channel_to_groups(values: npt.NDArray[Any], k: int) -> npt.NDArray[Any]:
    """Return what `A16MatMulToGroup` makes of a scale or zero point per channel: `[N, K // 128]`.

    The compiler divides integers: K = 192 gives one group of 128, and the last 64 input features
    have no scale at all. It notices at `--codegen` only ("invalid weight size").

    Raises:
        UsageError: The values are not `[N, 1]`.
    """
    if values.ndim != 2 or values.shape[1] != 1:
        raise UsageError("no value per channel", expected="[N, 1]", found=str(list(values.shape)))
    groups: npt.NDArray[Any] = np.repeat(values, k // PER_CHANNEL_GROUP, axis=1)
    return groups


def _as_half(zeros: Zeros, half: Half) -> Patterns:
    if half == "bf16":
        return bf16_bits(zeros.astype(np.float32))
    return zeros.astype(np.float16).view(np.uint16)


def _of_half(patterns: Patterns, half: Half) -> Zeros:
    stored = np.ascontiguousarray(patterns)
    values = of_bf16(stored) if half == "bf16" else stored.view(np.float16).astype(np.float32)
    whole = (values >= 0) & (values <= 255) & (values == np.trunc(values))
    if not whole.all():
        bad = values[~whole].flat[0]
        raise UsageError(
            "an interleaved zero point is no whole number from 0 to 255: another layout, or not"
            f" {half}",
            expected="0, 1, ..., 255",
            found=str(bad),
        )
    return values.astype(np.uint8)
