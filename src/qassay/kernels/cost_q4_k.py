"""Blocks of Q4_K: decoded to float32 in vectors, and measured while they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import types

from qassay.kernels.cost_lanes import EIGHT, ENDS, LANES, Decoded, Written, fetched, measured
from qassay.kernels.cost_vectors import (
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    call,
    counted,
    every,
    load,
    shuffled,
    size_of,
    spread,
    spread_at,
    spread_lane,
    store,
    vector,
)
from qassay.kernels.loads import _pointer, _typed_intrinsic

BIT = ir.IntType(1)


def _of_halves(builder: Any, halves: Any) -> Any:
    """Return f16 numbers as float32, without what not every processor has for it.

    Exponent and fraction move to their places in float32, and a product by 2^112 makes up for the
    other bias, subnormal numbers included; the largest exponent is that of inf and NaN.
    """
    count = halves.type.count
    bits = builder.zext(halves, vector(I32, count))
    size = builder.shl(builder.and_(bits, every(I32, count, 0x7FFF)), every(I32, count, 13))
    small = builder.bitcast(size, vector(F32, count))
    scaled = builder.fmul(small, every(F32, count, 2.0**112))
    found = builder.bitcast(scaled, vector(I32, count))
    odd = builder.icmp_unsigned(">=", size, every(I32, count, 0x7C00 << 13))
    found = builder.select(odd, builder.or_(size, every(I32, count, 0x7F800000)), found)
    sign = builder.shl(builder.and_(bits, every(I32, count, 0x8000)), every(I32, count, 16))
    return builder.bitcast(builder.or_(found, sign), vector(F32, count))


def _scales(builder: Any, block: Any, factor: Any) -> tuple[Any, Any]:
    """Return step and what is added of each group of a block, float32 vectors of `EIGHT`.

    Bytes 4 to 15 of a block hold 6-bit scales and minimums (ggml-quants.c, get_scale_min_k4)::

        0..3    d and dmin, f16
        4..7    scale 0..3, and the high 2 bits of scale 4..7
        8..11   minimum 0..3, and the high 2 bits of minimum 4..7
        12..15  low 4 bits of scale 4..7, and of minimum 4..7 above them
        16..143 codes: 32 bytes hold group 2 i below and group 2 i + 1 above
    """

    def masked(vector: Any, mask: int, up: int = 0, down: int = 0) -> Any:
        if down:
            vector = builder.lshr(vector, every(I8, 4, down))
        vector = builder.and_(vector, every(I8, 4, mask))
        return builder.shl(vector, every(I8, 4, up)) if up else vector

    stored = builder.load(builder.bitcast(block, vector(I16, 2).as_pointer()), align=1)
    floats = _of_halves(builder, stored)
    scale, dmin = (spread_lane(builder, floats, lane, EIGHT) for lane in (0, 1))
    one, two, both = (load(builder, block, index) for index in (1, 2, 3))
    integers = []
    for first, rest in ((one, masked(both, 15)), (two, masked(both, 15, down=4))):
        upper = builder.or_(rest, masked(first, 3, up=4, down=6))
        joined = shuffled(builder, masked(first, 63), upper, range(EIGHT))
        wide = builder.zext(joined, vector(I32, EIGHT))
        integers.append(builder.sitofp(wide, vector(F32, EIGHT)))
    step = builder.fmul(scale, integers[0])
    step = builder.fmul(step, spread(builder, factor, EIGHT))
    return step, builder.fneg(builder.fmul(dmin, integers[1]))


def _values(builder: Any, codes: Any, steps: Any, starts: Any) -> Decoded:
    """Return what decodes a group of a block to two vectors of `LANES`.

    `codes` points to vectors of bytes, from the start of the block on; `steps` and `starts` to the
    numbers of its groups. Groups are decoded in order: two share their bytes.
    """
    lanes = vector(F32, LANES)
    wide: list[Any] = []

    def decoded(pair: Any, half: int) -> list[Any]:
        twice = builder.shl(pair, ir.Constant(I64, 1))
        if half == 0:
            first = builder.gep(codes, [twice])
            bytes_ = [load(builder, first, 1 + at) for at in range(2)]
            wide[:] = [builder.zext(each, vector(I32, LANES)) for each in bytes_]
        number = builder.add(twice, ir.Constant(I64, half))
        scale, added = (spread_at(builder, each, number, LANES) for each in (steps, starts))
        found = []
        for each in wide:
            nibbles = (
                builder.lshr(each, every(I32, LANES, 4))
                if half
                else builder.and_(each, every(I32, LANES, 15))
            )
            product = builder.fmul(builder.sitofp(nibbles, lanes), scale)
            found.append(builder.fadd(product, added))
        return found

    return decoded


@_typed_intrinsic
def decode_q4_k(
    _typing: Any, raw: Any, at: Any, factor: Any, group: Any, steps: Any, taken: Any, values: Any,
    to: Any,
) -> Any:  # fmt: skip
    """Decode a Q4_K block to `values`, float32, from `to` on.

    `steps` and `taken` get each group's step and what is added to its products, from `group` on.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        raw, at, factor, group, steps, taken, values, to = arguments
        kinds = signature.args
        eight, lanes = vector(F32, EIGHT), vector(F32, LANES)
        block = _pointer(context, builder, kinds[0], raw, at, vector(I8, 4))
        places = [
            _pointer(context, builder, kinds[4], steps, group, eight),
            _pointer(context, builder, kinds[5], taken, group, eight),
        ]
        for each, to_ in zip(_scales(builder, block, factor), places, strict=True):
            store(builder, each, to_)
        codes = _pointer(context, builder, kinds[0], raw, at, vector(I8, LANES))
        target = _pointer(context, builder, kinds[6], values, to, lanes)
        decoded = _values(builder, codes, *places)
        for number in range(EIGHT):
            for half, each in enumerate(decoded(ir.Constant(I64, number // 2), number % 2)):
                store(builder, each, target, number * 2 + half)
        return context.get_dummy_value()

    arguments = (raw, at, factor, group, steps, taken, values, to)
    return types.void(*arguments), generate


@_typed_intrinsic
def scales_q4_k(
    _typing: Any, raw: Any, at: Any, factor: Any, group: Any, steps: Any, starts: Any
) -> Any:
    """Write step and start of the eight groups of the block at `raw[at:]`, from `group` on.

    A row's are decoded before its weights: what waits for them would wait in every block.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        raw, at, factor, group, steps, starts = arguments
        kinds = signature.args
        fetched(builder, _pointer(context, builder, kinds[0], raw, at, I8), 144)
        block = _pointer(context, builder, kinds[0], raw, at, vector(I8, 4))
        for each, kind, array in zip(
            _scales(builder, block, factor), kinds[4:], (steps, starts), strict=True
        ):
            store(builder, each, _pointer(context, builder, kind, array, group, vector(F32, EIGHT)))
        return context.get_dummy_value()

    arguments = (raw, at, factor, group, steps, starts)
    return types.void(*arguments), generate


def _measurer(*, apart: bool) -> Callable[..., Any]:
    """Return what measures a block; see `cost_lanes.measured`."""

    @_typed_intrinsic
    def measure(
        _typing: Any, raw: Any, place: Any, ref: Any, at: Any, steps: Any, starts: Any,
        group: Any, middle: Any, ranged: Any, kept: Any, sizes: Any, costs: Any, pars: Any,
        bests: Any, ratios: Any,
    ) -> Any:  # fmt: skip
        """Measure weights `ref[at:]` against the block at `raw[place:]`, decoded in registers.

        `steps` and `starts` hold those of its eight groups, from `group` on; the rest is as for
        `cost_lanes.measure_32`.
        """

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kinds = signature.args

            def place(index: int, offset: Any, to: Any) -> Any:
                return _pointer(context, builder, kinds[index], arguments[index], offset, to)

            eight, lanes, doubles = vector(F32, EIGHT), vector(F32, LANES), vector(F64, EIGHT)
            first = arguments[6]
            places = [place(4, first, eight), place(5, first, eight)]
            step, plus = (load(builder, each) for each in places)
            fetched(builder, place(2, arguments[3], I8), 1024)
            values = _values(builder, place(0, arguments[1], vector(I8, LANES)), *places)
            row = place(9, ir.Constant(ir.IntType(64), 0), vector(F64, LANES))
            written = Written(row, *(place(index, first, doubles) for index in range(10, 15)))
            ends = measured(
                builder, place(2, arguments[3], lanes), values, (step, plus, every(I8, EIGHT, 0)),
                arguments[7:9], 32, written, apart=apart,
            )  # fmt: skip
            return context.make_tuple(builder, signature.return_type, ends)

        arguments = (
            raw, place, ref, at, steps, starts, group, middle, ranged, kept, sizes, costs, pars,
            bests, ratios,
        )  # fmt: skip
        return ENDS(*arguments), generate

    return measure


measure_q4_k = _measurer(apart=False)
apart_q4_k = _measurer(apart=True)


def _group_of(
    context: Any, builder: Any, signature: Any, arguments: Any
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield codes, step and errors of each half of one group, in lanes."""
    raw, place, ref, at, steps, starts, group, number = arguments[:8]
    kinds = signature.args
    lanes = vector(F32, LANES)
    codes = _pointer(context, builder, kinds[0], raw, place, vector(I8, LANES))
    old = _pointer(context, builder, kinds[2], ref, at, lanes)
    step, plus = (
        builder.load(_pointer(context, builder, kind, array, group, F32), align=4)
        for kind, array in ((kinds[4], steps), (kinds[5], starts))
    )
    number = builder.trunc(number, I32)
    pair = builder.and_(number, ir.Constant(I32, ~1))
    half = builder.and_(number, ir.Constant(I32, 1))
    shift = spread(builder, builder.shl(half, ir.Constant(I32, 2)), LANES)
    wide, added = spread(builder, step, LANES), spread(builder, plus, LANES)
    for index in range(2):
        from_ = builder.add(pair, ir.Constant(I32, 1 + index))
        packed = builder.load(builder.gep(codes, [from_]), align=1)
        code = builder.lshr(builder.zext(packed, vector(I32, LANES)), shift)
        code = builder.and_(code, every(I32, LANES, 15))
        value = builder.fadd(builder.fmul(builder.sitofp(code, lanes), wide), added)
        yield code, wide, builder.fsub(value, load(builder, old, index))


@_typed_intrinsic
def outside_q4_k(
    _typing: Any, raw: Any, place: Any, ref: Any, at: Any, steps: Any, starts: Any, group: Any,
    number: Any,
) -> Any:  # fmt: skip
    """Tell whether all weights that a group is more than half a step off lie beyond its codes.

    Args are the block at `raw[place:]`, the group's weights at `ref[at:]`, its step and start at
    `group`, and which of the block's eight it is.

    Returns:
        How many weights lie more than a step beyond the last code; -1 where a nearer code exists.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        zero = every(F32, LANES, 0.0)
        near, count = every(BIT, LANES, 0), ir.Constant(I32, 0)
        for code, step, error in _group_of(context, builder, signature, arguments):
            size, far = size_of(builder, step), size_of(builder, error)
            half = builder.fmul(size, every(F32, LANES, 0.5))
            down = builder.fcmp_ordered("<", step, zero)
            toward = builder.select(down, builder.fneg(error), error)
            ends = [
                builder.and_(
                    builder.icmp_unsigned("==", code, every(I32, LANES, end)),
                    builder.fcmp_ordered(sign, toward, zero),
                )
                for end, sign in ((0, ">"), (15, "<"))
            ]
            beyond = builder.or_(*ends)
            wrong = builder.and_(builder.fcmp_ordered(">", far, half), builder.not_(beyond))
            near = builder.or_(near, wrong)
            out = builder.and_(beyond, builder.fcmp_ordered(">", far, size))
            count = builder.add(count, counted(builder, out))
        word = ir.IntType(LANES)
        some = builder.icmp_unsigned("!=", builder.bitcast(near, word), ir.Constant(word, 0))
        return builder.select(some, ir.Constant(I32, -1), count)

    arguments = (raw, place, ref, at, steps, starts, group, number)
    return types.int32(*arguments), generate


@_typed_intrinsic
def error_at_q4_k(
    _typing: Any, raw: Any, place: Any, ref: Any, at: Any, steps: Any, starts: Any, group: Any,
    number: Any, largest: Any,
) -> Any:  # fmt: skip
    """Return where in a group the error of that size is; args are as for `outside_q4_k`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        size = spread(builder, builder.fptrunc(arguments[8], F32), LANES)
        found = ir.Constant(I32, 0)
        for half, (_, _, error) in enumerate(_group_of(context, builder, signature, arguments)):
            same = builder.fcmp_ordered("==", size_of(builder, error), size)
            bits = builder.zext(builder.bitcast(same, ir.IntType(LANES)), I32)
            found = builder.or_(found, builder.shl(bits, ir.Constant(I32, LANES * half)))
        at = call(builder, "llvm.cttz.i32", I32, found, ir.Constant(BIT, 0))
        return builder.and_(at, ir.Constant(I32, 31))

    arguments = (raw, place, ref, at, steps, starts, group, number, largest)
    return types.int32(*arguments), generate
