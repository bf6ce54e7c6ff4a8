"""What an encoding declares, and everything that follows from the declaration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

from qassay.containers import ggml_types, safetensors_types
from qassay.core.errors import DeclarationError
from qassay.core.pages import demanded, first_sentence
from qassay.core.source import Bytes
from qassay.encodings.bits import Bits, joined
from qassay.encodings.fields import BitsField, Field, Role, ScaleField
from qassay.encodings.registry import register
from qassay.encodings.tables import table

Floats = npt.NDArray[np.float32]
E = TypeVar("E", bound="Encoding")
T = TypeVar("T")


def per_encoding(function: Callable[[type[E]], T]) -> Callable[[type[E]], T]:
    """Compute a function of an encoding once a process."""
    return cast("Callable[[type[E]], T]", cache(function))


@dataclass(frozen=True, slots=True)
class Ggml:
    """The number that ggml and GGUF give a type (`enum ggml_type` in ggml.h)."""

    number: int

    @property
    def key(self) -> tuple[str, int | str]:
        """The container label."""
        return ("ggml", self.number)

    def announce(self, encoding: type[Encoding]) -> None:
        """Tell the containers how large a block is, so that they can place such tensors."""
        name = encoding.id.rpartition(".")[2].upper()
        ggml_types.announce(self.number, name, encoding.block, encoding.block_bytes)


@dataclass(frozen=True, slots=True)
class Safetensors:
    """The word that a safetensors header gives a dtype."""

    dtype: str

    @property
    def key(self) -> tuple[str, int | str]:
        """The container label."""
        return ("safetensors", self.dtype)

    def announce(self, encoding: type[Encoding]) -> None:
        """Tell the containers how large an element is, so that they can place such tensors."""
        safetensors_types.announce(self.dtype, encoding.block, encoding.block_bytes)


class Codes:
    """Which runs make up a small integer, and what the integer stands for.

    Args:
        runs: Names of runs, low bits first (`"qs"`, or `"ql", "qh"`).
        zero: Subtracted from the stored integer (a zero point fixed by the format).
        lookup: Name of a table in `data/` that gives the value of each integer instead.
        blank: Stored integers, besides `zero`, that writers leave in a block of zeros.
        extremes: Stored integers at the ends of the range; by default the smallest and largest.
    """

    def __init__(
        self,
        *runs: str,
        zero: int = 0,
        lookup: str | None = None,
        blank: tuple[int, ...] = (),
        extremes: tuple[int, ...] | None = None,
    ) -> None:
        self.runs = runs
        self.zero = zero
        self.lookup = lookup
        self.blank = blank
        self._extremes = extremes

    def bits(self, runs: Mapping[str, Bits]) -> Bits:
        """Return where the stored integers lie, given the encoding's runs by name."""
        return joined([runs[name] for name in self.runs])

    def range(self, bits: Bits) -> tuple[int, int]:
        """Return the smallest and largest stored integer."""
        if bits.signed:
            return -(1 << (bits.width - 1)), (1 << (bits.width - 1)) - 1
        return 0, (1 << bits.width) - 1

    def extremes(self, bits: Bits) -> tuple[int, ...]:
        """Return the stored integers that count as saturated."""
        return self._extremes if self._extremes is not None else self.range(bits)

    def values(self, bits: Bits) -> Floats:
        """Return what each stored integer, from the smallest on, stands for, as float32."""
        if self.lookup is not None:
            return table(self.lookup)
        low, high = self.range(bits)
        return np.arange(low - self.zero, high + 1 - self.zero).astype(np.float32)

    def centred(self, stored: npt.NDArray[np.int16]) -> npt.NDArray[Any]:
        """Return what `stored` integers stand for: int16, or float32 with a lookup table."""
        if self.lookup is not None:
            return table(self.lookup)[stored]
        return stored - np.int16(self.zero)

    def zeros(self, bits: Bits) -> tuple[int, ...]:
        """Return the stored integers that stand for zero."""
        low = self.range(bits)[0]
        return tuple(int(code) + low for code in np.flatnonzero(self.values(bits) == 0))


class Encoding:
    """How a tensor's bytes stand for numbers. Subclasses are declarations; none is instantiated.

    A subclass that leaves out a part, or takes an id or label that is taken, raises
    `DeclarationError` when it is defined.

    Attributes:
        id: `ggml.q8_0`, `bf16`.
        kind: `block`, `float` or `integer`.
        block: Weights stored together.
        block_bytes: Bytes of a block.
        stored_as: Container labels.
        sources: Where the layout and formula were read.
        formula: The value of one weight in the upstream field names.
    """

    id: ClassVar[str] = ""
    kind: ClassVar[str] = ""
    block: ClassVar[int] = 0
    block_bytes: ClassVar[int] = 0
    stored_as: ClassVar[tuple[Ggml | Safetensors, ...]] = ()
    sources: ClassVar[tuple[str, ...]] = ()
    formula: ClassVar[str] = ""

    _demanded: ClassVar[tuple[str, ...]] = ("__doc__", "block", "stored_as", "sources", "formula")

    def __init_subclass__(cls, *, id: str | None = None) -> None:  # noqa: A002
        super().__init_subclass__()
        if id is None:  # a family's base, not an encoding
            return
        cls.id = id
        missing = [name for name in demanded(cls._demanded) if not cls.__dict__.get(name)]
        if missing:
            raise DeclarationError(
                f"encoding {id} in {cls.__module__} is incomplete",
                expected="a docstring" if missing == ["__doc__"] else ", ".join(cls._demanded),
                found=f"no {', no '.join(missing)}",
            )
        cls._declare()
        register(cls)

    @classmethod
    def _declare(cls) -> None:
        """Derive what follows from the declaration."""

    @classmethod
    def title(cls) -> str:
        """Return the first sentence of the declaration's docstring."""
        return first_sentence(cls)

    @classmethod
    def bits_per_weight(cls) -> float:
        """Return the mean number of bits a weight takes, scales included."""
        return cls.block_bytes * 8 / cls.block

    @classmethod
    def dequantize(cls, raw: Bytes) -> Floats:
        """Return the values of stored bytes `[n * block_bytes]` as float32 `[n * block]`."""
        raise NotImplementedError


class Blocks:
    """Blocks being decoded: fields by upstream name, shaped so that a formula broadcasts.

    A scale field is float32 `[n, 1, 1]`; codes are `[n, groups, sub_block]`; integers of which
    a block has one per group are `[n, groups, 1]`. `q`, `sc` and `m` (where declared) are the
    codes, sub-scales and sub-minimums with their fixed zero point subtracted; `sc` is float32
    where sub-scales are fields of their own.
    """

    def __init__(self, encoding: type[BlockEncoding], raw: Bytes) -> None:
        self._encoding = encoding
        self._raw = raw

    def __getattr__(self, name: str) -> npt.NDArray[Any]:
        encoding = self._encoding
        if name in encoding.scale_fields:
            field = encoding.scale_fields[name]
            return field.values[field.patterns_of(self._raw)].reshape(-1, 1, 1)
        part = encoding.parts.get(name)
        if name == "sc" and encoding.sub_fields:
            stored = [field.values[field.patterns_of(self._raw)] for field in encoding.sub_fields]
            return self._shaped(np.stack(stored, axis=1))
        if part is not None:
            bits = part.bits(encoding.runs)
            return self._shaped(part.centred(bits.unpack(self._raw)))
        if name in encoding.runs:
            return self._shaped(encoding.runs[name].unpack(self._raw))
        raise AttributeError(f"encoding {encoding.id} declares no {name}")

    def _shaped(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        groups = self._encoding.block // self._encoding.group
        if values.shape[1] == groups:
            return values.reshape(-1, groups, 1)
        return values.reshape(-1, groups, self._encoding.group)


class BlockEncoding(Encoding):
    """Weights stored in blocks along a row, each with its own scale.

    Attributes:
        fields: The stored fields in file order.
        codes: The integers q.
        sub_scales: Integers that scale groups inside the block, `b.sc` in the formula.
        sub_mins: Integers that `dmin` multiplies, `b.m` in the formula.
        sub_block: Weights that share a sub-scale; the whole block where it is left out.
        sub_fields: The fields that each scale one sub-block, where sub-scales are no integers.
    """

    kind = "block"
    fields: ClassVar[tuple[Field, ...]] = ()
    codes: ClassVar[Codes]
    sub_scales: ClassVar[Codes | None] = None
    sub_mins: ClassVar[Codes | None] = None
    sub_block: ClassVar[int] = 0

    group: ClassVar[int]
    scale_fields: ClassVar[dict[str, ScaleField]]
    sub_fields: ClassVar[tuple[ScaleField, ...]]
    bits_fields: ClassVar[dict[str, BitsField]]
    runs: ClassVar[dict[str, Bits]]
    parts: ClassVar[dict[str, Codes]]

    _demanded = (*Encoding._demanded, "fields", "codes", "decode")

    @staticmethod
    def decode(b: Blocks) -> npt.NDArray[Any]:
        """Return the values, float32 `[n, groups, sub_block]`, of the blocks `b`."""
        raise NotImplementedError

    @classmethod
    def _declare(cls) -> None:
        placed: list[Field] = []
        offset = 0
        for field in cls.fields:
            placed.append(field.at(offset))
            offset += field.nbytes
        cls.fields = tuple(placed)
        cls.block_bytes = offset
        cls.group = cls.sub_block or cls.block
        cls.scale_fields = {f.name: f for f in placed if isinstance(f, ScaleField)}
        cls.sub_fields = tuple(f for f in cls.scale_fields.values() if f.role is Role.SUB_SCALE)
        cls.bits_fields = {f.name: f for f in placed if isinstance(f, BitsField)}
        cls.runs = {
            name: run for field in cls.bits_fields.values() for name, run in field.runs.items()
        }
        cls.parts = {
            name: part
            for name, part in (("q", cls.codes), ("sc", cls.sub_scales), ("m", cls.sub_mins))
            if part is not None
        }
        for part in cls.parts.values():
            unknown = [name for name in part.runs if name not in cls.runs]
            if unknown:
                raise DeclarationError(
                    f"encoding {cls.id} uses runs that none of its fields holds",
                    expected=", ".join(cls.runs),
                    found=", ".join(unknown),
                )
        if cls.sub_fields and len(cls.sub_fields) * cls.group != cls.block:
            raise DeclarationError(f"encoding {cls.id} does not have one scale for each sub-block")
        if cls.codes.bits(cls.runs).count != cls.block:
            raise DeclarationError(f"encoding {cls.id} does not hold one code per weight")

    @classmethod
    def scale_of(cls, role: Role) -> ScaleField | None:
        """Return the scale field that plays `role`."""
        return next((f for f in cls.scale_fields.values() if f.role is role), None)

    @classmethod
    def code_bits(cls) -> Bits:
        """Return where the codes lie in a block."""
        return cls.codes.bits(cls.runs)

    @classmethod
    def as_blocks(cls, raw: Bytes) -> Bytes:
        """Return stored bytes `[n * block_bytes]` as `[n, block_bytes]`, without a copy."""
        return raw.reshape(-1, cls.block_bytes)

    @classmethod
    def dequantize(cls, raw: Bytes) -> Floats:
        """Return the values of stored bytes `[n * block_bytes]` as float32 `[n * block]`."""
        blocks = cls.as_blocks(raw)
        # 0 * inf is what a non-finite scale decodes to: it is the answer, not a fault.
        with np.errstate(invalid="ignore", over="ignore"):
            values = np.asarray(cls.decode(Blocks(cls, blocks)), np.float32)
        shape = (blocks.shape[0], cls.block // cls.group, cls.group)
        return np.ascontiguousarray(np.broadcast_to(values, shape)).reshape(-1)


class PlainEncoding(Encoding):
    """One number a weight, no scale.

    Attributes:
        dtype: NumPy dtype of the stored bits, little-endian; for floats that NumPy lacks the
            unsigned integer of the same width.
        least_normal: For floats, the bit pattern of the smallest normal number.
        first_nonfinite: For floats, the smallest bit pattern (sign left out) that is no number.
        allowed_max: For integers, the largest stored value that means something (bool: 1).
    """

    block = 1
    dtype: ClassVar[str] = ""
    least_normal: ClassVar[int] = 0
    first_nonfinite: ClassVar[int] = 0
    allowed_max: ClassVar[int | None] = None

    _demanded = ("__doc__", "dtype", "kind", "stored_as", "sources", "formula")

    @classmethod
    def _declare(cls) -> None:
        cls.block_bytes = np.dtype(cls.dtype).itemsize
        if cls.kind == "float" and not (cls.least_normal and cls.first_nonfinite):
            raise DeclarationError(
                f"float encoding {cls.id} is incomplete", expected="least_normal, first_nonfinite"
            )

    @classmethod
    def bits(cls, raw: Bytes) -> npt.NDArray[np.unsignedinteger[Any]]:
        """Return stored bytes as the unsigned integers of the element's width, without a copy."""
        return raw.view(f"<u{cls.block_bytes}")

    @classmethod
    def numbers(cls, patterns: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return what bit patterns stand for, unrounded, as float64."""
        bits = np.atleast_1d(np.asarray(patterns, f"<u{cls.block_bytes}"))
        if cls.dtype == "<f8":
            return bits.view(np.float64)
        with np.errstate(invalid="ignore"):  # a signalling NaN is an answer, not a fault
            return cls.to_float32(bits.view(cls.dtype)).astype(np.float64)

    @classmethod
    def pattern_up_to(cls, limit: float) -> int:
        """Return the largest finite bit pattern, sign left out, that stands for at most `limit`."""
        low, high = 0, cls.first_nonfinite - 1
        while low < high:
            middle = (low + high + 1) // 2
            if cls.numbers(middle)[0] <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    @classmethod
    def to_float32(cls, stored: npt.NDArray[Any]) -> Floats:
        """Return stored elements (of `dtype`) as float32."""
        with np.errstate(over="ignore", invalid="ignore"):
            return stored.astype(np.float32)

    @classmethod
    def dequantize(cls, raw: Bytes) -> Floats:
        """Return the values of stored bytes `[n * block_bytes]` as float32 `[n]`."""
        return cls.to_float32(raw.view(cls.dtype))
