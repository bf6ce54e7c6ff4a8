"""Floats, integers and booleans stored one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.encodings.base import Floats, Ggml, PlainEncoding, Safetensors

_IEEE = ("IEEE 754-2019",)
_SAFETENSORS = ("safetensors/src/tensor.rs, enum Dtype",)
_OFP8 = ("OCP 8-bit Floating Point Specification (OFP8) 1.0, table 2",)


class F64(PlainEncoding, id="f64"):
    """IEEE double; float32 where it is dequantized."""

    kind = "float"
    dtype = "<f8"
    least_normal = 0x0010_0000_0000_0000
    first_nonfinite = 0x7FF0_0000_0000_0000
    stored_as = (Ggml(28), Safetensors("F64"))
    sources = _IEEE
    formula = "x"


class F32(PlainEncoding, id="f32"):
    """IEEE single."""

    kind = "float"
    dtype = "<f4"
    least_normal = 0x0080_0000
    first_nonfinite = 0x7F80_0000
    stored_as = (Ggml(0), Safetensors("F32"))
    sources = _IEEE
    formula = "x"


class F16(PlainEncoding, id="f16"):
    """IEEE half."""

    kind = "float"
    dtype = "<f2"
    least_normal = 0x0400
    first_nonfinite = 0x7C00
    stored_as = (Ggml(1), Safetensors("F16"))
    sources = _IEEE
    formula = "x"


class BF16(PlainEncoding, id="bf16"):
    """The upper half of an IEEE single."""

    kind = "float"
    dtype = "<u2"
    least_normal = 0x0080
    first_nonfinite = 0x7F80
    stored_as = (Ggml(30), Safetensors("BF16"))
    sources = ("llama.cpp ggml/src/ggml-impl.h, ggml_compute_bf16_to_fp32",)
    formula = "x"

    @classmethod
    def to_float32(cls, stored: npt.NDArray[Any]) -> Floats:
        """Return stored bit patterns as float32, bits appended."""
        return (stored.astype(np.uint32) << 16).view(np.float32)


def _minifloat(exponent_bits: int, mantissa_bits: int) -> npt.NDArray[np.float64]:
    """Return the values of all bytes of a sign, exponent, mantissa format, specials not yet set.

    value = (-1)^s * 2^(e - bias) * (1 + m / 2^mantissa_bits); e = 0 is subnormal.
    """
    byte = np.arange(256)
    exponent = byte >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = byte & (1 << mantissa_bits) - 1
    bias = (1 << (exponent_bits - 1)) - 1
    scaled = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits))
    magnitude = np.ldexp(scaled.astype(float), np.maximum(exponent, 1) - bias - mantissa_bits)
    return np.where(byte & 0x80, -magnitude, magnitude)


def _e4m3fn() -> Floats:
    values = _minifloat(4, 3)
    values[[0x7F, 0xFF]] = np.nan
    return values.astype(np.float32)


def _e5m2() -> Floats:
    values = _minifloat(5, 2)
    values[[0x7C, 0xFC]] = np.inf, -np.inf
    values[[*range(0x7D, 0x80), *range(0xFD, 0x100)]] = np.nan
    return values.astype(np.float32)


class F8E4M3(PlainEncoding, id="f8_e4m3"):
    """OCP E4M3 (the FN variant: no infinity, NaN at 0x7F and 0xFF, largest 448)."""

    kind = "float"
    dtype = "u1"
    least_normal = 0x08
    first_nonfinite = 0x7F
    stored_as = (Safetensors("F8_E4M3"),)
    sources = _OFP8
    formula = "x"
    _table = _e4m3fn()

    @classmethod
    def to_float32(cls, stored: npt.NDArray[Any]) -> Floats:
        """Return stored bytes as float32."""
        return cls._table[stored]


class F8E5M2(PlainEncoding, id="f8_e5m2"):
    """OCP E5M2 (infinity at 0x7C, NaN above it, largest 57344)."""

    kind = "float"
    dtype = "u1"
    least_normal = 0x04
    first_nonfinite = 0x7C
    stored_as = (Safetensors("F8_E5M2"),)
    sources = _OFP8
    formula = "x"
    _table = _e5m2()

    @classmethod
    def to_float32(cls, stored: npt.NDArray[Any]) -> Floats:
        """Return stored bytes as float32."""
        return cls._table[stored]


class I8(PlainEncoding, id="i8"):
    """Signed byte."""

    kind = "integer"
    dtype = "i1"
    stored_as = (Ggml(24), Safetensors("I8"))
    sources = _SAFETENSORS
    formula = "x"


class I16(PlainEncoding, id="i16"):
    """Signed 16-bit integer."""

    kind = "integer"
    dtype = "<i2"
    stored_as = (Ggml(25), Safetensors("I16"))
    sources = _SAFETENSORS
    formula = "x"


class I32(PlainEncoding, id="i32"):
    """Signed 32-bit integer."""

    kind = "integer"
    dtype = "<i4"
    stored_as = (Ggml(26), Safetensors("I32"))
    sources = _SAFETENSORS
    formula = "x"


class I64(PlainEncoding, id="i64"):
    """Signed 64-bit integer."""

    kind = "integer"
    dtype = "<i8"
    stored_as = (Ggml(27), Safetensors("I64"))
    sources = _SAFETENSORS
    formula = "x"


class U8(PlainEncoding, id="u8"):
    """Unsigned byte."""

    kind = "integer"
    dtype = "u1"
    stored_as = (Safetensors("U8"),)
    sources = _SAFETENSORS
    formula = "x"


class U16(PlainEncoding, id="u16"):
    """Unsigned 16-bit integer."""

    kind = "integer"
    dtype = "<u2"
    stored_as = (Safetensors("U16"),)
    sources = _SAFETENSORS
    formula = "x"


class U32(PlainEncoding, id="u32"):
    """Unsigned 32-bit integer."""

    kind = "integer"
    dtype = "<u4"
    stored_as = (Safetensors("U32"),)
    sources = _SAFETENSORS
    formula = "x"


class U64(PlainEncoding, id="u64"):
    """Unsigned 64-bit integer."""

    kind = "integer"
    dtype = "<u8"
    stored_as = (Safetensors("U64"),)
    sources = _SAFETENSORS
    formula = "x"


class Bool(PlainEncoding, id="bool"):
    """One byte, 0 or 1."""

    kind = "integer"
    dtype = "u1"
    allowed_max = 1
    stored_as = (Safetensors("BOOL"),)
    sources = _SAFETENSORS
    formula = "x"
