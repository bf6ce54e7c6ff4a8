"""Where the codes of a layer lie, for kernels that look at them without unpacking them all.

Most families keep 4- or 8-bit codes in one of four orders. What is kept otherwise (3 bits across
words, padded rows) has no such layout, and is judged in canonical form instead, more slowly.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Form(enum.Enum):
    """How codes are packed.

    ::

        COLUMNS  [K / 8, N] words of 32 bits   nibble i of word (r, n) is column 8 r + i
        LANES    [K, N / 8] words of 32 bits   nibble i of word (k, w) is channel 8 w + lanes[i]
        NIBBLES  [N, K / 2] bytes              low nibble: column 2 b, high nibble: 2 b + 1
        BYTES    [N, K] bytes                  one code each
    """

    COLUMNS = "columns"
    LANES = "lanes"
    NIBBLES = "nibbles"
    BYTES = "bytes"


NATURAL = (0, 1, 2, 3, 4, 5, 6, 7)
"""Lanes in the order of their bits."""


@dataclass(frozen=True, slots=True)
class Zeros:
    """Where the zero points lie, one a group and row, in the unsigned unit of the stored codes.

    ::

        bits 4, by_group   [G, N / 8] words    nibble i of word (g, w) is channel 8 w + lanes[i]
        bits 4             [N / 8, G] words    nibble i of word (w, g) is channel 8 w + i
        bits 8             [N, G] bytes

    Attributes:
        part: The tensor.
        bits: 4 or 8.
        by_group: Whether groups are the slow axis.
        lanes: Which channel of eight each nibble of a word belongs to.
        offset: Added to what is stored, before the high bits are cut off (1 in GPTQ v1).
    """

    part: str
    bits: int = 4
    by_group: bool = True
    lanes: tuple[int, ...] = NATURAL
    offset: int = 0


@dataclass(frozen=True, slots=True)
class CodeLayout:
    """How the codes of one layer lie, and what they stand for.

    Attributes:
        form: The packing.
        floats: Whether codes are small floats: a sign and a magnitude, 0 stands for zero.
        top: For floats, the largest finite magnitude as a bit pattern (E2M1: 7, E4M3: 0x7E).
        nan: For floats of 8 bits, the smallest magnitude that is no finite number (0x7F); 0: none.
        lanes: For LANES, which channel of eight each nibble of a word belongs to.
        zeros: Where zero points lie; None where they are fixed.
        zero: The stored code, as an unsigned integer, that stands for zero where that is fixed.
    """

    form: Form
    floats: bool = False
    top: int = 7
    nan: int = 0
    lanes: tuple[int, ...] = NATURAL
    zeros: Zeros | None = None
    zero: int = 0
