"""Vectors for the measures of an error: eight groups of weights at a time, in a fixed order.

Sixteen float32 lanes go over a group of 16 or 32 weights, and lane `i` holds weights `i` and
`i + 16`. What is summed over a row stays in its lanes over all eight groups::

    lane[i] = ((w[0][i] + w[0][i + 16]) + (w[1][i] + w[1][i + 16])) + ...      group by group

Errors of weights above zero are what all errors leave of those below: that spares a comparison, a
choice and a sum. Where a weight is zero, both signs are summed in a second look (`apart`).

What each group has for itself (squared error, largest error, lowest and highest weight) is folded
in halves: lanes `i` and `i + 8`, then `i + 4`, `i + 2` and `i + 1`. Nothing here lets the compiler
choose another order, and no multiplication is fused with a sum: results are the same on every
machine. LLVM does not vectorise loops with ten reductions, and keeps strict sums in order: so the
vectors are written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from qassay.kernels.cost import FLOOR
from qassay.kernels.cost_vectors import (
    F32,
    F64,
    I8,
    I32,
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
    spread_at,
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
"""What is left in lanes: w^2, w e, e, w, e in steps of weights below zero, and of all others."""
TINY, HUGE, LARGE = 1e-30, 1e30, 1e14
"""Sums of squares that float32 can hold, and weights whose squares it can sum."""

AHEAD, LINE = 4096, 64
"""Bytes that the source is fetched ahead: processors do not look past the end of a page."""


Operation = Callable[[Any, Any, Any], Any]
Decoded = Callable[[int], Sequence[Any]]


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
    """Sums of one group, in lanes: its weights, and what they are decoded to.

    Attributes:
        counts: How many weights are below zero; and above, only where asked for: int32.
        zeros: A mask of lanes in which one is zero, where not.
        sums: Of w^2, w e, e, w, e where w is below zero, and e or e where w is above.
        own: Of e^2; bits of the largest |e|; lowest and highest w.
    """

    def __init__(self, builder: Any, old: Sequence[Any], new: Sequence[Any], *, apart: bool):
        zero = every(F32, LANES, 0.0)
        self.counts = [ir.Constant(I32, 0)] * 2
        self.zeros = every(ir.IntType(1), LANES, 0)
        parts: list[list[Any]] = []
        for w, v in zip(old, new, strict=True):
            e = builder.fsub(v, w)
            masks = [builder.fcmp_ordered("<", w, zero)]
            signed = [builder.select(masks[0], e, zero)]
            if apart:
                masks.append(builder.fcmp_ordered(">", w, zero))
                signed.append(builder.select(masks[1], e, zero))
            else:
                self.zeros = builder.or_(self.zeros, builder.fcmp_ordered("==", w, zero))
            for at, mask in enumerate(masks):
                self.counts[at] = builder.add(self.counts[at], counted(builder, mask))
            parts.append(
                [
                    builder.fmul(w, w), builder.fmul(w, e), e, w, *signed,
                    builder.fmul(e, e), magnitude(builder, e), w, w,
                ]
            )  # fmt: skip
        sums = len(parts[0]) - 4
        kinds: list[Operation] = [fadd] * (sums + 1) + [umax, fmin, fmax]
        found = parts[0]
        for more in parts[1:]:
            found = [kind(builder, a, b) for kind, a, b in zip(kinds, found, more, strict=True)]
        self.sums, self.own = found[:sums], found[sums:]
        if not apart:
            self.sums.append(self.sums[2])


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


@dataclass(slots=True)
class _Eight:
    """What eight groups come to: sums in lanes; of each group its own; counts and zeros."""

    sums: list[Any]
    groups: list[Any]
    counts: list[Any]
    zeros: Any


def _eight_groups(
    builder: Any, old: Any, values: Decoded, inverse: Any, length: int, *, apart: bool
) -> _Eight:
    """Return the sums over eight groups; `inverse` points to one over each one's step."""
    all_ = _Eight([], [], [ir.Constant(I32, 0)] * 2, every(ir.IntType(1), LANES, 0))
    for number in range(EIGHT):
        of = range(number * length // LANES, (number + 1) * length // LANES)
        weights = [load(builder, old, i) for i in of]
        one = _Group(builder, weights, values(number), apart=apart)
        unit = spread_at(builder, inverse, number, LANES)
        own = one.sums[:4] + [builder.fmul(each, unit) for each in one.sums[4:]]
        all_.sums = [fadd(builder, *each) for each in zip(all_.sums, own)] if number else own  # noqa: B905 - of one length
        all_.counts = [builder.add(*each) for each in zip(all_.counts, one.counts, strict=True)]
        all_.zeros = builder.or_(all_.zeros, one.zeros)
        all_.groups.append(one.own)
    if not apart:
        all_.sums[5] = builder.fsub(all_.sums[5], all_.sums[4])
        weights_of = ir.Constant(I32, EIGHT * length)
        lanes = ir.IntType(LANES)
        some = builder.icmp_unsigned(
            "!=", builder.bitcast(all_.zeros, lanes), ir.Constant(lanes, 0)
        )
        above = builder.sub(weights_of, all_.counts[0])
        all_.counts[1] = builder.select(some, ir.Constant(I32, -1), above)
    return all_


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


ENDS = types.Tuple((types.uint8, types.uint8, types.int32, types.int32))
"""What measuring eight groups returns: bits of groups that are sound (see `_sound`), bits of those
with an error beyond half a step, how many weights are below and above zero: -1 above where one is
zero and that was not asked for. Then, and where a group is not sound, nothing is added."""


@dataclass(frozen=True, slots=True)
class Written:
    """Where the measures of eight groups go, as pointers to vectors.

    Attributes:
        kept: `SUMS` vectors of `LANES`, float64: the row's, which are added to.
        sizes: Of each group its largest error, float64 as all below.
        costs: Its squared error.
        pars: What that should be.
        bests: What it is for the nearest codes, where no error is beyond half a step.
        ratios: The largest error in steps.
    """

    kept: Any
    sizes: Any
    costs: Any
    pars: Any
    bests: Any
    ratios: Any


def measured(
    builder: Any, old: Any, values: Decoded, grid: Sequence[Any], units: Sequence[Any],
    length: int, to: Written, *, apart: bool,
) -> list[Any]:  # fmt: skip
    """Measure eight groups, write what was found, and return what `ENDS` says.

    Args:
        builder: Of the code.
        old: Pointer to vectors of weights.
        values: Returns what the weights of a group are decoded to, in vectors.
        grid: Steps, starts and flags of symmetry of the groups, vectors of `EIGHT`.
        units: Of amax and of the range, what the step of a group's own grid would be.
        length: Weights of a group, 16 or 32.
        to: Where to.
        apart: Whether weights above zero are told apart from those that are zero.
    """
    step, start, flags = grid
    size = size_of(builder, step)
    inverse = builder.fdiv(every(F32, EIGHT, 1.0), size)
    units_of = cgutils.alloca_once_value(builder, inverse)
    builder.store(inverse, units_of)
    found = _eight_groups(builder, old, values, units_of, length, apart=apart)
    sound, beyond, ends = _settled(builder, found.groups, step, start)
    par = _pars(builder, ends[2], ends[3], flags, units, length)
    err2, largest = (widened(builder, each) for each in ends[:2])
    ratio = builder.fdiv(largest, widened(builder, size))
    for place, each in (
        (to.sizes, largest), (to.costs, err2), (to.pars, par), (to.bests, err2), (to.ratios, ratio)
    ):  # fmt: skip
        store(builder, each, place)
    bits = builder.bitcast(sound, I8)
    added = builder.icmp_unsigned("==", bits, ir.Constant(I8, 255))
    plain = builder.icmp_signed(">=", found.counts[1], ir.Constant(I32, 0))
    with builder.if_then(builder.and_(added, plain), likely=True):
        for number, each in enumerate(found.sums):
            total = builder.fadd(load(builder, to.kept, number), widened(builder, each))
            store(builder, total, to.kept, number)
    return [bits, builder.bitcast(beyond, I8), *found.counts]


def fetched(builder: Any, weights: Any, length: int) -> None:
    """Ask for the weights that are measured some groups later."""
    for ahead in range(AHEAD, AHEAD + EIGHT * length * 4, LINE):
        prefetch(builder, weights, ahead)


def _measurer(length: int, *, apart: bool = False) -> Callable[..., Any]:
    """Return what measures eight groups of so many weights, 16 or 32; see `measured`."""

    @_typed_intrinsic
    def measure(
        _typing: Any, ref: Any, at: Any, new: Any, to: Any, steps: Any, starts: Any,
        symmetric: Any, group: Any, middle: Any, ranged: Any, kept: Any, sizes: Any, costs: Any,
        pars: Any, bests: Any, ratios: Any,
    ) -> Any:  # fmt: skip
        """Measure weights `ref[at:]` against `new[to:]`, float32 both, and groups from `group` on.

        What is written is told by `Written`, and what is returned by `ENDS`.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args

            def place(index: int, offset: Any, to: Any) -> Any:
                return _pointer(context, builder, kinds[index], arguments[index], offset, to)

            eight, lanes, doubles = vector(F32, EIGHT), vector(F32, LANES), vector(F64, EIGHT)
            first = arguments[7]
            grid = [
                load(builder, place(4, first, eight)),
                load(builder, place(5, first, eight)),
                load(builder, place(6, first, vector(I8, EIGHT))),
            ]
            fetched(builder, place(0, arguments[1], I8), length)
            now = place(2, arguments[3], lanes)
            each = length // LANES

            def values(number: int) -> list[Any]:
                return [load(builder, now, number * each + at) for at in range(each)]

            row = place(10, ir.Constant(ir.IntType(64), 0), vector(F64, LANES))
            written = Written(row, *(place(index, first, doubles) for index in range(11, 16)))
            ends = measured(
                builder, place(0, arguments[1], lanes), values, grid, arguments[8:10], length,
                written, apart=apart,
            )  # fmt: skip
            return context.make_tuple(builder, signature.return_type, ends)

        arguments = (
            ref, at, new, to, steps, starts, symmetric, group, middle, ranged, kept, sizes, costs,
            pars, bests, ratios,
        )  # fmt: skip
        return ENDS(*arguments), generate

    return measure


measure_16 = _measurer(16)
measure_32 = _measurer(32)
apart_16 = _measurer(16, apart=True)
apart_32 = _measurer(32, apart=True)
