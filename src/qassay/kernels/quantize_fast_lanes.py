"""What can be done with the vectors of `quantize_fast_vectors` beyond arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import cast as typed

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic as _intrinsic

from qassay.kernels.quantize_fast_vectors import (
    BYTE_VECTOR,
    FLOAT_VECTOR,
    FLOATS,
    INT_VECTOR,
    INTS,
    LANES,
    MASK,
    Generator,
)


def _typed_intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    return typed("Callable[..., Any]", _intrinsic(function))


def _constant(vector: ir.VectorType, value: Any) -> Any:
    return ir.Constant(vector, [ir.Constant(vector.element, value)] * LANES)


def _spread(builder: Any, vector: ir.VectorType, value: Any) -> Any:
    single = builder.insert_element(
        ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
    )
    return builder.shuffle_vector(single, single, ir.Constant(INT_VECTOR, [0] * LANES))


def _address(context: Any, builder: Any, array_type: Any, array: Any, row: Any, to: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    first = builder.mul(row, ir.Constant(row.type, LANES))
    return builder.bitcast(builder.gep(data, [first]), to.as_pointer())


@_typed_intrinsic
def load(_typing: Any, array: Any, row: Any) -> Any:
    """Load row `row` of an array of float32, `[row, lane]`, as all that take a row."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        at = _address(context, builder, signature.args[0], given[0], given[1], FLOAT_VECTOR)
        return builder.load(at, align=1)

    return FLOATS(array, row), generate


@_typed_intrinsic
def store(_typing: Any, array: Any, row: Any, value: Any) -> Any:
    """Store a row of float32."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        at = _address(context, builder, signature.args[0], given[0], given[1], FLOAT_VECTOR)
        builder.store(given[2], at, align=1)
        return context.get_dummy_value()

    return types.void(array, row, value), generate


@_typed_intrinsic
def load_bytes(_typing: Any, array: Any, row: Any) -> Any:
    """Load a row of uint8 as integers."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        at = _address(context, builder, signature.args[0], given[0], given[1], BYTE_VECTOR)
        return builder.zext(builder.load(at, align=1), INT_VECTOR)

    return INTS(array, row), generate


@_typed_intrinsic
def store_bytes(_typing: Any, array: Any, row: Any, value: Any) -> Any:
    """Store the low bytes of integers as a row of uint8."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        at = _address(context, builder, signature.args[0], given[0], given[1], BYTE_VECTOR)
        builder.store(builder.trunc(given[2], BYTE_VECTOR), at, align=1)
        return context.get_dummy_value()

    return types.void(array, row, value), generate


@_typed_intrinsic
def store_bytes_at(_typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """Store the low bytes of integers from byte `offset` of a uint8 array on."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, given[0]).data
        at = builder.bitcast(builder.gep(data, [given[1]]), BYTE_VECTOR.as_pointer())
        builder.store(builder.trunc(given[2], BYTE_VECTOR), at, align=1)
        return context.get_dummy_value()

    return types.void(array, offset, value), generate


@_typed_intrinsic
def splat(_typing: Any, value: Any) -> Any:
    """Return a float32 in every lane."""
    if value != types.float32:
        return None

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return _spread(builder, FLOAT_VECTOR, given[0])

    return FLOATS(value), generate


@_typed_intrinsic
def zeros(_typing: Any) -> Any:
    """Return 0 in every lane."""

    def generate(_context: Any, _builder: Any, _signature: Any, _given: Any) -> Any:
        return _constant(FLOAT_VECTOR, 0.0)

    return FLOATS(), generate


@_typed_intrinsic
def whole(_typing: Any, value: Any) -> Any:
    """Return an integer in every lane."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        narrow = context.cast(builder, given[0], signature.args[0], types.int32)
        return _spread(builder, INT_VECTOR, narrow)

    return INTS(value), generate


@_typed_intrinsic
def nearest(_typing: Any, value: Any) -> Any:
    """Round as ggml's `nearest_int`: the bits of `value + 1.5 * 2^23`."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        raised = builder.fadd(given[0], _constant(FLOAT_VECTOR, 12582912.0))
        low = builder.and_(builder.bitcast(raised, INT_VECTOR), _constant(INT_VECTOR, 0x7FFFFF))
        return builder.sub(low, _constant(INT_VECTOR, 0x400000))

    return INTS(value), generate


@_typed_intrinsic
def number(_typing: Any, value: Any) -> Any:
    """Convert integers to float32."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.sitofp(given[0], FLOAT_VECTOR)

    return FLOATS(value), generate


@_typed_intrinsic
def signed_byte(_typing: Any, value: Any) -> Any:
    """Narrow integers to int8."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.sext(builder.trunc(given[0], BYTE_VECTOR), INT_VECTOR)

    return INTS(value), generate


@_typed_intrinsic
def bits_of(_typing: Any, value: Any) -> Any:
    """Return the bits of float32."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], INT_VECTOR)

    return INTS(value), generate


@_typed_intrinsic
def of_bits(_typing: Any, value: Any) -> Any:
    """Return the float32 of these bits."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], FLOAT_VECTOR)

    return FLOATS(value), generate


def _unary(name: str) -> Generator:
    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(FLOAT_VECTOR, [FLOAT_VECTOR])
        function = get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
        return builder.call(function, given)

    return generate


@_typed_intrinsic
def magnitude(_typing: Any, value: Any) -> Any:
    """Return |x|."""
    return FLOATS(value), _unary("fabs")


@_typed_intrinsic
def root(_typing: Any, value: Any) -> Any:
    """Return the correctly rounded square root."""
    return FLOATS(value), _unary("sqrt")


@_typed_intrinsic
def negated(_typing: Any, value: Any) -> Any:
    """Return -x, the sign of zero and NaN turned too."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.fneg(given[0])

    return FLOATS(value), generate


@_typed_intrinsic
def select(_typing: Any, mask: Any, yes: Any, no: Any) -> Any:
    """Return `yes` where the mask is set, else `no`."""
    if mask != MASK or yes != no:
        return None

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.select(*given)

    return yes(mask, yes, no), generate


@_typed_intrinsic
def clamped(_typing: Any, value: Any, low: Any, high: Any) -> Any:
    """Return integers kept between two others."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        value, low, high = given
        value = builder.select(builder.icmp_signed("<", value, high), value, high)
        return builder.select(builder.icmp_signed(">", value, low), value, low)

    return INTS(value, low, high), generate


@_typed_intrinsic
def is_nan(_typing: Any, value: Any) -> Any:
    """Return where a float32 is NaN."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.fcmp_unordered("uno", given[0], given[0])

    return MASK(value), generate


@_typed_intrinsic
def any_lane(_typing: Any, mask: Any) -> Any:
    """Return whether some lane of a mask is set."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        packed = builder.bitcast(given[0], ir.IntType(LANES))
        return builder.icmp_unsigned("!=", packed, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(mask), generate


@_typed_intrinsic
def packed(_typing: Any, mask: Any) -> Any:
    """Return a mask as the bits of an integer, lane 0 lowest."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.zext(builder.bitcast(given[0], ir.IntType(LANES)), ir.IntType(32))

    return types.uint32(mask), generate


@_typed_intrinsic
def greatest(_typing: Any, value: Any) -> Any:
    """Return the greatest lane of signed integers."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [INT_VECTOR])
        name = f"llvm.vector.reduce.smax.v{LANES}i32"
        return builder.call(get_or_insert_function(builder.module, kind, name), given)

    return types.int32(value), generate


@_typed_intrinsic
def truncated(_typing: Any, value: Any) -> Any:
    """Convert float32 towards zero; what has no int32 becomes 0.

    x86 makes it -2^31, whose low byte, all that ggml keeps, is 0 as well.
    """

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        limit = 2.0**31
        below = builder.fcmp_ordered("<", given[0], _constant(FLOAT_VECTOR, limit))
        above = builder.fcmp_ordered(">", given[0], _constant(FLOAT_VECTOR, -limit))
        fits = builder.and_(below, above)
        safe = builder.select(fits, given[0], _constant(FLOAT_VECTOR, 0.0))
        return builder.fptosi(safe, INT_VECTOR)

    return INTS(value), generate


@_typed_intrinsic
def float_bits(_typing: Any, value: Any) -> Any:
    """Return the bits of one float32."""
    if value != types.float32:
        return None

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], ir.IntType(32))

    return types.int32(value), generate


@_typed_intrinsic
def bits_float(_typing: Any, value: Any) -> Any:
    """Return the float32 of these bits."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        narrow = context.cast(builder, given[0], signature.args[0], types.int32)
        return builder.bitcast(narrow, ir.FloatType())

    return types.float32(value), generate


ZERO = np.float32(0)
ONE = np.float32(1)
