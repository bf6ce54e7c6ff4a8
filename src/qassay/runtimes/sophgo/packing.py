"""Codes and bytes: two 4-bit codes a byte, even input features in the low nibble.

::

    W4, weight ui8 [N, K/2]       byte   7 6 5 4   3 2 1 0
                                         q[2b+1]   q[2b]        b = index of the byte in its row
    W8, weight ui8 [N, K]         byte   q[k]

An 8-bit weight that the compiler quantized per channel is signed (`i8`) unless all weights are
positive. The npz of a W8 model holds int8 where the type says ui8; the bits are the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError

Codes = npt.NDArray[np.uint8]

WIDTHS = (4, 8)
"""`weight_bits` that A16MatMul has."""


def known_width(weight_bits: int) -> int:
    """Return `weight_bits` if A16MatMul has it.

    Raises:
        UsageError: It does not.
    """
    if weight_bits not in WIDTHS:
        raise UsageError("no such weight_bits", expected="4 or 8", found=str(weight_bits))
    return weight_bits


def pack(codes: npt.NDArray[Any], weight_bits: int) -> Codes:
    """Return codes `[N, K]` as the compiler stores them: uint8 `[N, K * weight_bits / 8]`.

    Args:
        codes: Unsigned integers below 2^weight_bits; int8 is taken for 8 bits, its bits kept.
        weight_bits: 4 or 8.

    Raises:
        UsageError: Another width, other types or shapes, a code out of range, or an odd K at 4.
    """
    known_width(weight_bits)
    if codes.ndim != 2 or codes.dtype.kind not in "ui":
        raise UsageError(
            "codes are no matrix of integers",
            expected="integers [N, K]",
            found=f"{codes.dtype} {list(codes.shape)}",
        )
    if weight_bits == 8 and codes.dtype == np.int8:
        bits: Codes = np.ascontiguousarray(codes).view(np.uint8)
        return bits
    top = (1 << weight_bits) - 1
    if codes.size and (int(codes.min()) < 0 or int(codes.max()) > top):
        raise UsageError(
            f"codes do not fit in {weight_bits} bits",
            expected=f"0 to {top}",
            found=f"{int(codes.min())} to {int(codes.max())}",
        )
    stored = codes.astype(np.uint8)
    if weight_bits == 8:
        return stored
    if codes.shape[1] % 2:
        raise UsageError(
            "4-bit rows of an odd length cannot be packed",
            expected="an even K",
            found=str(codes.shape[1]),
        )
    return np.asarray(stored[:, 0::2] | stored[:, 1::2] << 4, np.uint8)


def unpack(packed: npt.NDArray[Any], weight_bits: int) -> Codes:
    """Return the unsigned codes, uint8 `[N, K]`, of a stored weight; the inverse of `pack`.

    Args:
        packed: uint8 or int8 `[N, K/2]` (4 bits) or `[N, K]` (8 bits); only the bits count.
        weight_bits: 4 or 8.

    Raises:
        UsageError: Another width, type or number of axes.
    """
    known_width(weight_bits)
    if packed.ndim != 2 or packed.dtype not in (np.uint8, np.int8):
        raise UsageError(
            "a stored weight is a matrix of bytes",
            expected="uint8 or int8 [N, K * weight_bits / 8]",
            found=f"{packed.dtype} {list(packed.shape)}",
        )
    stored: Codes = np.ascontiguousarray(packed).view(np.uint8)
    if weight_bits == 8:
        return np.array(stored, np.uint8)
    codes = np.empty((stored.shape[0], 2 * stored.shape[1]), np.uint8)
    codes[:, 0::2] = stored & 15
    codes[:, 1::2] = stored >> 4
    return codes
