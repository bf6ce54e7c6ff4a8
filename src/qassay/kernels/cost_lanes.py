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
    I64,
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

AHEAD, LINE = 1536, 64
"""Bytes that the source is fetched ahead: processors do not look past the end of a page."""


Operation = Callable[[Any, Any, Any], Any]
FOLDS: tuple[Operation, ...] = (fadd, umax, fmin, fmax)
"""How the squared error, the largest error, the least and the greatest weight are folded."""
Decoded = Callable[[Any, int], Sequence[Any]]
"""Returns the vectors of one group of a pair: which pair, as an LLVM value, and which of the two.
They are asked for in order."""


def _halves(
    builder: Any, operation: Operation, one: Any, two: Any, halves: Sequence[Sequence[int]]
) -> Any:
    return operation(builder, *(shuffled(builder, one, two, half) for half in halves))


_FIRST = (list(range(8)), list(range(8, 16)))
# Lanes of 128 bits are never crossed after the first step: the groups come out as 0 4 1 5 ...
_STEPS = (
    ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]),
    ([0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15]),
    ([0, 2, 8, 10, 4, 6, 12, 14], [1, 3, 9, 11, 5, 7, 13, 15]),
)


def _folded_pair(builder: Any, operation: Operation, groups: Sequence[Any]) -> Any:
    """Return one vector with the first steps of folding two vectors of 16 lanes.

    Halves of two vectors are put side by side before they are folded, so that no lane idles::

        a0 .. a7 | b0 .. b7   ->   a0+a4 .. a3+a7 b0+b4 .. b3+b7   ->   ...   ->   a b c ... h
    """
    one, two = (_halves(builder, operation, each, each, _FIRST) for each in groups)
    return _halves(builder, operation, one, two, _STEPS[0])


def _folded(builder: Any, operation: Operation, pairs: Sequence[Any]) -> Any:
    """Return one vector with what each of eight groups folds to, of four pairs."""
    for step in _STEPS[1:]:
        pairs = [
            _halves(builder, operation, pairs[at], pairs[at + 1], step)
            for at in range(0, len(pairs), 2)
        ]
    return shuffled(builder, pairs[0], pairs[0], [0, 4, 1, 5, 2, 6, 3, 7])


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
        signed = [zero, zero]
        parts: list[list[Any]] = []
        for w, v in zip(old, new, strict=True):
            e = builder.fsub(v, w)
            masks = [builder.fcmp_ordered("<", w, zero)]
            if apart:
                masks.append(builder.fcmp_ordered(">", w, zero))
            else:
                self.zeros = builder.or_(self.zeros, builder.fcmp_ordered("==", w, zero))
            for at, mask in enumerate(masks):
                self.counts[at] = builder.add(self.counts[at], counted(builder, mask))
                more = builder.fadd(signed[at], e) if parts else e
                signed[at] = builder.select(mask, more, signed[at])
            parts.append(
                [
                    builder.fmul(w, w), builder.fmul(w, e), e, w,
                    builder.fmul(e, e), magnitude(builder, e), w, w,
                ]
            )  # fmt: skip
        kinds: list[Operation] = [fadd] * 4 + list(FOLDS)
        found = parts[0]
        for more in parts[1:]:
            found = [kind(builder, a, b) for kind, a, b in zip(kinds, found, more, strict=True)]
        self.sums, self.own = found[:4], found[4:]
        self.sums += signed if apart else [signed[0], found[2]]


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
    """What eight groups come to: sums in lanes; counts; of each quantity one number a group."""

    sums: list[Any]
    counts: list[Any]
    own: list[Any]


class _Kept:
    """A value that stays in a register from one turn of a loop to the next."""

    def __init__(self, builder: Any, value: Any) -> None:
        self._builder = builder
        self._place = cgutils.alloca_once_value(builder, value)
        builder.store(value, self._place)

    def put(self, value: Any) -> None:
        self._builder.store(value, self._place)

    @property
    def value(self) -> Any:
        return self._builder.load(self._place)


def _eight_groups(
    builder: Any, old: Any, values: Decoded, inverse: Any, length: int, *, apart: bool
) -> _Eight:
    """Return the sums over eight groups; `inverse` points to one over each one's step.

    Two groups a turn: of more, most would be stored and loaded again for want of registers.
    """
    zero, none = every(F32, LANES, 0.0), ir.Constant(I32, 0)
    sums = [_Kept(builder, zero) for _ in range(SUMS)]
    counts = [_Kept(builder, none) for _ in range(2)]
    zeros = _Kept(builder, every(ir.IntType(1), LANES, 0))
    pairs = EIGHT // 2
    rooms = [
        cgutils.alloca_once(builder, vector(kind, EIGHT), pairs) for kind in (F32, I32, F32, F32)
    ]
    vectors = length // LANES
    with cgutils.for_range(builder, ir.Constant(I64, pairs)) as loop:
        both = []
        for half in range(2):
            number = builder.add(
                builder.shl(loop.index, ir.Constant(I64, 1)), ir.Constant(I64, half)
            )
            first = builder.gep(old, [builder.mul(number, ir.Constant(I64, vectors))])
            weights = [load(builder, first, at) for at in range(vectors)]
            one = _Group(builder, weights, values(loop.index, half), apart=apart)
            unit = spread_at(builder, inverse, number, LANES)
            own = one.sums[: SUMS - 2] + [builder.fmul(each, unit) for each in one.sums[SUMS - 2 :]]
            for kept, each in zip(sums, own, strict=True):
                kept.put(builder.fadd(kept.value, each))
            for kept, each in zip(counts, one.counts, strict=True):
                kept.put(builder.add(kept.value, each))
            zeros.put(builder.or_(zeros.value, one.zeros))
            both.append(one.own)
        for room, operation, groups in zip(rooms, FOLDS, zip(*both, strict=True), strict=True):
            found = _folded_pair(builder, operation, groups)
            builder.store(found, builder.gep(room, [loop.index]))
    own = [
        _folded(builder, operation, [load(builder, room, at) for at in range(pairs)])
        for room, operation in zip(rooms, FOLDS, strict=True)
    ]
    found = _Eight([each.value for each in sums], [each.value for each in counts], own)
    if not apart:
        found.sums[5] = builder.fsub(found.sums[5], found.sums[4])
        lanes = ir.IntType(LANES)
        some = builder.icmp_unsigned(
            "!=", builder.bitcast(zeros.value, lanes), ir.Constant(lanes, 0)
        )
        above = builder.sub(ir.Constant(I32, EIGHT * length), found.counts[0])
        found.counts[1] = builder.select(some, ir.Constant(I32, -1), above)
    return found


def _settled(
    builder: Any, own: Sequence[Any], step: Any, start: Any
) -> tuple[Any, Any, tuple[Any, ...]]:
    """Return which groups are sound, which are beyond half a step, and numbers of each group.

    The numbers are the squared error, the largest error, the least and the greatest weight.
    """
    err2, bits, low, high = own
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
    sound, beyond, ends = _settled(builder, found.own, step, start)
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


def fetched(builder: Any, from_: Any, nbytes: int) -> None:
    """Ask for the bytes that are measured some groups later."""
    for ahead in range(AHEAD, AHEAD + nbytes, LINE):
        prefetch(builder, from_, ahead)


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
            fetched(builder, place(0, arguments[1], I8), EIGHT * length * 4)
            now = place(2, arguments[3], lanes)
            each = length // LANES

            def values(pair: Any, half: int) -> list[Any]:
                first = builder.gep(now, [builder.mul(pair, ir.Constant(I64, 2 * each))])
                return [load(builder, first, half * each + at) for at in range(each)]

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
