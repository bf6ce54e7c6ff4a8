"""LLVM vectors for kernels of which the compiler would not make any: pieces of intrinsics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

I8, I16, I32, I64 = (ir.IntType(width) for width in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
_MAGNITUDE = 0x7FFFFFFF


def vector(kind: Any, count: int) -> Any:
    """Return the type of `count` lanes."""
    return ir.VectorType(kind, count)


def every(kind: Any, count: int, value: float) -> Any:
    """Return a constant that is the same in every lane."""
    return ir.Constant(vector(kind, count), [value] * count)


def shuffled(builder: Any, one: Any, two: Any, lanes: Sequence[int]) -> Any:
    """Return chosen lanes of two vectors, those of the second counted on."""
    return builder.shuffle_vector(one, two, ir.Constant(vector(I32, len(lanes)), list(lanes)))


def spread_lane(builder: Any, lanes: Any, lane: int, count: int) -> Any:
    """Return a vector of `count` times one lane."""
    return shuffled(builder, lanes, lanes, [lane] * count)


def spread(builder: Any, value: Any, count: int) -> Any:
    """Return a vector of `count` times a scalar."""
    single = ir.Constant(vector(value.type, count), ir.Undefined)
    single = builder.insert_element(single, value, ir.Constant(I32, 0))
    return spread_lane(builder, single, 0, count)


def spread_at(builder: Any, floats: Any, index: Any, count: int) -> Any:
    """Return a vector of `count` times one number of a vector in memory: no shuffle is needed."""
    numbers = builder.bitcast(floats, F32.as_pointer())
    at = builder.gep(numbers, [index])
    return spread(builder, builder.load(at, align=4), count)


def call(builder: Any, name: str, to: Any, *arguments: Any) -> Any:
    """Call an LLVM intrinsic that returns `to`."""
    kind = ir.FunctionType(to, [each.type for each in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def load(builder: Any, pointer: Any, index: int = 0) -> Any:
    """Load a vector, `index` vectors on, wherever it lies."""
    return builder.load(builder.gep(pointer, [ir.Constant(I32, index)]), align=1)


def store(builder: Any, value: Any, pointer: Any, index: int = 0) -> None:
    """Store one in the same way."""
    builder.store(value, builder.gep(pointer, [ir.Constant(I32, index)]), align=1)


def prefetch(builder: Any, pointer: Any, ahead: int) -> None:
    """Ask for the line of the cache so many bytes on; past the end this does nothing."""
    at = builder.gep(pointer, [ir.Constant(I32, ahead)])
    numbers = [ir.Constant(I32, each) for each in (0, 3, 1)]  # read, keep, data
    kind = ir.FunctionType(ir.VoidType(), [at.type, *(each.type for each in numbers)])
    name = "llvm.prefetch.p0i8"
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [at, *numbers])


def magnitude(builder: Any, lanes: Any) -> Any:
    """Return the bits of float32 numbers without their signs: ordered as their sizes are."""
    count = lanes.type.count
    bits = builder.bitcast(lanes, vector(I32, count))
    return builder.and_(bits, every(I32, count, _MAGNITUDE))


def size_of(builder: Any, lanes: Any) -> Any:
    """Return float32 numbers without their signs."""
    count = lanes.type.count
    return builder.bitcast(magnitude(builder, lanes), vector(F32, count))


def umax(builder: Any, one: Any, two: Any) -> Any:
    """Return the larger of unsigned integers, lane by lane."""
    return builder.select(builder.icmp_unsigned(">", one, two), one, two)


def fmin(builder: Any, one: Any, two: Any) -> Any:
    """Return the smaller number; the second where one is NaN."""
    return builder.select(builder.fcmp_ordered("<", one, two), one, two)


def fmax(builder: Any, one: Any, two: Any) -> Any:
    """Return the larger number; the second where one is NaN."""
    return builder.select(builder.fcmp_ordered(">", one, two), one, two)


def fadd(builder: Any, one: Any, two: Any) -> Any:
    """Return the sum."""
    return builder.fadd(one, two)


def widened(builder: Any, lanes: Any) -> Any:
    """Return float32 numbers as float64."""
    return builder.fpext(lanes, vector(F64, lanes.type.count))


def counted(builder: Any, mask: Any) -> Any:
    """Return how many lanes of a mask are set, int32."""
    width = ir.IntType(mask.type.count)
    bits = builder.bitcast(mask, width)
    count = call(builder, f"llvm.ctpop.i{width.width}", width, bits)
    return count if width.width == 32 else builder.zext(count, I32)
