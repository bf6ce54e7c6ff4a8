"""The compiler's own quantizer for float weights: `A16MatMulAdjust`, step by step in float32.

Per group of g input features, with top = 15 (4 bits) or 255 (8 bits)::

    asymmetric   s = max(max - min, 1e-5) / top    z = clip(-round(min / s), 0, top)
    symmetric    s = 2 * max|w| / top              z = 8 or 128
    both         q = clip(round(w / s) + z, 0, top)

Per channel (g = 0): 4 bits as the asymmetric form, whatever was asked; 8 bits
s = max|w| / 127, signed codes, z = 0, or max|w| / 255 and unsigned codes if every weight of the
whole matrix is positive. `round` takes ties away from zero. The float32 s makes the codes; the
stored s is rounded to bf16 afterwards.

Upstream defect, reproduced: min and max are not extended to hold 0. In a group whose weights all
have one sign, z is clipped, the codes saturate and the weights are lost (0.50 to 0.69 come back as
0.08 to 0.19), with no warning. `Quantized.clipped` marks those groups.

Source: tpu-mlir 05452d0, lib/Dialect/Tpu/Canonicalize/A16MatMul.cpp; equal on every weight to
what 1.28.1 and 1.30.2 write. SG2380 quantizes per channel by another formula, not done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.encodings.layers.canonical import Canonical
from qassay.runtimes.arithmetic import round_away
from qassay.runtimes.sophgo.bfloat16 import bf16, bf16_bits
from qassay.runtimes.sophgo.packing import known_width, pack

Floats = npt.NDArray[np.float32]

_LEAST_RANGE = np.float32(1e-5)
_INT32 = np.float32(2**31)


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """A Linear as `A16MatMulAdjust` leaves it.

    Attributes:
        codes: `[N, K]`, uint8; int8 where `sign` and one scale a channel at 8 bits.
        scales: float32 `[N, G]`, as used for the codes.
        zeros: uint8 `[N, G]`.
        clipped: bool `[N, G]`: groups whose zero point did not fit and was clipped. Where it was
            by more than a step, the group's weights are wrong by far more than half a step.
        weight_bits: 4 or 8.
        group_size: g; 0 for one scale a channel.
        sign: The attribute `sign` of the operation: some weight is not positive.
    """

    codes: npt.NDArray[Any]
    scales: Floats
    zeros: npt.NDArray[np.uint8]
    clipped: npt.NDArray[np.bool_]
    weight_bits: int
    group_size: int
    sign: bool

    def stored_scales(self) -> npt.NDArray[np.uint16]:
        """Return the scales as stored: bf16 bit patterns `[N, G]`."""
        return bf16_bits(self.scales)

    def stored_codes(self) -> npt.NDArray[np.uint8]:
        """Return the weight as stored: uint8 `[N, K * weight_bits / 8]`."""
        return pack(self.codes, self.weight_bits)

    def canonical(self) -> Canonical:
        """Return the canonical form, with the scales that are stored."""
        return canonical(self.codes, bf16(self.scales), self.zeros)


def canonical(codes: npt.NDArray[Any], scales: Floats, zeros: npt.NDArray[Any]) -> Canonical:
    """Return the canonical form of codes `[N, K]`, scales and zero points `[N, G]`.

    Raises:
        UsageError: The shapes do not belong together.
    """
    n, k = codes.shape
    if scales.ndim != 2 or scales.shape[0] != n or scales.shape != zeros.shape:
        raise UsageError(
            "scales and zero points are not those of this weight",
            expected=f"[{n}, G] twice",
            found=f"{list(scales.shape)} and {list(zeros.shape)}",
        )
    groups = scales.shape[1]
    if not groups or k % groups:
        raise UsageError(
            "the groups do not tile K", expected=f"a divisor of {k}", found=f"{groups} groups"
        )
    return Canonical(
        codes=codes,
        scales=np.asarray(scales, np.float32),
        groups=np.arange(k, dtype=np.int32) // np.int32(k // groups),
        zeros=zeros.astype(np.int16),
    )


@np.errstate(all="ignore")
def quantize(
    weights: npt.ArrayLike, *, weight_bits: int = 4, group_size: int = 64, symmetric: bool = False
) -> Quantized:
    """Quantize a Linear as the compiler does in the modes W4BF16, W4F16, W8BF16 and W8F16.

    Args:
        weights: `[N, K]`; converted to float32. The compiler holds `[K, N]` and transposes.
        weight_bits: 4 or 8.
        group_size: g; 0 for one scale a channel.
        symmetric: `q_symmetric`; without effect where there is one scale a channel.

    Raises:
        UsageError: No matrix; a NaN or an infinity, for which the compiler's C++ defines no
            result; K is no multiple of g, in which case the compiler leaves a MatMul; an odd K
            at 4 bits.
    """
    known_width(weight_bits)
    matrix = np.ascontiguousarray(weights, np.float32)
    if matrix.ndim != 2 or not matrix.size:
        raise UsageError("no matrix", expected="[N, K]", found=str(list(matrix.shape)))
    if not np.isfinite(matrix).all():
        raise UsageError(
            "the compiler's quantizer is not defined for NaN and infinities",
            expected="finite weights",
            found=f"{int((~np.isfinite(matrix)).sum())} others",
        )
    n, k = matrix.shape
    if group_size < 0 or (group_size and k % group_size):
        raise UsageError(
            "the groups do not tile K: the compiler leaves this Linear at 16 bits",
            expected=f"g a divisor of {k}, or 0",
            found=str(group_size),
        )
    if weight_bits == 4 and k % 2:
        raise UsageError("4-bit rows of an odd length", expected="an even K", found=str(k))
    sign = not bool(matrix.min() > 0)
    grouped = matrix.reshape(n, -1, group_size or k)
    if not group_size and weight_bits == 8:
        return _per_channel_8(matrix, sign)
    top = np.float32((1 << weight_bits) - 1)
    if symmetric and group_size:
        scales = np.float32(2) * np.abs(grouped).max(axis=2) / top
        wanted = np.full_like(scales, 1 << (weight_bits - 1))
    else:
        low = grouped.min(axis=2)
        scales = np.maximum(grouped.max(axis=2) - low, _LEAST_RANGE) / top
        wanted = -_to_int(round_away(low / scales))
    zeros = np.clip(wanted, 0, top)
    codes = round_away(grouped / scales[:, :, None]) + zeros[:, :, None]
    # 0 / 0 in a symmetric group of zeros: the conversion of NaN gives the least integer on x86-64.
    kept = np.clip(np.where(np.isnan(codes), np.float32(0), codes), 0, top)
    return Quantized(
        codes=kept.astype(np.uint8).reshape(n, k),
        scales=scales,
        zeros=zeros.astype(np.uint8),
        clipped=wanted != zeros,
        weight_bits=weight_bits,
        group_size=group_size,
        sign=sign,
    )


def _per_channel_8(matrix: Floats, sign: bool) -> Quantized:
    """One scale a channel at 8 bits: symmetric; unsigned if the whole matrix is positive."""
    top = np.float32(127 if sign else 255)
    scales = np.abs(matrix).max(axis=1, keepdims=True) / top
    low = np.float32(-128 if sign else 0)
    codes = round_away(matrix / scales)
    kept = np.clip(np.where(np.isnan(codes), low, codes), low, top)
    return Quantized(
        codes=kept.astype(np.int8 if sign else np.uint8),
        scales=scales,
        zeros=np.zeros(scales.shape, np.uint8),
        clipped=np.zeros(scales.shape, np.bool_),
        weight_bits=8,
        group_size=0,
        sign=sign,
    )


def _to_int(values: Floats) -> Floats:
    """Return what `(int)` makes of whole float32 numbers on x86-64, as float32.

    Beyond 32 bits it is the least integer, whose negation is itself: such a zero point becomes 0.
    """
    return np.where(np.abs(values) < _INT32, values, _INT32)
