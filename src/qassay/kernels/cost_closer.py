"""Groups with an error beyond half a step, set against the nearest values of their grid."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from qassay.kernels.cost import ASTRAY
from qassay.kernels.cost_lanes import EIGHT
from qassay.kernels.cost_vectors import (
    F32,
    F64,
    I32,
    call,
    counted,
    every,
    fmax,
    fmin,
    shuffled,
    spread,
    vector,
    widened,
)
from qassay.kernels.loads import _pointer, _typed_intrinsic


@_typed_intrinsic
def look_closer(
    _typing: Any, ref: Any, at: Any, new: Any, to: Any, chunks: Any, step: Any, start: Any,
    levels: Any,
) -> Any:  # fmt: skip
    """Set `chunks` times eight finite weights against the nearest values of their uniform grid.

    Args are float32 arrays and places in them, the signed step and the start as float64.

    Returns:
        The sum of squares of e*, sums of (e - e*) / step of weights below and above zero, numbers
        of weights astray and clipped: see `cost.Of`.
    """
    result = types.Tuple((types.float64, types.float64, types.float64, types.int32, types.int32))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        ref, at, new, to, chunks, step, start, levels = arguments
        eight, doubles = vector(F32, EIGHT), vector(F64, EIGHT)
        zero = every(F64, EIGHT, 0.0)
        old = _pointer(context, builder, signature.args[0], ref, at, eight)
        now = _pointer(context, builder, signature.args[2], new, to, eight)
        unit = call(builder, "llvm.fabs.f64", F64, step)
        limit = spread(builder, builder.fmul(unit, ir.Constant(F64, ASTRAY)), EIGHT)
        wide, begin = spread(builder, step, EIGHT), spread(builder, start, EIGHT)
        most = spread(builder, levels, EIGHT)
        last = builder.fsub(most, every(F64, EIGHT, 1.0))
        kept = [cgutils.alloca_once_value(builder, zero) for _ in range(3)]
        counts = [cgutils.alloca_once_value(builder, ir.Constant(I32, 0)) for _ in range(2)]
        with cgutils.for_range(builder, chunks) as loop:
            w, v = (
                widened(builder, builder.load(builder.gep(each, [loop.index]), align=1))
                for each in (old, now)
            )
            x = builder.fdiv(builder.fsub(w, begin), wide)
            code = call(builder, "llvm.rint.v8f64", doubles, x)
            code = fmin(builder, fmax(builder, code, zero), last)
            best = builder.fsub(builder.fadd(begin, builder.fmul(code, wide)), w)
            error = builder.fsub(v, w)
            excess = builder.fsub(error, best)
            below = builder.fcmp_ordered("<", w, zero)
            above = builder.fcmp_ordered(">", w, zero)
            parts = (
                builder.fmul(best, best),
                builder.select(below, excess, zero),
                builder.select(above, excess, zero),
            )
            for place, part in zip(kept, parts, strict=True):
                builder.store(builder.fadd(builder.load(place), part), place)
            sizes = [call(builder, "llvm.fabs.v8f64", doubles, each) for each in (error, best)]
            astray = builder.fcmp_ordered(">", builder.fsub(*sizes), limit)
            outside = builder.or_(
                builder.fcmp_ordered("<", x, every(F64, EIGHT, -1.0)),
                builder.fcmp_ordered(">", x, most),
            )
            for place, mask in zip(counts, (astray, outside), strict=True):
                builder.store(builder.add(builder.load(place), counted(builder, mask)), place)
        found = []
        for place in kept:
            lanes = builder.load(place)
            for width in (4, 2, 1):
                low, high = list(range(width)), list(range(width, 2 * width))
                lanes = builder.fadd(
                    shuffled(builder, lanes, lanes, low), shuffled(builder, lanes, lanes, high)
                )
            found.append(builder.extract_element(lanes, ir.Constant(I32, 0)))
        found[1:] = [builder.fdiv(each, unit) for each in found[1:]]
        ends = [*found, *(builder.load(place) for place in counts)]
        return context.make_tuple(builder, signature.return_type, ends)

    arguments = (ref, at, new, to, chunks, step, start, levels)
    return result(*arguments), generate
