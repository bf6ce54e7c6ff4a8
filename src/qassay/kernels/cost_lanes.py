"""Vectors for the measures of an error: eight groups of weights at a time, in a fixed order.

Sixteen float32 lanes go over a group of 16 or 32 weights, and lane `i` holds weights `i` and
`i + 16`. What is summed over a row stays in its lanes over all eight groups::

    lane[i] = ((w[0][i] + w[0][i + 16]) + (w[1][i] + w[1][i + 16])) + ...      group by group

What each group has for itself (squared error, largest error, lowest and highest weight) is folded
in halves: lanes `i` and `i + 8`, then `i + 4`, `i + 2` and `i + 1`. Nothing here lets the compiler
choose another order, and no multiplication is fused with a sum: results are the same on every
machine. LLVM does not vectorise loops with ten reductions, and keeps strict sums in order: so the
vectors are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from qassay.kernels.cost import ASTRAY, FLOOR
from qassay.kernels.cost_vectors import (
    F32,
    F64,
    I8,
    I32,
    call,
    counted,
    every,
    fadd,
    fmax,
    fmin,
    load,
    magnitude,
    prefetch,
    shuffled,
    size_of,
    spread,
    spread_lane,
    store,
    umax,
    vector,
    widened,
)
from qassay.kernels.loads import _pointer, _typed_intrinsic

EIGHT = 8
"""Groups that are measured at a time."""
LANES = 16
SUMS = 6
"""What is left in lanes: w^2, w e, e, w, and e in steps of weights below and above zero."""
TINY, HUGE, LARGE = 1e-30, 1e30, 1e14
"""Sums of squares that float32 can hold, and weights whose squares it can sum."""

AHEAD, LINE = 4096, 64
"""Bytes that the source is fetched ahead: processors do not look past the end of a page."""


Operation = Callable[[Any, Any, Any], Any]


def _folded(builder: Any, groups: Sequence[Any], operation: Operation) -> Any:
    """Return one vector with what each of eight vectors of 16 lanes folds to.

    Halves of two vectors are put side by side before they are folded, so that no lane idles::

        a0 .. a7 | b0 .. b7   ->   a0+a4 .. a3+a7 b0+b4 .. b3+b7   ->   ...   ->   a b c ... h
    """
    low, high = list(range(8)), list(range(8, 16))
    kept = [
        operation(builder, shuffled(builder, each, each, low), shuffled(builder, each, each, high))
        for each in groups
    ]
    # Lanes of 128 bits are never crossed after the first step: the groups come out as 0 4 1 5 ...
    steps = (
        ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]),
        ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]),
        ([0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]),
    )
    for first, second in steps:
        kept = [
            operation(
                builder,
                shuffled(builder, kept[at], kept[at + 1], first),
                shuffled(builder, kept[at], kept[at + 1], second),
            )
            for at in range(0, len(kept), 2)
        ]
    return shuffled(builder, kept[0], kept[0], [0, 4, 1, 5, 2, 6, 3, 7])


class _Group:
    """Sums of one group, in lanes."""

    def __init__(self, builder: Any, old: Sequence[Any], new: Sequence[Any]) -> None:
        zero = every(F32, LANES, 0.0)
        self.counts = [ir.Constant(I32, 0)] * 2
        parts: list[list[Any]] = []
        for w, v in zip(old, new, strict=True):
            e = builder.fsub(v, w)
            below = builder.fcmp_ordered("<", w, zero)
            above = builder.fcmp_ordered(">", w, zero)
            for at, mask in enumerate((below, above)):
                self.counts[at] = builder.add(self.counts[at], counted(builder, mask))
            parts.append(
                [
                    builder.fmul(w, w), builder.fmul(w, e), e, w,
                    builder.select(below, e, zero), builder.select(above, e, zero),
                    builder.fmul(e, e), magnitude(builder, e), w, w,
                ]
            )  # fmt: skip
        kinds: list[Operation] = [fadd] * (SUMS + 1) + [umax, fmin, fmax]
        found = parts[0]
        for more in parts[1:]:
            found = [kind(builder, a, b) for kind, a, b in zip(kinds, found, more, strict=True)]
        self.sums, self.own = found[:SUMS], found[SUMS:]


def _sound(builder: Any, steps: Any, starts: Any, ends: Sequence[Any]) -> Any:
    """Return which groups have a grid, and numbers that float32 can sum the squares of."""
    err2, largest, amax = ends
    size = size_of(builder, steps)
    start = size_of(builder, starts)
    zero, infinite = every(F32, EIGHT, 0.0), every(F32, EIGHT, float("inf"))
    some = builder.fcmp_ordered(">", err2, every(F32, EIGHT, TINY))
    tests = (
        builder.fcmp_ordered(">", size, zero),
        builder.fcmp_ordered("<", size, infinite),
        builder.fcmp_ordered("<", start, infinite),
        builder.fcmp_ordered("<", amax, every(F32, EIGHT, LARGE)),
        builder.fcmp_ordered("<", err2, every(F32, EIGHT, HUGE)),
        builder.or_(some, builder.fcmp_ordered("==", largest, zero)),
    )
    found = tests[0]
    for each in tests[1:]:
        found = builder.and_(found, each)
    return found


def _pars(
    builder: Any, low: Any, high: Any, symmetric: Any, units: Sequence[Any], length: int
) -> Any:
    """Return what eight groups should cost, as `cost.par_of_group` has it."""
    low, high = widened(builder, low), widened(builder, high)
    amax = fmax(builder, builder.fneg(low), high)
    middle, ranged = (spread(builder, unit, EIGHT) for unit in units)
    wide = builder.select(
        builder.icmp_unsigned("!=", symmetric, every(I8, EIGHT, 0)),
        builder.fmul(amax, middle),
        builder.fmul(builder.fsub(high, low), ranged),
    )
    floor = builder.fmul(amax, every(F64, EIGHT, FLOOR))
    squares = builder.fmul(builder.fmul(wide, wide), every(F64, EIGHT, 1 / 12))
    par = builder.fadd(builder.fmul(floor, floor), squares)
    return builder.fmul(par, every(F64, EIGHT, float(length)))


def _eight_groups(
    builder: Any, old: Any, now: Any, inverse: Any, length: int
) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the sums over eight groups in steps, what is kept of each, and counts by sign."""
    sums: list[Any] = []
    groups: list[Any] = []
    counts = [ir.Constant(I32, 0)] * 2
    for number in range(EIGHT):
        of = range(number * length // LANES, (number + 1) * length // LANES)
        one = _Group(
            builder, [load(builder, old, i) for i in of], [load(builder, now, i) for i in of]
        )
        unit = spread_lane(builder, inverse, number, LANES)
        own = one.sums[:4] + [builder.fmul(each, unit) for each in one.sums[4:]]
        sums = [fadd(builder, *each) for each in zip(sums, own)] if sums else own  # noqa: B905 - of one length
        counts = [builder.add(*each) for each in zip(counts, one.counts, strict=True)]
        groups.append(one.own)
    return sums, groups, counts


def _settled(
    builder: Any, groups: Sequence[Any], step: Any, start: Any
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return which groups are sound, which are beyond half a step, and numbers of each group.

    The numbers are the squared error, the largest error, the least and the greatest weight.
    """
    err2, bits, low, high = (
        _folded(builder, [each[index] for each in groups], operation)
        for index, operation in enumerate((fadd, umax, fmin, fmax))
    )
    largest = builder.bitcast(bits, vector(F32, EIGHT))
    zero = every(F32, EIGHT, 0.0)
    low, high = fmin(builder, low, zero), fmax(builder, high, zero)
    amax = fmax(builder, builder.fneg(low), high)
    sound = _sound(builder, step, start, (err2, largest, amax))
    half = builder.fmul(size_of(builder, step), every(F32, EIGHT, 0.5))
    beyond = builder.fcmp_ordered(">", largest, half)
    return sound, beyond, (err2, largest, low, high)


def _measurer(length: int) -> Callable[..., Any]:
    """Return what measures eight groups of so many weights, 16 or 32."""

    @_typed_intrinsic
    def measure(
        _typing: Any, ref: Any, at: Any, new: Any, to: Any, steps: Any, starts: Any,
        symmetric: Any, group: Any, middle: Any, ranged: Any, sums: Any, sizes: Any, costs: Any,
        pars: Any, bests: Any, ratios: Any,
    ) -> Any:  # fmt: skip
        """Measure weights `ref[at:]` against `new[to:]`, float32 both, and groups from `group` on.

        Written are lanes `[SUMS, LANES]` to `sums`; and for each group, from `group` on, its
        largest error to `sizes` and that in steps to `ratios`, its squared error to `costs` and
        `bests`, and what that should be to `pars`.

        Returns:
            Bits of groups that are sound (see `_sound`), bits of those with an error beyond half a
            step, numbers of weights below and above zero.
        """
        result = types.Tuple((types.uint8, types.uint8, types.int32, types.int32))

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args

            def place(index: int, offset: Any, to: Any) -> Any:
                return _pointer(context, builder, kinds[index], arguments[index], offset, to)

            eight, lanes = vector(F32, EIGHT), vector(F32, LANES)
            first = arguments[7]
            old, now = place(0, arguments[1], lanes), place(2, arguments[3], lanes)
            step = load(builder, place(4, first, eight))
            flags = load(builder, place(6, first, vector(I8, EIGHT)))
            size = size_of(builder, step)
            inverse = builder.fdiv(every(F32, EIGHT, 1.0), size)
            for ahead in range(AHEAD, AHEAD + EIGHT * length * 4, LINE):
                prefetch(builder, place(0, arguments[1], I8), ahead)
            sums, groups, counts = _eight_groups(builder, old, now, inverse, length)
            kept = place(10, ir.Constant(ir.IntType(64), 0), lanes)
            for number, each in enumerate(sums):
                store(builder, each, kept, number)
            start = load(builder, place(5, first, eight))
            sound, beyond, found = _settled(builder, groups, step, start)
            low, high = found[2:]
            par = _pars(builder, low, high, flags, arguments[8:10], length)
            doubles = vector(F64, EIGHT)
            err2, largest = (widened(builder, each) for each in found[:2])
            ratio = builder.fdiv(largest, widened(builder, size))
            written = ((11, largest), (12, err2), (14, err2), (13, par), (15, ratio))
            for index, each in written:
                store(builder, each, place(index, first, doubles))
            ends = [
                builder.bitcast(sound, I8),
                builder.bitcast(beyond, I8),
                *counts,
            ]
            return context.make_tuple(builder, signature.return_type, ends)

        arguments = (
            ref, at, new, to, steps, starts, symmetric, group, middle, ranged, sums, sizes, costs,
            pars, bests, ratios,
        )  # fmt: skip
        return result(*arguments), generate

    return measure


measure_16 = _measurer(16)
measure_32 = _measurer(32)


@_typed_intrinsic
def add_lanes(_typing: Any, sums: Any, kept: Any) -> Any:
    """Add lanes `[SUMS, LANES]`, float32, to those of a row, float64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(ir.IntType(64), 0)
        source, target = (
            _pointer(context, builder, kind, array, zero, vector(of, LANES))
            for kind, array, of in zip(signature.args, arguments, (F32, F64), strict=True)
        )
        for index in range(SUMS):
            lanes = widened(builder, load(builder, source, index))
            store(builder, builder.fadd(load(builder, target, index), lanes), target, index)
        return context.get_dummy_value()

    return types.void(sums, kept), generate


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
