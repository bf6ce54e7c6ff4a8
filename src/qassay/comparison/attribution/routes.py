"""Faults with a free parameter: it is computed from the outputs, then tested like any other.

Every route returns edits to be verified; none is believed. An edit that was fitted has `free`
bits: that many of the outputs' bits are used up and prove nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.edits import Edit
from qassay.comparison.attribution.inputs import Inputs, spread_over
from qassay.comparison.attribution.library import WHOLE, rounded_scales
from qassay.comparison.attribution.orders import deal, inverse
from qassay.comparison.attribution.predict import weight_rms
from qassay.comparison.attribution.setup import Floats, Index, Setup, quick_bf16

Mask = npt.NDArray[np.bool_]

FACTORS = tuple(
    sorted(
        {float(2.0**e) for e in range(-16, 17) if e}
        | {15 / 16, 16 / 15, 7 / 8, 8 / 7, 15 / 14, 14 / 15, 127 / 128, 128 / 127, 255 / 256}
        | {256 / 255, 127 / 255, 255 / 127, 7 / 15, 15 / 7, 8 / 15, 15 / 8, -1.0}
    )
)
"""What scales get multiplied by: powers of two, and one formula's divisor for another's."""

_MOST_COLUMNS = 8192
_MOST_ROWS = 16384
_CHUNK = 1024
_SWAP_CHANNELS = 128
_SWAPS = 3
_BLOCK = 256
_MOST_ROLLS = 64


def fitted(
    true: Setup, inputs: Inputs, y: Floats, clean: Floats, known: Mask, *, swaps: bool = True
) -> Iterator[Edit]:
    """Yield what the routes propose, the cheapest first.

    Args:
        true: The Linear as it should be.
        inputs: The rows that were run.
        y: What came out, `[M, N]`.
        clean: What should have, under the likeliest arithmetic.
        known: Which elements count.
        swaps: Whether swapped columns are looked for, which takes longest.
    """
    delta = np.where(known, y - clean, 0).astype(np.float32)
    if true.quantized:
        if true.minimums is None:
            yield from _zero_shift(true, inputs, delta)
        yield from _factor(true, y, clean, known)
        yield from _rolls(true)
    yield from dead_channels(true, y, clean, known)
    yield from permuted(true, inputs, y, clean, known)
    if swaps:
        yield from _swapped_columns(true, inputs, delta)


def _zero_shift(true: Setup, inputs: Inputs, delta: Floats) -> Iterator[Edit]:
    """Yield the shift d of all zero points that explains most: dy = -d * sum of s * x."""
    x = inputs.values("")
    totals = np.zeros((true.g, len(x)), np.float32)
    np.add.at(totals, true.groups, x.T)
    basis = totals.T @ rounded_scales(true).T
    weight = 1 / np.maximum(inputs.norms, np.float32(1e-20))
    power = float(np.sum(np.square(basis * weight, dtype=np.float64)))
    if power <= 0:
        return
    shift = -float(np.sum((delta * weight * basis * weight).astype(np.float64))) / power
    whole = round(shift) if math.isfinite(shift) else 0
    if abs(shift - whole) < 0.2 and 1 < abs(whole) <= 255:
        way = "high" if whole > 0 else "low"
        yield Edit(
            f"zeros{whole:+d}:z",
            f"every zero point is {abs(whole)} too {way}",
            "Q605",
            lambda setup: setup.with_("z", zeros=setup.zeros + np.float32(whole)),
            free=8,
            data={"shift": whole},
        )


def _factor(true: Setup, y: Floats, clean: Floats, known: Mask) -> Iterator[Edit]:
    """Yield the simple ratio by which all outputs (less the bias) are off."""
    bias = np.float32(0) if true.bias is None else quick_bf16(true.bias)
    one = np.where(known, clean - bias, 0).astype(np.float64)
    two = np.where(known, y - bias, 0).astype(np.float64)
    size = np.maximum(np.abs(one).max(axis=1, keepdims=True), 1e-30)
    power = float(np.sum(np.square(one / size)))
    if power <= 0:
        return
    ratio = float(np.sum(one / size * two / size)) / power
    near = [f for f in FACTORS if abs(ratio - f) < 0.001 * abs(f)]
    word = "scales" if true.minimums is None else "scales and minimums"
    for factor in near:
        for exact in (False, True):
            yield Edit(
                f"scales-times-{factor:g}{'-exact' if exact else ''}:s",
                f"all {word} are multiplied by {factor:.6g}",
                "Q613",
                lambda setup, f=factor, e=exact: _times(setup, f, exact=e),  # type: ignore[misc]
                free=math.log2(len(FACTORS)),
                data={"factor": factor},
            )


def _times(setup: Setup, factor: float, *, exact: bool) -> Setup:
    scales = rounded_scales(setup) if exact else setup.scales
    moved = setup.with_("s", scales=scales, exact_scales=exact or setup.exact_scales)
    return moved.of_groups(f"s{setup.offset}" if setup.minimums is not None else "s",
                           lambda values: values * np.float32(factor))  # fmt: skip


def _rolls(true: Setup) -> Iterator[Edit]:
    """Yield scales and zero points taken from r groups away."""
    for r in range(4 if true.g > 6 else 2, min(true.g, _MOST_ROLLS)):
        order = np.roll(np.arange(true.g), r)
        offset = "zero points" if true.minimums is None else "minimums"
        for target, word in (("s", "scales"), (true.offset, offset),
                             (f"s{true.offset}", f"scales and {offset}")):  # fmt: skip
            yield Edit(
                f"groups-roll+{r}:{target}",
                f"{word} are taken from {r} groups before (or {true.g - r} after)",
                "Q604",
                lambda setup, o=order, t=target: setup.of_groups(  # type: ignore[misc]
                    t, lambda values: values[:, o]
                ),
                free=math.log2(true.g),
                data={"groups": r},
            )


def dead_channels(true: Setup, y: Floats, clean: Floats, known: Mask) -> Iterator[Edit]:
    """Yield channels that give nothing but their bias, or nothing at all."""
    bias = np.zeros(true.n, np.float32) if true.bias is None else quick_bf16(true.bias)
    alive = (clean != bias) & (clean != 0)
    for kept, level, text in (
        (True, bias, "give nothing but their bias"),
        (False, np.zeros_like(bias), "give zeros, without their bias"),
    ):
        if not kept and true.bias is None:
            continue
        silent = ((y == level) | ~known).all(axis=0) & (alive & known).any(axis=0)
        count = int(silent.sum())
        if not 0 < count < true.n or int((alive & known)[:, silent].sum(axis=0).min()) < 3:
            continue
        listed = ", ".join(str(n) for n in np.flatnonzero(silent)[:6])
        more = ", ..." if count > 6 else ""
        yield Edit(
            f"dead{'' if kept else '-bias'}:y",
            f"{count} of {true.n} output channels {text} (channel{'s' if count > 1 else ''}"
            f" {listed}{more})",
            "Q616",
            lambda setup, d=silent, k=kept: _silenced(setup, d, keep_bias=k),  # type: ignore[misc]
            free=permutation_bits(true.n, count),
            data={"channels": [int(n) for n in np.flatnonzero(silent)]},
        )


def _silenced(setup: Setup, dead: Mask, *, keep_bias: bool) -> Setup:
    scales = np.where(dead[:, None], np.float32(0), setup.scales)
    if not setup.quantized:
        codes = np.where(dead[:, None], np.float32(0), setup.codes)
        setup = setup.with_("q", codes=codes)
    if setup.minimums is not None:
        setup = setup.of_groups("m", lambda values: np.where(dead[:, None], 0, values))
    bias = setup.bias
    if bias is not None and not keep_bias:
        bias = np.where(dead, np.float32(0), bias)
    return setup.with_("sb", scales=scales, bias=bias)


def permuted(true: Setup, inputs: Inputs, y: Floats, clean: Floats, known: Mask) -> Iterator[Edit]:
    """Yield the permutation of output channels that brings each next to what it should be."""
    if true.n > _MOST_ROWS or true.n < 2:
        return
    whole = known.all(axis=1)
    if not whole.any():
        return
    found = nearest(y[whole], clean[whole], inputs.norms[whole], true)
    order = _one_each(found, clean[whole], true)
    moved = 0 if order is None else int(np.count_nonzero(order != np.arange(true.n)))
    if order is None or not moved:
        return
    yield Edit(
        "rows-found:y",
        permutation_text(order),
        "Q603",
        lambda setup: setup.take_rows(order, WHOLE),
        order=order,
        free=permutation_bits(true.n, moved),
        data={"moved": moved, "order": [int(n) for n in order]},
    )


def nearest(y: Floats, clean: Floats, norms: Floats, true: Setup) -> Index:
    """Return for each channel of `y` the channel of `clean` that it is nearest to.

    Its own where that is as near as any; differences count as multiples of |x| * rms(w).
    """
    typical = np.float32(np.sqrt(np.mean(np.square(weight_rms(true.weight()), dtype=np.float64))))
    level = 1 / np.maximum(norms * max(typical, np.float32(1e-30)), np.float32(1e-20))
    level[norms[:, 0] == 0] = 1
    a = np.nan_to_num(y * level, nan=0, posinf=0, neginf=0).T.astype(np.float32)
    b = np.nan_to_num(clean * level, nan=0, posinf=0, neginf=0).T.astype(np.float32)
    squares = np.einsum("nm,nm->n", b, b)
    own = np.einsum("nm,nm->n", a - b, a - b)
    found = np.empty(len(a), np.intp)
    for start in range(0, len(a), _CHUNK):
        part = a[start : start + _CHUNK]
        distance = squares[None, :] - 2 * (part @ b.T)
        found[start : start + _CHUNK] = np.argmin(distance, axis=1)
    gained = np.einsum("nm,nm->n", a - b[found], a - b[found])
    return np.where(gained < own, found, np.arange(len(a)))


def _one_each(found: Index, clean: Floats, true: Setup) -> Index | None:
    """Return a permutation in which each channel is one that is equal to that found for it.

    Padded channels are all alike: which of them came from which nothing can tell, so each stays
    where it is if it can. None where no permutation does it, or channels are alike for these
    inputs only.
    """
    if len(np.unique(found)) == true.n:
        return found
    _, kinds = np.unique(clean, axis=1, return_inverse=True)
    kinds = kinds.reshape(-1)
    counts = np.bincount(kinds)
    wanted = kinds[found]
    if not np.array_equal(np.bincount(wanted, minlength=len(counts)), counts):
        return None
    alike = np.flatnonzero(counts[kinds] > 1)
    first = np.empty(len(counts), np.intp)
    first[kinds[::-1]] = np.arange(true.n)[::-1]
    model = first[kinds[alike]]
    weight = true.weight()
    if not np.array_equal(weight[alike], weight[model]):
        return None
    if true.bias is not None and not np.array_equal(true.bias[alike], true.bias[model]):
        return None
    order = np.arange(true.n)
    moved = np.flatnonzero(wanted != kinds)
    taken = moved[np.argsort(wanted[moved], kind="stable")]
    order[taken] = moved[np.argsort(kinds[moved], kind="stable")]
    return order


def permutation_bits(n: int, moved: int) -> float:
    """Return how many bits a permutation that moves so many of N takes to tell."""
    return float(moved) * math.log2(max(2, n))


def permutation_text(order: Index) -> str:
    """Return a permutation in words, by its formula where it has one."""
    n = len(order)
    places = np.arange(n)
    moved = np.flatnonzero(order != places)
    if len(moved) == 2:
        return f"output channels {moved[0]} and {moved[1]} are swapped"
    for lanes in range(2, n):
        if n % lanes == 0:
            dealt = deal(n, lanes)
            if np.array_equal(order, dealt):
                return f"output channels are dealt to {lanes} lanes and not dealt back"
            if np.array_equal(order, inverse(dealt)):
                return f"output channels are dealt back from {lanes} lanes"
    shift = int(order[0])
    if np.array_equal(order, (places + shift) % n):
        return f"output channels are rolled by {shift}"
    return f"output channels are permuted ({len(moved)} of {n} moved)"


def _swapped_columns(true: Setup, inputs: Inputs, delta: Floats) -> Iterator[Edit]:
    """Yield the two columns whose swap explains the difference best: of codes, or of weights.

    With E = dy^T x and F = E * s, a swap of the codes of columns a and b explains
    (F^T q)[a, b] + (F^T q)[b, a] - (F^T q)[a, a] - (F^T q)[b, b] of it: all pairs in one product.
    """
    if not 2 < true.k <= _MOST_COLUMNS:
        return
    some = spread_over(true.n, _SWAP_CHANNELS)  # a swap shows in every channel
    level = 1 / np.maximum(inputs.norms, np.float32(1e-20))
    x = inputs.values("") * level
    e = (delta[:, some] * level).T @ x
    weight = true.weight(some)
    kinds = [("x", e, weight)]
    if true.quantized and true.g > 1:
        spread = np.take(rounded_scales(true)[some], true.groups, axis=1)
        kinds.append(("q", e * spread, true.read(some)))
    best: dict[str, list[tuple[float, int, int]]] = {target: [] for target, _, _ in kinds}
    squares, power = (np.einsum("mk,mk->k", own, own) for own in (weight, x))
    for start in range(0, true.k, _BLOCK):  # in blocks, which stay in the cache
        block, rest = slice(start, start + _BLOCK), slice(start, None)
        apart = squares[block, None] + squares[rest] - 2 * (weight[:, block].T @ weight[:, rest])
        total = power[block, None] + power[rest]
        for target, f, q in kinds:
            # |dy|^2 of each swap: exact where whole weights move, near enough where codes do
            norms = total - 2 * (x[:, block].T @ x[:, rest]) if target == "x" else total
            norms = norms * np.maximum(apart, 0)
            own = np.einsum("nk,nk->k", f, q)
            gain = f[:, block].T @ q[:, rest] + q[:, block].T @ f[:, rest]
            gain -= own[block, None] + own[rest]
            gain = np.where(norms > 0, gain / np.sqrt(np.maximum(norms, 1e-30)), 0)
            best[target] += _largest(np.triu(gain, 1), start)
    for target, found in best.items():
        for gained, a, b in sorted(found, reverse=True)[:_SWAPS]:
            if gained > 0:
                yield swap_edit(true.k, a, b, target)


def _largest(gain: Floats, start: int) -> Iterator[tuple[float, int, int]]:
    """Yield the largest numbers above a block's diagonal and where they stand."""
    for _ in range(min(_SWAPS, gain.size)):
        a, b = (int(place) for place in np.unravel_index(np.argmax(gain), gain.shape))
        yield float(gain[a, b]), start + a, start + b
        gain[a, b] = 0


def swap_edit(k: int, a: int, b: int, target: str) -> Edit:
    """Return the edit that swaps two columns."""
    order = np.arange(k)
    order[[a, b]] = b, a
    word = "input features" if target == "x" else "columns of the codes"

    def swapped(setup: Setup) -> Setup:
        if target == "q":
            return setup.take_columns(order)
        columns = order if setup.x_columns is None else setup.x_columns[order]
        return setup.with_("x", x_columns=columns)

    return Edit(
        f"columns-{a}-{b}:{target}",
        f"{word} {a} and {b} are swapped",
        "Q603",
        swapped,
        order=order,
        free=2 * math.log2(k),
        data={"columns": [a, b]},
    )
