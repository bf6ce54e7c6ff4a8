"""The measures of one row of Q4_K, with Numba: blocks are decoded and measured in registers."""

from __future__ import annotations

import numpy as np

from qassay.kernels.cost import Of
from qassay.kernels.cost_groups import place_of
from qassay.kernels.cost_lanes import EIGHT
from qassay.kernels.cost_q4_k import apart_q4_k, decode_q4_k, measure_q4_k, outside_q4_k
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
def _beyond(ref, raw, place, block, mark, steps, starts, now, bests, factor, out):
    """Look at groups with an error beyond half a step: most hold weights beyond their codes."""
    decoded = False
    for number in range(EIGHT):
        if not mark >> number & 1:
            continue
        group = block * EIGHT + number
        clipped = outside_q4_k(raw, place, ref, group * _LENGTH, steps, starts, group, number)
        if clipped >= 0:
            out[_CLIPPED] += clipped
            continue
        if not decoded:
            decode_q4_k(raw, place, factor, block * EIGHT, steps, starts, now, 0)
            decoded = True
        closer(ref, now, 0, _LENGTH, block * EIGHT, 1 << number, steps, starts, _LEVELS, bests, out)


@borrowing
def _second_look(
    ref, raw, at, factor, steps, starts, symmetric, table, gaps, now, marks, kept, room, out
):  # fmt: skip
    """Settle what the first look left; see `cost_rows`."""
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
                raw, place, factor, ref, block * _BLOCK, steps, starts, group, 1 / 7, 1 / 15, kept,
                sizes, costs, pars, bests, ratios,
            )  # fmt: skip
            counted(_BLOCK, below, above, out)
        if mark & 255:
            _beyond(ref, raw, place, block, mark, steps, starts, now, bests, factor, out)


@borrowing
def measure_row_q4_k(ref, raw, at, factor, steps, starts, symmetric, table, gaps, work, out):
    """Measure one row `[K]` against its Q4_K blocks at `raw[at:]`, decoded on the way."""
    away, _, _, marks, kept, room = work
    costs, pars, bests, sizes, ratios = room
    now = away.reshape(away.size)[:_BLOCK]
    kept[:] = 0
    blocks = negative = positive = 0
    for block in range(ref.size // _BLOCK):
        sound, beyond, below, above = measure_q4_k(
            raw, at + block * _BYTES, factor, ref, block * _BLOCK, steps, starts, block * EIGHT,
            1 / 7, 1 / 15, kept, sizes, costs, pars, bests, ratios,
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
            decode_q4_k(raw, at + block * _BYTES, factor, block * EIGHT, steps, starts, now, 0)
            first, of = group % EIGHT * _LENGTH, group * _LENGTH
            out[column] = most
            out[column + 1] = of + place_of(
                ref[of : of + _LENGTH], now[first : first + _LENGTH], np.float64(sizes[group])
            )
    finish(kept, room, _LENGTH, out)
