"""Where the bits of a run of small integers lie inside a block.

A run of `count` integers is described by one or more *planes*. A plane says, for every integer
of the run, which byte holds a piece of it, how far right to shift that byte, how many bits to
keep, and how far left the piece belongs in the integer:

    value[i] = sum over planes of ((block[byte[i]] >> shift[i]) & mask[i]) << up[i]

That one description serves unpacking, packing, the fast decoder and the health tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes

Ints = npt.NDArray[np.int16]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """One piece of every integer of a run; four arrays `[count]`, see the module docstring."""

    byte: Index
    shift: Index
    mask: Index
    up: Index

    def moved(self, offset: int, up: int = 0) -> Plane:
        """Return the plane `offset` bytes further into the block, `up` bits higher in value."""
        return replace(self, byte=self.byte + offset, up=self.up + up)


@dataclass(frozen=True, slots=True, eq=False)
class Bits:
    """A run of `count` integers of `width` bits, in `planes`.

    Attributes:
        count: Integers in the run.
        width: Bits of each, all planes together.
        planes: The pieces, low bits first.
        signed: Whether the integers are two's complement (whole bytes only).
    """

    count: int
    width: int
    planes: tuple[Plane, ...]
    signed: bool = False

    def unpack(self, raw: Bytes) -> Ints:
        """Return the integers `[n, count]` of blocks `raw` `[n, block_bytes]`."""
        total = np.zeros((raw.shape[0], self.count), np.int16)
        for plane in self.planes:
            piece = (raw[:, plane.byte] >> plane.shift.astype(np.uint8)) & plane.mask.astype(
                np.uint8
            )
            total += piece.astype(np.int16) << plane.up.astype(np.int16)
        if self.signed:
            total = total.astype(np.uint8).view(np.int8).astype(np.int16)
        return total

    def pack(self, values: npt.ArrayLike, into: Bytes) -> None:
        """Write integers `[n, count]` into blocks `into` `[n, block_bytes]`, other bits kept."""
        given = np.broadcast_to(np.asarray(values, np.int64), (into.shape[0], self.count))
        for plane in self.planes:
            piece = (given >> plane.up) & plane.mask
            for element in range(self.count):
                byte, shift, mask = (
                    int(part[element]) for part in (plane.byte, plane.shift, plane.mask)
                )
                if mask == 0:
                    continue
                kept = into[:, byte] & np.uint8(~(mask << shift) & 0xFF)
                into[:, byte] = kept | (piece[:, element] << shift).astype(np.uint8)

    def moved(self, offset: int) -> Bits:
        """Return the run `offset` bytes further into the block."""
        return replace(self, planes=tuple(plane.moved(offset) for plane in self.planes))


def interleaved(count: int, width: int, run: int) -> Bits:
    """Return `count` integers of `width` bits dealt over runs of `run` bytes.

    Each run of bytes is filled plane by plane: its bytes' lowest `width` bits hold the first
    `run` integers, the next higher bits the following `run`, and so on. With `run` 16, width 4:

        byte  j:  | element j + 16 | element j |      (the "halves" order of Q4_0)
                   bits 7..4        bits 3..0
    """
    per_byte = 8 // width
    element = np.arange(count)
    span = run * per_byte
    plane = Plane(
        byte=element // span * run + element % run,
        shift=element % span // run * width,
        mask=np.full(count, (1 << width) - 1),
        up=np.zeros(count, np.int64),
    )
    return Bits(count, width, (plane,))


def pieces(width: int, elements: Sequence[Iterable[tuple[int, int, int]]]) -> Bits:
    """Return a run spelled out: for each element its pieces (byte, shift, bits), low bits first.

    For layouts that follow no rule, such as the 6-bit sub-scales of Q4_K.
    """
    spelled = [list(element) for element in elements]
    depth = max(len(element) for element in spelled)
    planes = []
    ups = np.zeros(len(spelled), np.int64)
    for level in range(depth):
        chosen = [element[level] if level < len(element) else (0, 0, 0) for element in spelled]
        byte, shift, bits = (np.array(part) for part in zip(*chosen, strict=True))
        planes.append(Plane(byte, shift, (1 << bits) - 1, ups.copy()))
        ups = ups + bits
    return Bits(len(spelled), width, tuple(planes))


def joined(parts: Sequence[Bits]) -> Bits:
    """Return one run whose integers have `parts[0]` as low bits, `parts[1]` above, and so on."""
    planes: list[Plane] = []
    width = 0
    for part in parts:
        if part.count != parts[0].count:
            raise ValueError("runs of different length cannot be joined")
        planes.extend(plane.moved(0, width) for plane in part.planes)
        width += part.width
    return Bits(parts[0].count, width, tuple(planes), signed=parts[0].signed)
