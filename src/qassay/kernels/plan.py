"""What a block kernel has to look for, derived once from an encoding's declaration.

A kernel makes one cheap pass over the blocks and returns three things: a histogram of every
scale field, the *candidates* (blocks whose bytes could decode to zeros only, or whose codes could
all lie at the ends of their range) and whether a forbidden code byte occurs. Everything rare is
then settled exactly, by the reference decoder, on the few blocks concerned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, per_encoding
from qassay.encodings.bits import Bits
from qassay.encodings.fields import BitsField, Health

MAY_BE_ZERO = 1
MAY_BE_SATURATED = 2


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Bytes of a block that all mean the same.

    Attributes:
        offset: First byte.
        length: Number of bytes.
        group: Regions with the same number are judged together.
        flags: For each byte value, `MAY_BE_*` flags it is compatible with; uint8 `[256]`.
    """

    offset: int
    length: int
    group: int
    flags: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class ScanPlan:
    """See the module docstring.

    Attributes:
        block_bytes: Bytes of a block.
        scale_offsets: Byte offset of each scale field, int64 `[fields]`.
        scale_widths: Its bytes, 1 or 2, int64 `[fields]`.
        regions: Codes (group 0), then sub-scales (group 1).
        forbidden: (offset, length, byte) runs in which that byte must not occur.
    """

    block_bytes: int
    scale_offsets: npt.NDArray[np.int64]
    scale_widths: npt.NDArray[np.int64]
    regions: tuple[Region, ...]
    forbidden: tuple[tuple[int, int, int], ...]


def _compatible(runs: list[tuple[Bits, set[int]]], field: BitsField) -> npt.NDArray[np.bool_]:
    """Return for each byte value whether every integer piece in it may belong to its chosen set.

    The bytes of a field are alike, so that one table serves them all; where they are not (6-bit
    pairs), the table is the union, which only lets a few more blocks through to the exact test.
    """
    value = np.arange(256)
    good = np.zeros(256, bool)
    for byte in range(field.offset, field.offset + field.nbytes):
        here = np.ones(256, bool)
        for run, chosen in runs:
            for plane in run.planes:
                for at in np.flatnonzero((plane.byte == byte) & (plane.mask > 0)):
                    mask, up = int(plane.mask[at]), int(plane.up[at])
                    allowed = [(code >> up) & mask for code in chosen]
                    here &= np.isin((value >> int(plane.shift[at])) & mask, allowed)
        good |= here
    return good


def _regions(encoding: type[BlockEncoding]) -> tuple[Region, ...]:
    """Return the regions of the codes, then those of the sub-scales.

    In a group the region that rules out most comes first: its first bytes are the quick test.
    """
    found: list[Region] = []
    groups = [[encoding.codes], [part for part in (encoding.sub_scales, encoding.sub_mins) if part]]
    for group, parts in enumerate(groups):
        runs = [(part, part.bits(encoding.runs)) for part in parts]
        zero = [(bits, set(part.zeros(bits))) for part, bits in runs]
        full = [(bits, set(part.extremes(bits))) for part, bits in runs]
        names = {name for part in parts for name in part.runs}
        for field in encoding.bits_fields.values():
            if not names & set(field.runs):
                continue
            flags = _compatible(zero, field) * np.uint8(MAY_BE_ZERO)
            if group == 0:
                flags |= _compatible(full, field) * np.uint8(MAY_BE_SATURATED)
            found.append(Region(field.offset, field.nbytes, group, flags.astype(np.uint8)))
    return tuple(sorted(found, key=lambda region: (region.group, (region.flags > 0).sum())))


@per_encoding
def scan_plan(encoding: type[BlockEncoding]) -> ScanPlan:
    """Return the plan of an encoding; made once a process."""
    scales = list(encoding.scale_fields.values())
    forbidden = tuple(
        (field.offset, field.nbytes, code & 0xFF)
        for field in encoding.bits_fields.values()
        for code in field.forbidden
    )
    return ScanPlan(
        encoding.block_bytes,
        np.array([field.offset for field in scales], np.int64),
        np.array([field.nbytes for field in scales], np.int64),
        _regions(encoding),
        forbidden,
    )


@per_encoding
def blank_blocks(encoding: type[BlockEncoding]) -> tuple[Bytes, tuple[Bytes, ...]]:
    """Return what writers leave for a block of zeros: all scales zero over one constant code.

    Returns:
        The sign bits of the scales, uint8 `[block_bytes]`, which do not matter, and the blocks.
        No blocks where no scale can be zero, as with powers of two.
    """
    signs = np.zeros(encoding.block_bytes, np.uint8)
    for field in encoding.scale_fields.values():
        if not (field.health & int(Health.ZERO)).any():
            return signs, ()
        if field.sign:
            signs[field.offset + field.nbytes - 1] = 0x80
    bits = encoding.code_bits()
    blanks = {0, *encoding.codes.zeros(bits), *encoding.codes.blank}
    subs = {0} if encoding.sub_scales is None else {0, encoding.sub_scales.zero}
    patterns = []
    for code in sorted(blanks):
        for sub in sorted(subs):
            block = np.zeros((1, encoding.block_bytes), np.uint8)
            bits.pack(code, block)
            if encoding.sub_scales is not None:
                encoding.sub_scales.bits(encoding.runs).pack(sub, block)
            patterns.append(block[0])
    return signs, tuple(patterns)
