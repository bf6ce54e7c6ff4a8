"""The stored fields a block encoding is declared with."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from qassay.encodings.bits import Bits, interleaved

Floats = npt.NDArray[np.float32]


class Role(enum.Enum):
    """What a number stored once a block does to the codes of the block."""

    SCALE = "scale"
    SUB_SCALE = "sub_scale"
    MIN_SCALE = "min_scale"
    OFFSET = "offset"


class Health(enum.IntFlag):
    """What can be said of one bit pattern of a scale field; rules decide whether it is bad."""

    NOT_FINITE = 1
    ZERO = 2
    NEGATIVE = 4
    SUBNORMAL = 8
    MAY_OVERFLOW = 16


@dataclass(frozen=True, slots=True)
class Field:
    """A run of bytes in a block under its upstream name.

    Attributes:
        name: As upstream spells it: `d`, `qs`, `scales`.
        nbytes: Bytes in the block.
        offset: Byte offset in the block, set when the encoding is declared.
    """

    name: str
    nbytes: int
    offset: int = 0

    def at(self, offset: int) -> Field:
        """Return the field placed at `offset` bytes into the block."""
        return replace(self, offset=offset)


@dataclass(frozen=True, slots=True)
class ScaleField(Field):
    """A number stored once a block.

    Attributes:
        format: `f16`, `e8m0` or `ue4m3` in blocks; in layers also `bf16`, `e4m3`, `mx` (E8M0 as the
            standard reads it) and `f32`, of which only the upper half is looked at.
        role: What it does to the codes.
        signed: Whether sound files hold negative values here.
        subnormal_is_normal: Whether sound files hold subnormal values here as a rule.
    """

    format: str = "f16"
    role: Role = Role.SCALE
    signed: bool = False
    subnormal_is_normal: bool = False

    @property
    def patterns(self) -> int:
        """Number of bit patterns."""
        return 1 << (8 * self.nbytes)

    @property
    def sign(self) -> int:
        """The bit that is the sign, 0 where the format has none."""
        return 0 if self.format in _POWERS else self.patterns // 2

    @property
    def values(self) -> Floats:
        """What each bit pattern multiplies by when the block is decoded, float32 `[patterns]`."""
        return _FORMATS[self.format]()[0]

    @property
    def magnitudes(self) -> Floats:
        """What each bit pattern stands for in the field's own standard; NaN where it is none."""
        return _FORMATS[self.format]()[1]

    @property
    def health(self) -> npt.NDArray[np.uint8]:
        """`Health` flags of each bit pattern, uint8 `[patterns]`."""
        return _FORMATS[self.format]()[2]

    def patterns_of(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.unsignedinteger]:
        """Return the stored bit patterns `[n]` of blocks `raw` `[n, block_bytes]`."""
        cut = np.ascontiguousarray(raw[:, self.offset : self.offset + self.nbytes])
        return cut.view(f"<u{self.nbytes}")[:, 0]


@cache
def _f16_tables() -> tuple[Floats, Floats, npt.NDArray[np.uint8]]:
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        values = bits.view(np.float16).astype(np.float32)
    magnitude = bits & 0x7FFF
    flags = _flags(
        {
            Health.NOT_FINITE: magnitude >= 0x7C00,
            Health.ZERO: magnitude == 0,
            Health.NEGATIVE: (bits > 0x8000) & (magnitude < 0x7C00),
            Health.SUBNORMAL: (magnitude > 0) & (magnitude < 0x0400),
        }
    )
    return values, values, flags


def _flags(where: Mapping[Health, npt.NDArray[np.bool_]]) -> npt.NDArray[np.uint8]:
    total = sum(np.uint8(flag.value) * chosen for flag, chosen in where.items())
    return np.asarray(total, np.uint8)


@cache
def _e8m0_half_tables() -> tuple[Floats, Floats, npt.NDArray[np.uint8]]:
    # ggml multiplies a table of doubled values by half the scale, 2^(e-128), which is finite
    # for every byte; the standard (OCP MX 1.0, 5.4.1) reads 2^(e-127) and NaN at 255.
    exponent = np.arange(256)
    values = np.ldexp(np.float32(1), exponent - 128).astype(np.float32)
    with np.errstate(over="ignore"):
        magnitudes = np.ldexp(np.float32(1), exponent - 127).astype(np.float32)
    magnitudes[255] = np.nan
    flags = _flags(
        {
            Health.NOT_FINITE: exponent == 255,
            Health.MAY_OVERFLOW: (exponent == 253) | (exponent == 254),
        }
    )
    return values, magnitudes, flags


@cache
def _bf16_tables() -> tuple[Floats, Floats, npt.NDArray[np.uint8]]:
    bits = np.arange(1 << 16, dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        values = (bits << 16).view(np.float32)
    magnitude = bits & 0x7FFF
    flags = _flags(
        {
            Health.NOT_FINITE: magnitude >= 0x7F80,
            Health.ZERO: magnitude == 0,
            Health.NEGATIVE: (bits > 0x8000) & (magnitude < 0x7F80),
            Health.SUBNORMAL: (magnitude > 0) & (magnitude < 0x0080),
        }
    )
    return values, values, flags


@cache
def _e4m3_tables() -> tuple[Floats, Floats, npt.NDArray[np.uint8]]:
    # OCP FP8 E4M3: bias 7, subnormals below 2^-6, NaN at 0x7F and 0xFF, no infinity.
    bits = np.arange(256)
    exponent, fraction = (bits >> 3) & 15, bits & 7
    sizes = np.where(
        exponent == 0, np.ldexp(fraction / 8, -6), np.ldexp(1 + fraction / 8, exponent - 7)
    )
    sizes[(bits & 0x7F) == 0x7F] = np.nan
    values = np.where(bits & 0x80, -sizes, sizes).astype(np.float32)
    flags = _flags(
        {
            Health.NOT_FINITE: (bits & 0x7F) == 0x7F,
            Health.ZERO: (bits & 0x7F) == 0,
            # Scales of this format have no sign: even that of a zero is out of place.
            Health.NEGATIVE: (bits >= 0x80) & ((bits & 0x7F) != 0x7F),
            Health.SUBNORMAL: ((bits & 0x7F) > 0) & ((bits & 0x7F) < 8),
        }
    )
    return values, values, flags


@cache
def _mx_tables() -> tuple[Floats, Floats, npt.NDArray[np.uint8]]:
    # OCP MX 1.0, 5.4.1: 2^(e-127), NaN at 255. From 247 on, the largest E4M3 code (448) takes
    # the product past float32; the exact test says of a block whether its own codes do.
    exponent = np.arange(256)
    values = np.ldexp(np.float32(1), np.minimum(exponent, 254) - 127).astype(np.float32)
    values[255] = np.nan
    flags = _flags(
        {
            Health.NOT_FINITE: exponent == 255,
            Health.MAY_OVERFLOW: (exponent >= 247) & (exponent < 255),
        }
    )
    return values, values, flags


@cache
def _ue4m3_half_tables() -> tuple[Floats, Floats, npt.NDArray[np.uint8]]:
    # As with E8M0, ggml multiplies a table of doubled values by half the scale. Its decoder takes
    # no notice of the sign bit, reads 0x7F as zero, and 0xFF as the number 480 that its bits
    # would stand for; both are NaN in E4M3.
    _, magnitudes, flags = _e4m3_tables()
    values = np.asarray(np.abs(magnitudes) / 2, np.float32)
    values[[0x7F, 0xFF]] = 0, 240
    return values, magnitudes, flags


_POWERS = ("e8m0", "mx")
_FORMATS = {
    "f16": _f16_tables,
    "e8m0": _e8m0_half_tables,
    "bf16": _bf16_tables,
    "f32": _bf16_tables,
    "e4m3": _e4m3_tables,
    "ue4m3": _ue4m3_half_tables,
    "mx": _mx_tables,
}


@dataclass(frozen=True, slots=True, eq=False)
class BitsField(Field):
    """Bytes that hold one or more runs of small integers.

    Attributes:
        runs: The runs by name. A field with one run gives it its own name.
        forbidden: Stored integers that no writer produces from finite weights, with what a
            block that holds one tells.
    """

    runs: Mapping[str, Bits] = field(default_factory=dict)
    forbidden: Mapping[int, str] = field(default_factory=dict)

    def at(self, offset: int) -> BitsField:
        """Return the field, its runs with it, placed at `offset` bytes into the block."""
        runs = {name: run.moved(offset) for name, run in self.runs.items()}
        return replace(self, offset=offset, runs=runs)


def f16(
    name: str, *, role: Role = Role.SCALE, signed: bool = False, subnormal_is_normal: bool = False
) -> ScaleField:
    """Declare an IEEE half, little-endian, stored once a block."""
    return ScaleField(name, 2, role=role, signed=signed, subnormal_is_normal=subnormal_is_normal)


def e8m0(name: str) -> ScaleField:
    """Declare a power-of-two scale in one byte (OCP MX E8M0)."""
    return ScaleField(name, 1, format="e8m0")


def ue4m3s(name: str, count: int) -> tuple[ScaleField, ...]:
    """Declare `count` 8-bit floats without a sign, one for each sub-block: `d[0]`, `d[1]`, ...

    They may be subnormal as a rule: a writer that keeps no scale for the whole tensor needs it.
    """
    return tuple(
        ScaleField(
            f"{name}[{index}]", 1, format="ue4m3", role=Role.SUB_SCALE, subnormal_is_normal=True
        )
        for index in range(count)
    )


def uints(name: str, count: int, width: int, *, run: int) -> BitsField:
    """Declare `count` unsigned integers of `width` bits in runs of `run` bytes (`interleaved`)."""
    return BitsField(name, count * width // 8, runs={name: interleaved(count, width, run)})


def ints8(name: str, count: int, *, forbidden: Mapping[int, str] | None = None) -> BitsField:
    """Declare `count` signed bytes."""
    run = replace(interleaved(count, 8, count), signed=True)
    return BitsField(name, count, runs={name: run}, forbidden=forbidden or {})


def split(name: str, nbytes: int, **runs: Bits) -> BitsField:
    """Declare `nbytes` bytes that hold several runs, such as sub-scales and sub-minimums."""
    return BitsField(name, nbytes, runs=runs)
