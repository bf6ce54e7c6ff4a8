"""What the numbers of all groups of a row come to, eight at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from qassay.kernels.cost_lanes import EIGHT, Operation
from qassay.kernels.cost_vectors import F64, I32, call, every, fadd, fmax, shuffled, spread, vector
from qassay.kernels.loads import _pointer, _typed_intrinsic

I64, BYTE = ir.IntType(64), ir.IntType(8)


def _over(builder: Any, values: Any, count: Any, operation: Operation) -> Any:
    """Return what `count` times eight float64 numbers come to, lanes first, then in halves."""
    zero = every(F64, EIGHT, 0.0)
    kept = cgutils.alloca_once_value(builder, zero)
    builder.store(zero, kept)
    with cgutils.for_range(builder, count) as loop:
        each = builder.load(builder.gep(values, [loop.index]), align=8)
        builder.store(operation(builder, builder.load(kept), each), kept)
    lanes = builder.load(kept)
    for width in (4, 2, 1):
        halves = (list(range(width)), list(range(width, 2 * width)))
        lanes = operation(builder, *(shuffled(builder, lanes, lanes, half) for half in halves))
    return builder.extract_element(lanes, ir.Constant(I32, 0))


def _folder(operation: Operation) -> Callable[..., Any]:
    @_typed_intrinsic
    def fold(_typing: Any, values: Any, eights: Any) -> Any:
        """Return what the first `eights` times eight numbers of a float64 array come to."""

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            zero = ir.Constant(ir.IntType(64), 0)
            first = _pointer(
                context, builder, signature.args[0], arguments[0], zero, vector(F64, EIGHT)
            )
            return _over(builder, first, arguments[1], operation)

        return types.float64(values, eights), generate

    return fold


sum_of = _folder(fadd)
"""The sum of numbers: lane `i` adds every eighth from `i` on, and then lanes are folded."""
most_of = _folder(fmax)
"""The largest of numbers, 0 where none is above it."""


@_typed_intrinsic
def index_of(_typing: Any, values: Any, eights: Any, value: Any) -> Any:
    """Return where a number is first among `eights` times eight, float64; 0 if nowhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(I64, 0)
        first = _pointer(
            context, builder, signature.args[0], arguments[0], zero, vector(F64, EIGHT)
        )
        wanted = spread(builder, arguments[2], EIGHT)
        found = cgutils.alloca_once_value(builder, zero)
        builder.store(zero, found)
        with cgutils.for_range(builder, arguments[1]) as loop:
            each = builder.load(builder.gep(first, [loop.index]), align=8)
            bits = builder.bitcast(builder.fcmp_ordered("==", each, wanted), BYTE)
            with builder.if_then(builder.icmp_unsigned("!=", bits, ir.Constant(BYTE, 0))):
                lane = call(builder, "llvm.cttz.i8", BYTE, bits, ir.Constant(ir.IntType(1), 1))
                at = builder.mul(loop.index, ir.Constant(I64, EIGHT))
                builder.store(builder.add(at, builder.zext(lane, I64)), found)
                loop.do_break()
        return builder.load(found)

    return types.int64(values, eights, value), generate


@_typed_intrinsic
def shares_of(_typing: Any, costs: Any, pars: Any, least: Any, eights: Any) -> Any:
    """Divide each of `eights` times eight numbers by another one, or by `least` if that is more."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(I64, 0)
        over, under = (
            _pointer(context, builder, signature.args[at], arguments[at], zero, vector(F64, EIGHT))
            for at in range(2)
        )
        least = spread(builder, arguments[2], EIGHT)
        with cgutils.for_range(builder, arguments[3]) as loop:
            at = builder.gep(over, [loop.index])
            par = builder.load(builder.gep(under, [loop.index]), align=8)
            share = builder.fdiv(builder.load(at, align=8), fmax(builder, par, least))
            builder.store(share, at, align=8)
        return context.get_dummy_value()

    return types.void(costs, pars, least, eights), generate
