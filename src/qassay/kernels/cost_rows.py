"""The measures of one row, with Numba: eight groups at a time where that can be done.

Groups of 16 and 32 weights with uniform codes go through the vectors of `cost_lanes`. Those of
eight that have an error beyond half a step are set against their grid besides: for all others e*
is e. Where a group of eight has no grid, or numbers that float32 cannot square, all eight go weight
by weight, as `cost_groups` has it; and so do groups of other lengths, codes with a table, and what
is left of a row after its eights.
"""

from __future__ import annotations

import numpy as np

from qassay.kernels.cost import Of
from qassay.kernels.cost_closer import look_closer
from qassay.kernels.cost_folds import index_of, most_of, shares_of, sum_of
from qassay.kernels.cost_groups import ends_of, long_way, one_group, par_of, place_of, sums_of
from qassay.kernels.cost_lanes import (
    EIGHT,
    LANES,
    SUMS,
    apart_16,
    apart_32,
    measure_16,
    measure_32,
)
from qassay.kernels.jit import borrowing, helper

_COMPARED, _ERR2, _REF2, _CROSS = int(Of.COMPARED), int(Of.ERR2), int(Of.REF2), int(Of.CROSS)
_ERR, _REF, _BEST2, _PAR2 = int(Of.ERR), int(Of.REF), int(Of.BEST2), int(Of.PAR2)
_NEG, _POS, _LARGEST, _STEPS = int(Of.NEGATIVE), int(Of.POSITIVE), int(Of.LARGEST), int(Of.STEPS)
_CLIPPED, _GROUP, _ASTRAY = int(Of.CLIPPED), int(Of.GROUP), int(Of.ASTRAY)

ZERO, LONG = 256, 512
"""Marks of eight groups of which nothing is added at first: a weight is zero, or sums would not do.
The bits below tell of groups with an error beyond half a step."""


@borrowing
def _eight_long(
    old, now, first, length, group, steps, starts, symmetric, levels, table, gaps, costs, pars,
    bests, out,
):  # fmt: skip
    """Measure eight groups weight by weight."""
    for number in range(group, group + EIGHT):
        at, end = number * length, (number + 1) * length
        here = first + at - group * length
        costs[number], low, high = long_way(
            old[at:end],
            now[here : here + length],
            at,
            steps[number],
            starts[number],
            levels,
            table,
            gaps,
            out,
        )
        bests[number] = 0
        unit = 1 / max(1, levels // 2 - 1) if symmetric[number] != 0 else -1 / (levels - 1)
        pars[number] = length * par_of(low, high, unit)


@borrowing
def closer(old, now, first, length, group, beyond, steps, starts, levels, bests, out):
    """Set those of eight groups against their grid that have an error beyond half a step."""
    for each in range(EIGHT):
        if beyond >> each & 1:
            number = group + each
            at = number * length
            best, under, over, astray, clipped = look_closer(
                old, at, now, first + each * length, length // EIGHT, np.float64(steps[number]),
                np.float64(starts[number]), np.float64(levels),
            )  # fmt: skip
            bests[number] = best
            out[_NEG + 2] += under
            out[_POS + 2] += over
            out[_ASTRAY] += astray
            out[_CLIPPED] += clipped


@borrowing
def most_at(values, done, most):
    """Return the largest of the first values and its place; -1 where none is above `most`."""
    eights = done // EIGHT
    group = -1
    found = most_of(values, eights)
    if found > most:
        most, group = found, index_of(values, eights, found)
    for number in range(eights * EIGHT, done):
        if values[number] > most:
            most, group = values[number], number
    return most, group


@borrowing
def _furthest(old, now, length, done, sizes, ratios, out):
    """Note the largest error of the first groups of a row, and the largest in steps."""
    for column, values in ((_LARGEST, sizes), (_STEPS, ratios)):
        most, group = most_at(values, done, out[column])
        if group >= 0:
            at, end = group * length, (group + 1) * length
            out[column] = most
            out[column + 1] = at + place_of(old[at:end], now[at:end], np.float64(sizes[group]))


@borrowing
def long_eight(
    old, now, first, length, group, steps, starts, symmetric, levels, table, gaps, room, out
):  # fmt: skip
    """Measure eight groups weight by weight; `now[first:]` is what they are decoded to."""
    costs, pars, bests, sizes, ratios = room
    _eight_long(
        old, now, first, length, group, steps, starts, symmetric, levels, table, gaps, costs, pars,
        bests, out,
    )  # fmt: skip
    sizes[group : group + EIGHT] = 0
    ratios[group : group + EIGHT] = 0


@borrowing
def counted(weights, below, above, out):
    """Add counts of weights."""
    out[_COMPARED] += weights
    out[_NEG] += below
    out[_POS] += above


@borrowing
def _measure(old, now, length, group, steps, starts, symmetric, levels, apart, kept, room):
    """Measure eight groups of 16 or 32 weights; see `cost_lanes`."""
    costs, pars, bests, sizes, ratios = room
    middle, ranged = 1 / max(1, levels // 2 - 1), 1 / (levels - 1)
    at = group * length
    if length == 32:
        if apart:
            return apart_32(
                old, at, now, at, steps, starts, symmetric, group, middle, ranged, kept, sizes,
                costs, pars, bests, ratios,
            )  # fmt: skip
        return measure_32(
            old, at, now, at, steps, starts, symmetric, group, middle, ranged, kept, sizes, costs,
            pars, bests, ratios,
        )  # fmt: skip
    if apart:
        return apart_16(
            old, at, now, at, steps, starts, symmetric, group, middle, ranged, kept, sizes, costs,
            pars, bests, ratios,
        )  # fmt: skip
    return measure_16(
        old, at, now, at, steps, starts, symmetric, group, middle, ranged, kept, sizes, costs,
        pars, bests, ratios,
    )  # fmt: skip


@borrowing
def _second_look(
    old, now, length, steps, starts, symmetric, levels, table, gaps, marks, kept, room, out
):  # fmt: skip
    """Settle what the first look left: errors beyond half a step, `ZERO` and `LONG`."""
    for eight in range(room[0].size // EIGHT):
        mark = marks[eight]
        if not mark:
            continue
        group = eight * EIGHT
        at = group * length
        if mark & LONG:
            long_eight(
                old, now, at, length, group, steps, starts, symmetric, levels, table, gaps, room,
                out,
            )  # fmt: skip
            continue
        if mark & ZERO:
            _, _, below, above = _measure(
                old, now, length, group, steps, starts, symmetric, levels, True, kept, room
            )
            counted(EIGHT * length, below, above, out)
        if mark & 255:
            closer(old, now, at, length, group, mark & 255, steps, starts, levels, room[2], out)


@borrowing
def mark_of(sound, beyond, above):
    """Return what a second look is for."""
    if sound != 255:
        return LONG
    return ZERO | beyond if above < 0 else np.int64(beyond)


@borrowing
def _eights(
    old, now, length, steps, starts, symmetric, levels, table, gaps, marks, kept, room, out
):  # fmt: skip
    """Measure groups of 16 or 32 weights with uniform codes, eight at a time."""
    done = room[0].size - room[0].size % EIGHT
    eights = negative = positive = 0
    for group in range(0, done, EIGHT):
        sound, beyond, below, above = _measure(
            old, now, length, group, steps, starts, symmetric, levels, False, kept, room
        )
        mark = mark_of(sound, beyond, above)
        marks[group // EIGHT] = mark
        if mark < ZERO:
            eights += 1
            negative += below
            positive += above
    counted(eights * EIGHT * length, negative, positive, out)
    _second_look(
        old, now, length, steps, starts, symmetric, levels, table, gaps, marks, kept, room, out
    )
    _furthest(old, now, length, done, room[3], room[4], out)


@borrowing
def measure_row(ref, bits, new, steps, starts, symmetric, levels, table, gaps, work, out):
    """Measure one row, `ref` and `new` as `[groups, weights]`."""
    groups, length = ref.shape
    away, parts, ends, marks, kept, room = work
    away_bits, end_bits = away.view(np.int32), ends.view(np.int32)
    kept[:] = 0
    done = 0
    if table.size == 0:
        # A length that the compiler knows makes loops without a remainder.
        if length == 32 or length == 16:  # noqa: PLR1714 - for Numba
            done = groups - groups % EIGHT
            _eights(
                ref.reshape(ref.size), new.reshape(new.size), length, steps, starts, symmetric,
                levels, table, gaps, marks, kept, room, out,
            )  # fmt: skip
        if done < groups:
            sums_of(ref[done:], new[done:], length, away[done:], parts[done:])
            ends_of(bits[done:], away_bits[done:], length, end_bits[done:])
    for group in range(done, groups):
        one_group(
            group, ref[group], new[group], steps[group], starts[group], symmetric[group], levels,
            table, gaps, parts[group], ends[group], room, out,
        )  # fmt: skip
    finish(kept, room, length, out)


@borrowing
def finish(lanes, room, length, out):
    """Put the sums of all lanes and groups into their row, and find the worst group."""
    costs, pars, bests, _, _ = room
    ref2 = cross = err = ref = below = above = 0.0
    for lane in range(LANES):
        ref2 += lanes[lane]
        cross += lanes[LANES + lane]
        err += lanes[2 * LANES + lane]
        ref += lanes[3 * LANES + lane]
        below += lanes[4 * LANES + lane]
        above += lanes[5 * LANES + lane]
    out[_REF2] += ref2
    out[_CROSS] += cross
    out[_ERR] += err
    out[_REF] += ref
    out[_NEG + 1] += below
    out[_POS + 1] += above
    eights = costs.size // EIGHT
    cost, par, best = sum_of(costs, eights), sum_of(pars, eights), sum_of(bests, eights)
    for group in range(eights * EIGHT, costs.size):
        cost += costs[group]
        par += pars[group]
        best += bests[group]
    out[_ERR2] = cost
    out[_PAR2] = par
    out[_BEST2] += best
    usual = par / costs.size
    shares_of(costs, pars, usual, eights)
    for group in range(eights * EIGHT, costs.size):
        costs[group] /= max(pars[group], usual)
    most, group = most_at(costs, costs.size, out[_GROUP])
    if group >= 0:
        out[_GROUP] = most
        out[_GROUP + 1] = group * length


@helper
def work_for(groups, length):
    """Return what a row works in.

    Errors, sums and ends of groups, marks of eights, sums in lanes; and of each group its cost,
    par, best, largest error, and that in steps.
    """
    room = (
        np.zeros(groups), np.zeros(groups), np.zeros(groups), np.zeros(groups), np.zeros(groups)
    )  # fmt: skip
    return (
        np.empty((groups, length), np.float32),
        np.empty((groups, 9), np.float32),
        np.empty((groups, 3), np.float32),
        np.zeros(groups // EIGHT + 1, np.uint16),
        np.zeros(SUMS * LANES),
        room,
    )
