"""The measures of one row of Q4_K, with Numba: blocks are decoded and measured in registers."""

from __future__ import annotations

from qassay.kernels.cost import Of
from qassay.kernels.cost_lanes import EIGHT
from qassay.kernels.cost_q4_k import (
    apart_q4_k,
    decode_q4_k,
    error_at_q4_k,
    measure_q4_k,
    outside_q4_k,
    scales_q4_k,
)
from qassay.kernels.cost_rows import (
    LONG,
    ZERO,
    closer,
    counted,
    finish,
    long_eight,
    mark_of,
    most_at,
)
from qassay.kernels.jit import borrowing

_LARGEST, _STEPS, _CLIPPED = int(Of.LARGEST), int(Of.STEPS), int(Of.CLIPPED)
_LENGTH, _BLOCK, _BYTES, _LEVELS = 32, 256, 144, 16


@borrowing
def _second_look(
    ref, raw, at, factor, steps, starts, symmetric, table, gaps, now, marks, kept, room, out
):  # fmt: skip
    """Settle what the first look left: weights beyond their codes, mostly; see `cost_rows`."""
    costs, pars, bests, sizes, ratios = room
    for block in range(ref.size // _BLOCK):
        mark = marks[block]
        if not mark:
            continue
        group, place = block * EIGHT, at + block * _BYTES
        if mark & LONG:
            decode_q4_k(raw, place, factor, group, steps, starts, now, 0)
            long_eight(
                ref, now, 0, _LENGTH, group, steps, starts, symmetric, _LEVELS, table, gaps, room,
                out,
            )  # fmt: skip
            continue
        if mark & ZERO:
            _, _, below, above = apart_q4_k(
                raw, place, ref, block * _BLOCK, steps, starts, group, 1 / 7, 1 / 15, kept, sizes,
                costs, pars, bests, ratios,
            )  # fmt: skip
            counted(_BLOCK, below, above, out)
        left = 0
        for number in range(EIGHT):
            if mark >> number & 1:
                here = group + number
                clipped = outside_q4_k(raw, place, ref, here * _LENGTH, steps, starts, here, number)
                if clipped < 0:
                    left |= 1 << number
                else:
                    out[_CLIPPED] += clipped
        if left:
            decode_q4_k(raw, place, factor, group, steps, starts, now, 0)
            closer(ref, now, 0, _LENGTH, group, left, steps, starts, _LEVELS, bests, out)


@borrowing
def measure_row_q4_k(ref, raw, at, factor, steps, starts, symmetric, table, gaps, work, out):
    """Measure one row `[K]` against its Q4_K blocks at `raw[at:]`, decoded on the way.

    `work` holds room for a decoded block, marks of blocks, sums in lanes; and of each group its
    cost, par, best, largest error, and that in steps.
    """
    now, marks, kept, room = work
    costs, pars, bests, sizes, ratios = room
    for lane in range(kept.size):
        kept[lane] = 0
    for block in range(ref.size // _BLOCK):
        scales_q4_k(raw, at + block * _BYTES, factor, block * EIGHT, steps, starts)
    blocks = negative = positive = 0
    for block in range(ref.size // _BLOCK):
        sound, beyond, below, above = measure_q4_k(
            raw, at + block * _BYTES, ref, block * _BLOCK, steps, starts, block * EIGHT, 1 / 7,
            1 / 15, kept, sizes, costs, pars, bests, ratios,
        )  # fmt: skip
        mark = mark_of(sound, beyond, above)
        marks[block] = mark
        if mark < ZERO:
            blocks += 1
            negative += below
            positive += above
    counted(blocks * _BLOCK, negative, positive, out)
    _second_look(
        ref, raw, at, factor, steps, starts, symmetric, table, gaps, now, marks, kept, room, out
    )
    for column, values in ((_LARGEST, sizes), (_STEPS, ratios)):
        most, group = most_at(values, values.size, out[column])
        if group >= 0:
            block = group // EIGHT
            of = group * _LENGTH
            out[column] = most
            out[column + 1] = of + error_at_q4_k(
                raw, at + block * _BYTES, ref, of, steps, starts, group, group % EIGHT,
                sizes[group],
            )  # fmt: skip
    finish(kept, room, _LENGTH, out)
