"""The search for the scale of sub-scales in Numba, a super-block a lane (`make_qp_quants`)."""

from __future__ import annotations

from qassay.kernels.quantize_fast_lanes import (
    ONE,
    any_lane,
    load,
    load_bytes,
    nearest,
    number,
    select,
    splat,
    store_bytes,
    whole,
    zeros,
)
from qassay.kernels.quantize_fast_vectors import inner
from qassay.kernels.quantize_reference_parts import TINY

_SWEEPS = 5


@inner
def _below(code, top):
    return select(code < top, code, top)


@inner
def _square_error(x, w, n, inverse, top):
    scale = splat(ONE) / inverse
    total = zeros()
    for i in range(n):
        v = load(x, i)
        difference = v - scale * number(_below(nearest(inverse * v), top))
        total = total + load(w, i) * difference * difference
    return total


@inner
def _first_error(x, w, n, inverse):
    """Return the error of the first candidate, whose codes are narrowed and not clamped."""
    scale = splat(ONE) / inverse
    total = zeros()
    for i in range(n):
        v = load(x, i)
        difference = v - scale * number(nearest(inverse * v) & whole(255))
        total = total + load(w, i) * difference * difference
    return total


@inner
def positive(x, w, n, numerators, codes):
    """Search as `positive` of the reference; write codes, return the scale."""
    top = whole(numerators[0])
    most = zeros()
    for i in range(n):
        v = load(x, i)
        most = select(most > v, most, v)
    inverse = splat(numerators[0]) / most
    best = _first_error(x, w, n, inverse)
    for candidate in range(1, numerators.size):
        this = splat(numerators[candidate]) / most
        error = _square_error(x, w, n, this, top)
        wins = error < best
        best = select(wins, error, best)
        inverse = select(wins, this, inverse)
    sum_lx, sum_l2 = zeros(), zeros()
    for i in range(n):
        v, weight = load(x, i), load(w, i)
        code = _below(nearest(inverse * v), top)
        store_bytes(codes, i, code)
        sum_lx = sum_lx + weight * v * number(code)
        sum_l2 = sum_l2 + weight * number(code) * number(code)
    for _ in range(_SWEEPS):
        changed = whole(0)
        for i in range(n):
            v, weight = load(x, i), load(w, i)
            old = load_bytes(codes, i)
            lx = sum_lx - weight * v * number(old)
            l2 = sum_l2 - weight * number(old) * number(old)
            new = _below(nearest(v * l2 / lx), top)
            wins = (lx > zeros()) & (l2 > zeros()) & (new != old)
            lx = lx + weight * v * number(new)
            l2 = l2 + weight * number(new) * number(new)
            wins = wins & (lx * lx * sum_l2 > sum_lx * sum_lx * l2)
            store_bytes(codes, i, select(wins, new, old))
            sum_lx = select(wins, lx, sum_lx)
            sum_l2 = select(wins, l2, sum_l2)
            changed = changed | select(wins, whole(1), whole(0))
        if not any_lane(changed != whole(0)):
            break
    zero = most < splat(TINY)
    for i in range(n):
        code = load_bytes(codes, i)
        store_bytes(codes, i, select(zero, whole(0), code))
    scale = select(sum_l2 > zeros(), sum_lx / sum_l2, zeros())
    return select(zero, zeros(), scale)
