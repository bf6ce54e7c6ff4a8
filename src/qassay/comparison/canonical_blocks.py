"""ggml's block encodings in canonical form.

The roles that a declaration gives its fields are enough: the product of the block's scale and its
sub-scales is the scale of a group, and a minimum is what is added to it::

    q4_0, q5_0      (q - zero) * d                     zero 8, 16
    q8_0            q * d                              q signed
    q4_1, q5_1      q * d + m
    q2_k, q4_k ...  q * (d * sc) + -(dmin * m)         per sub-block
    q3_k, q6_k      (q - zero) * (d * sc)              zero 4, 32
    iq4_nl, mxfp4   table[q] * d                       mxfp4: table doubled, 2^(e - 128)
    nvfp4           table[q] * d[sub-block]            the tensor's own scale is `<name>.scale`

Each product is rounded to float32 once, in the order of ggml's decoder, so that `dequantize` of
the form equals the decoder's output bit for bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Blocks
from qassay.encodings.fields import Role
from qassay.encodings.layers.canonical import Canonical


def canonical_rows(encoding: type[BlockEncoding], raw: Bytes, columns: int) -> Canonical:
    """Return stored rows in canonical form.

    Args:
        encoding: The rows' encoding.
        raw: uint8 `[rows * columns / block * block_bytes]`.
        columns: K, a multiple of the block.

    Returns:
        Codes `[rows, K]`, scales `[rows, K / group]`; signed codes as int8, others as uint8.
    """
    stored = encoding.as_blocks(raw)
    blocks = Blocks(encoding, stored)
    groups = columns // encoding.group
    codes = encoding.codes
    bits = encoding.code_bits()
    integers = bits.unpack(stored).reshape(-1, columns)
    per_block = encoding.block // encoding.group
    with np.errstate(over="ignore", invalid="ignore"):
        scales = _scales(encoding, blocks)
        minimums = _minimums(encoding, blocks)
    every = (stored.shape[0], per_block, 1)

    def laid(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.ascontiguousarray(np.broadcast_to(values, every)).reshape(-1, groups)

    zero = None
    if codes.lookup is None and codes.zero:
        zero = np.full((integers.shape[0], groups), codes.zero, np.int16)
    return Canonical(
        codes=integers.astype(np.int8 if bits.signed else np.uint8),
        scales=laid(np.asarray(scales, np.float32)),
        groups=np.arange(columns, dtype=np.int32) // np.int32(encoding.group),
        zeros=zero,
        minimums=None if minimums is None else laid(np.asarray(minimums, np.float32)),
        table=None if codes.lookup is None else codes.values(bits),
    )


def _scales(encoding: type[BlockEncoding], blocks: Blocks) -> npt.NDArray[Any]:
    field = encoding.scale_of(Role.SCALE)
    scale: npt.NDArray[Any] | None = None if field is None else getattr(blocks, field.name)
    if encoding.sub_scales is None and not encoding.sub_fields:
        return np.ones((1, 1, 1), np.float32) if scale is None else scale
    return blocks.sc.astype(np.float32) if scale is None else scale * blocks.sc


def _minimums(encoding: type[BlockEncoding], blocks: Blocks) -> npt.NDArray[Any] | None:
    field = encoding.scale_of(Role.MIN_SCALE)
    if field is not None:
        assert encoding.sub_mins is not None  # noqa: S101 - declared together
        minimum: npt.NDArray[Any] = -(getattr(blocks, field.name) * blocks.m)
        return minimum
    field = encoding.scale_of(Role.OFFSET)
    offset: npt.NDArray[Any] | None = None if field is None else getattr(blocks, field.name)
    return offset
