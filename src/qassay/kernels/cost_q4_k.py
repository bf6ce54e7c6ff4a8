"""Blocks of Q4_K decoded to float32 in vectors, for the measures of what quantizing cost."""

from __future__ import annotations

from typing import Any

from numba import types

from qassay.kernels.cost_lanes import EIGHT, LANES
from qassay.kernels.cost_vectors import (
    F32,
    I8,
    I16,
    I32,
    every,
    load,
    shuffled,
    spread,
    spread_lane,
    store,
    vector,
)
from qassay.kernels.loads import _pointer, _typed_intrinsic


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


@_typed_intrinsic
def decode_q4_k(
    _typing: Any, raw: Any, at: Any, factor: Any, group: Any, steps: Any, taken: Any, values: Any,
    to: Any,
) -> Any:  # fmt: skip
    """Decode a Q4_K block to `values`, float32, from `to` on.

    `steps` and `taken` get each group's step and what is added to its products, from `group` on.
    Bytes 4 to 15 of a block hold 6-bit scales and minimums (ggml-quants.c, get_scale_min_k4)::

        0..3    d and dmin, f16
        4..7    scale 0..3, and the high 2 bits of scale 4..7
        8..11   minimum 0..3, and the high 2 bits of minimum 4..7
        12..15  low 4 bits of scale 4..7, and of minimum 4..7 above them
        16..143 codes: 32 bytes hold group 2 i below and group 2 i + 1 above
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        raw, at, factor, group, steps, taken, values, to = arguments
        kinds = signature.args
        four, eight = vector(I8, 4), vector(F32, EIGHT)
        block = _pointer(context, builder, kinds[0], raw, at, four)

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
            integers.append(builder.sitofp(wide, eight))
        step = builder.fmul(scale, integers[0])
        step = builder.fmul(step, spread(builder, factor, EIGHT))
        plus = builder.fneg(builder.fmul(dmin, integers[1]))
        store(builder, step, _pointer(context, builder, kinds[4], steps, group, eight))
        store(builder, plus, _pointer(context, builder, kinds[5], taken, group, eight))
        lanes, bytes_ = vector(F32, LANES), vector(I8, LANES)
        codes = _pointer(context, builder, kinds[0], raw, at, bytes_)
        target = _pointer(context, builder, kinds[6], values, to, lanes)
        for chunk in range(EIGHT):
            packed = load(builder, codes, 1 + chunk)
            halves = (
                builder.and_(packed, every(I8, LANES, 15)),
                builder.lshr(packed, every(I8, LANES, 4)),
            )
            for half, nibbles in enumerate(halves):
                number = chunk // 2 * 2 + half
                wide = builder.sitofp(builder.zext(nibbles, vector(I32, LANES)), lanes)
                product = builder.fmul(wide, spread_lane(builder, step, number, LANES))
                value = builder.fadd(product, spread_lane(builder, plus, number, LANES))
                store(builder, value, target, number * 2 + chunk % 2)
        return context.get_dummy_value()

    arguments = (raw, at, factor, group, steps, taken, values, to)
    return types.void(*arguments), generate
