"""What the families of 4-bit and 8-bit floats share: tables, nibbles, checks of their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from qassay.core.container import Defect, StoredTensor
from qassay.core.text import safe
from qassay.encodings.base import PlainEncoding
from qassay.encodings.layers.base import Fit, Layer, LayerEncoding, Module, Role
from qassay.encodings.layers.canonical import Floats
from qassay.encodings.layers.fitting import disagreement
from qassay.encodings.layers.layout import CodeLayout, Form
from qassay.encodings.plain import F8E4M3, F8E5M2
from qassay.encodings.registry import for_stored_type

FLOATS = ("F32", "BF16", "F16")
E8M0_DTYPES = ("U8", "F8_E8M0")
"""Dtypes that power-of-two scales come in: the word for them, and plain bytes."""


@cache
def e2m1() -> Floats:
    """Return what the 16 codes of E2M1 stand for, float32 `[16]` (OCP MX 1.0, 5.3.3).

    ::

        | sign | exponent (bias 1) | mantissa |      0 0.5 1 1.5 2 3 4 6, and the same negative
        bit 3    bits 2..1           bit 0           code 8 is -0
    """
    code = np.arange(16)
    exponent, mantissa = code >> 1 & 3, code & 1
    scaled = mantissa + 2 * (exponent > 0)
    magnitude = np.ldexp(scaled.astype(np.float32), np.maximum(exponent, 1) - 2)
    return _frozen(np.where(code & 8, -magnitude, magnitude))


@cache
def e8m0() -> Floats:
    """Return what the 256 bytes of E8M0 stand for, 2^(e - 127) as float32; NaN at 255."""
    values = np.ldexp(np.float64(1), np.arange(256) - 127)
    values[255] = np.nan
    return _frozen(values)


@cache
def float8(dtype: str) -> Floats:
    """Return what the 256 bytes of `F8_E4M3` or `F8_E5M2` stand for, float32 `[256]`."""
    encoding = {"F8_E4M3": F8E4M3, "F8_E5M2": F8E5M2}[dtype]
    return _frozen(encoding.to_float32(np.arange(256, dtype=np.uint8)))


def float8_layout(dtype: str) -> CodeLayout:
    """Return where the codes of rows of 8-bit floats lie.

    The largest numbers, sign left out: 0x7E is 448 in E4M3, and 0x7F NaN; 0x7B is 57344 in E5M2,
    0x7C infinity, and what follows NaN.
    """
    top, nan = {"F8_E4M3": (0x7E, 0x7F), "F8_E5M2": (0x7B, 0x7C)}[dtype]
    return CodeLayout(Form.BYTES, floats=True, top=top, nan=nan)


def e2m1_layout() -> CodeLayout:
    """Return where the codes of rows of 4-bit floats lie."""
    return CodeLayout(Form.NIBBLES, floats=True)


def _frozen(values: npt.NDArray[Any]) -> Floats:
    result = np.asarray(values, np.float32)
    result.flags.writeable = False
    return result


def unpack_pairs(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Return the nibbles of `[n, K / 2]` bytes as `[n, K]`, element 2i the low one of byte i.

    ::

        byte i:  | element 2i + 1 | element 2i |
                  bits 7..4        bits 3..0
    """
    rows, width = packed.shape
    codes = np.empty((rows, width, 2), np.uint8)
    np.bitwise_and(packed, 15, out=codes[..., 0])
    np.right_shift(packed, 4, out=codes[..., 1])
    return codes.reshape(rows, 2 * width)


def pack_pairs(codes: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return `[n, K]` codes of 4 bits as `[n, K / 2]` bytes, the inverse of `unpack_pairs`."""
    pairs = codes.astype(np.uint8).reshape(codes.shape[0], -1, 2)
    return np.asarray(pairs[..., 0] | pairs[..., 1] << 4, np.uint8)


def packed_like(
    layer: Layer, part: str, codes: npt.NDArray[Any], *, nibbles: bool
) -> dict[str, npt.NDArray[Any]]:
    """Return the part that holds the codes, in its stored shape.

    Raises:
        ValueError: `codes` is not `[N, K]` of the whole layer, or holds more than its bits.
    """
    wanted = (layer.total_rows, layer.columns)
    if codes.shape != wanted:
        raise ValueError(f"codes have shape {list(codes.shape)}, the layer {list(wanted)}")
    if codes.min() < 0 or codes.max() >= 1 << layer.bits:
        raise ValueError(f"codes run from {codes.min()} to {codes.max()}, not {layer.bits} bits")
    data = pack_pairs(codes) if nibbles else codes.astype(np.uint8)
    return {part: data.reshape(layer.parts[part].shape)}


def rows_of(layer: Layer, start: int, stop: int | None) -> tuple[int, int]:
    """Return the bounds of a slab of rows inside the layer, as slicing would take them."""
    first, last, _ = slice(start, stop).indices(layer.total_rows)
    return first, max(first, last)


def scalar_of_rows(values: Floats, layer: Layer, start: int, stop: int) -> Floats:
    """Return a scale of the whole tensor, or of each expert, for rows: `[1, 1]` or `[n, 1]`."""
    if values.size == 1:
        return values.reshape(1, 1)
    expert = np.arange(start, stop) // layer.rows
    return values.reshape(-1)[expert][:, None]


class Parts:
    """Takes the parts of a module one by one, and notes what is wrong with them (Q103)."""

    def __init__(self, encoding: type[LayerEncoding], module: Module) -> None:
        self.encoding = encoding
        self.module = module
        self.taken: dict[str, StoredTensor] = {}
        self.defects: list[Defect] = []
        self.reason = ""

    @property
    def called(self) -> str:
        """The module's name for people."""
        return f"'{safe(self.module.name)}'" if self.module.name else "the nameless module"

    def has(self, *names: str) -> bool:
        """Tell whether the module has one of the parts."""
        return any(name in self.module.tensors for name in names)

    def take(self, name: str) -> StoredTensor | None:
        """Return a part; where it is missing, of odd dtype or unreadable, None, and note that."""
        stored = self.module.tensors.get(name)
        declared = self.encoding.part(name)
        if stored is None:
            self.missing(name, " or ".join(declared.dtypes))
            return None
        if stored.type.label not in declared.dtypes:
            self.wrong(stored, name, " or ".join(declared.dtypes), stored.type.name, "dtype")
            return None
        if not stored.readable:
            # The container says what is wrong with it.
            self.reason = self.reason or f"{safe(stored.name)} cannot be read"
            return None
        self.taken[name] = stored
        return stored

    def take_optional(self) -> None:
        """Take what else of the family is there; an odd dtype there is noted, no more."""
        for part in self.encoding.parts:
            if part.role is Role.ACTIVATION and part.name in self.module.tensors:
                self.take(part.name)

    def missing(self, name: str, expected: str) -> None:
        """Note that a part is not there; the defect names a tensor that is."""
        held = self.module.tensors
        codes = [p.name for p in self.encoding.parts if p.role is Role.CODES and p.name in held]
        known = [p.name for p in self.encoding.parts if p.name in held]
        witness = held[(codes or known or list(held))[0]]
        self._note(witness, name, f"has no {name.lstrip('_')}", expected, "no such tensor")

    def wrong(
        self, stored: StoredTensor, name: str, expected: str, found: str, what: str = "shape"
    ) -> None:
        """Note that a part is not what the family needs."""
        message = f"has a {name.lstrip('_')} of the wrong {what}"
        self._note(stored, name, message, expected, found)

    def _note(
        self, stored: StoredTensor, name: str, message: str, expected: str, found: str
    ) -> None:
        told = f"{self.called} {message}, as a weight of {self.encoding.id}"
        self.defects.append(
            disagreement(
                self.encoding,
                self.module,
                name,
                stored,
                f"{told}: expected {expected}, found {found}",
                expected=expected,
                found=found,
            )
        )

    def fit(self, layer: Layer | None) -> Fit:
        """Return the result: the layer, if there is one, and everything noted."""
        required = {part.name for part in self.encoding.parts if part.role is not Role.ACTIVATION}
        score = len(required & set(self.taken)) if layer is None else len(self.taken)
        return Fit(self.encoding, layer, tuple(self.defects), score, self.reason)


def matrix_of(shape: Sequence[int]) -> tuple[int | None, int, int] | None:
    """Return experts, rows and columns of `[N, K]` or `[E, N, K]`; None for any other shape.

    A tensor without elements is no matrix either.
    """
    if len(shape) not in (2, 3) or min(shape) < 1:
        return None
    experts = int(shape[0]) if len(shape) == 3 else None
    return experts, int(shape[-2]), int(shape[-1])


def shown(stored: StoredTensor) -> str:
    """Return dtype and shape of a tensor for people: `F8_E4M3 [256, 512]`."""
    return f"{stored.type.name} {shape_text(stored)}"


def shape_text(stored: StoredTensor) -> str:
    """Return the shape of a tensor for people, cut where a file gives it countless axes."""
    return safe(str(list(stored.shape[:16])), 80)


def scalar_shape(shape: Sequence[int], experts: int | None) -> bool:
    """Tell whether a shape holds one number for the tensor, or one for each expert."""
    size = math.prod(shape)
    return len(shape) <= 3 and (
        size == 1 or (experts is not None and size == max(shape) == experts)
    )


def stored_scales(layer: Layer, name: str, start: int, stop: int) -> Floats:
    """Return rows of a scale tensor as float32 `[n, G]`; bytes and E8M0 are powers of two."""
    stored = layer.array(name).reshape(-1, layer.groups)[start:stop]
    kind = layer.parts[name].type
    if kind.label in E8M0_DTYPES:
        return np.asarray(e8m0()[stored], np.float32)
    known = cast("type[PlainEncoding]", for_stored_type(kind))
    return known.to_float32(np.ascontiguousarray(stored))


def is_mx_scale(weight: StoredTensor, scale: StoredTensor) -> bool:
    """Tell whether a scale is MXFP8's: a power of two for each 32 weights of a row.

    One column is the exception: `[N, 1]` beside `[N, 32]` is read as a scale a channel, which
    is the same.
    """
    if len(weight.shape) not in (2, 3):
        return False
    *rows, columns = weight.shape
    wanted = (*rows, columns // 32)
    by_32 = columns % 32 == 0 and columns > 32
    return scale.type.label in E8M0_DTYPES and by_32 and scale.shape == wanted
