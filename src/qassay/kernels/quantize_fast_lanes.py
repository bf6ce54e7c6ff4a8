"""Vectors for Numba code: `LANES` float32 or int32 numbers that one instruction works on.

ggml's searches are serial inside a sub-block, so the fast kernels give each lane a super-block of
its own and keep running sums in registers. Arithmetic exists between vectors of one type only:
nothing can become a double unnoticed. Every operation is the IEEE one, never contracted.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar
from typing import cast as typed

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic as _intrinsic
from numba.extending import lower_builtin, register_model

LANES = 16
_FLOAT = ir.VectorType(ir.FloatType(), LANES)
_INT = ir.VectorType(ir.IntType(32), LANES)
_BYTE = ir.VectorType(ir.IntType(8), LANES)
_BIT = ir.VectorType(ir.IntType(1), LANES)

Generator = Callable[[Any, Any, Any, Any], Any]
F = TypeVar("F", bound=Callable[..., Any])


def inner(function: F) -> F:
    """Compile a function that only kernels call, without what Python or C would call it by.

    Those wrappers are a third of the time that compiling takes.
    """
    options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return typed("F", numba.njit(nogil=True, error_model="numpy", **options)(function))


class Lanes(types.Type):  # type: ignore[misc]
    """The Numba type of a vector."""

    def __init__(self, kind: str, llvm: ir.VectorType) -> None:
        self.llvm = llvm
        super().__init__(name=f"lanes_{kind}")


FLOATS = Lanes("float32", _FLOAT)
INTS = Lanes("int32", _INT)
MASK = Lanes("bool", _BIT)


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Lanes) -> None:
        super().__init__(manager, kind, kind.llvm)


def _operator(
    python: Callable[..., Any], instructions: dict[Lanes, Generator], result: Lanes | None = None
) -> None:
    """Let `python` work on two vectors of one type."""

    class Template(AbstractTemplate):  # type: ignore[misc]
        def generic(self, given: Any, _keywords: Any) -> Any:
            if len(given) == 2 and given[0] == given[1] and given[0] in instructions:
                return signature(result or given[0], *given)
            return None

    infer_global(python)(Template)

    def lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return instructions[signature.args[0]](context, builder, signature, arguments)

    lower_builtin(python, Lanes, Lanes)(lower)


def _plain(name: str) -> Generator:
    return lambda _context, builder, _signature, given: getattr(builder, name)(*given)


def _compared(name: str, relation: str) -> Generator:
    return lambda _context, builder, _signature, given: getattr(builder, name)(relation, *given)


_operator(operator.add, {FLOATS: _plain("fadd"), INTS: _plain("add")})
_operator(operator.sub, {FLOATS: _plain("fsub"), INTS: _plain("sub")})
_operator(operator.mul, {FLOATS: _plain("fmul"), INTS: _plain("mul")})
_operator(operator.truediv, {FLOATS: _plain("fdiv")})
_operator(operator.and_, {INTS: _plain("and_"), MASK: _plain("and_")})
_operator(operator.or_, {INTS: _plain("or_"), MASK: _plain("or_")})
_operator(operator.lshift, {INTS: _plain("shl")})
_operator(operator.rshift, {INTS: _plain("lshr")})
for _python, _relation in (
    (operator.lt, "<"),
    (operator.gt, ">"),
    (operator.eq, "=="),
):
    _operator(
        _python,
        {
            FLOATS: _compared("fcmp_ordered", _relation),
            INTS: _compared("icmp_signed", _relation),
        },
        MASK,
    )
# NaN differs from everything: the one comparison that is true of it.
_operator(
    operator.ne,
    {FLOATS: _compared("fcmp_unordered", "!="), INTS: _compared("icmp_signed", "!=")},
    MASK,
)


def _typed_intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    return typed("Callable[..., Any]", _intrinsic(function))


def _constant(vector: ir.VectorType, value: Any) -> Any:
    return ir.Constant(vector, [ir.Constant(vector.element, value)] * LANES)


def _spread(builder: Any, vector: ir.VectorType, value: Any) -> Any:
    single = builder.insert_element(
        ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0)
    )
    return builder.shuffle_vector(single, single, ir.Constant(_INT, [0] * LANES))


def _address(context: Any, builder: Any, array_type: Any, array: Any, row: Any, to: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    first = builder.mul(row, ir.Constant(row.type, LANES))
    return builder.bitcast(builder.gep(data, [first]), to.as_pointer())


@_typed_intrinsic
def load(_typing: Any, array: Any, row: Any) -> Any:
    """Load row `row` of an array of float32, `[row, lane]`, as all that take a row."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        at = _address(context, builder, signature.args[0], given[0], given[1], _FLOAT)
        return builder.load(at, align=1)

    return FLOATS(array, row), generate


@_typed_intrinsic
def store(_typing: Any, array: Any, row: Any, value: Any) -> Any:
    """Store a row of float32."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        at = _address(context, builder, signature.args[0], given[0], given[1], _FLOAT)
        builder.store(given[2], at, align=1)
        return context.get_dummy_value()

    return types.void(array, row, value), generate


@_typed_intrinsic
def load_bytes(_typing: Any, array: Any, row: Any) -> Any:
    """Load a row of uint8 as integers."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        at = _address(context, builder, signature.args[0], given[0], given[1], _BYTE)
        return builder.zext(builder.load(at, align=1), _INT)

    return INTS(array, row), generate


@_typed_intrinsic
def store_bytes(_typing: Any, array: Any, row: Any, value: Any) -> Any:
    """Store the low bytes of integers as a row of uint8."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        at = _address(context, builder, signature.args[0], given[0], given[1], _BYTE)
        builder.store(builder.trunc(given[2], _BYTE), at, align=1)
        return context.get_dummy_value()

    return types.void(array, row, value), generate


@_typed_intrinsic
def store_bytes_at(_typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """Store the low bytes of integers from byte `offset` of a uint8 array on."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, given[0]).data
        at = builder.bitcast(builder.gep(data, [given[1]]), _BYTE.as_pointer())
        builder.store(builder.trunc(given[2], _BYTE), at, align=1)
        return context.get_dummy_value()

    return types.void(array, offset, value), generate


@_typed_intrinsic
def splat(_typing: Any, value: Any) -> Any:
    """Return a float32 in every lane."""
    if value != types.float32:
        return None

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return _spread(builder, _FLOAT, given[0])

    return FLOATS(value), generate


@_typed_intrinsic
def zeros(_typing: Any) -> Any:
    """Return 0 in every lane."""

    def generate(_context: Any, _builder: Any, _signature: Any, _given: Any) -> Any:
        return _constant(_FLOAT, 0.0)

    return FLOATS(), generate


@_typed_intrinsic
def whole(_typing: Any, value: Any) -> Any:
    """Return an integer in every lane."""

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        narrow = context.cast(builder, given[0], signature.args[0], types.int32)
        return _spread(builder, _INT, narrow)

    return INTS(value), generate


@_typed_intrinsic
def nearest(_typing: Any, value: Any) -> Any:
    """Round as ggml's `nearest_int`: the bits of `value + 1.5 * 2^23`."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        raised = builder.fadd(given[0], _constant(_FLOAT, 12582912.0))
        low = builder.and_(builder.bitcast(raised, _INT), _constant(_INT, 0x7FFFFF))
        return builder.sub(low, _constant(_INT, 0x400000))

    return INTS(value), generate


@_typed_intrinsic
def number(_typing: Any, value: Any) -> Any:
    """Convert integers to float32."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.sitofp(given[0], _FLOAT)

    return FLOATS(value), generate


@_typed_intrinsic
def signed_byte(_typing: Any, value: Any) -> Any:
    """Narrow integers to int8."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.sext(builder.trunc(given[0], _BYTE), _INT)

    return INTS(value), generate


@_typed_intrinsic
def bits_of(_typing: Any, value: Any) -> Any:
    """Return the bits of float32."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], _INT)

    return INTS(value), generate


@_typed_intrinsic
def of_bits(_typing: Any, value: Any) -> Any:
    """Return the float32 of these bits."""

    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        return builder.bitcast(given[0], _FLOAT)

    return FLOATS(value), generate


def _unary(name: str) -> Generator:
    def generate(_context: Any, builder: Any, _signature: Any, given: Any) -> Any:
        kind = ir.FunctionType(_FLOAT, [_FLOAT])
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
        kind = ir.FunctionType(ir.IntType(32), [_INT])
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
        below = builder.fcmp_ordered("<", given[0], _constant(_FLOAT, limit))
        above = builder.fcmp_ordered(">", given[0], _constant(_FLOAT, -limit))
        fits = builder.and_(below, above)
        safe = builder.select(fits, given[0], _constant(_FLOAT, 0.0))
        return builder.fptosi(safe, _INT)

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
