"""What may have gone wrong with a whole weight: each fault is undone, and the error looked at.

Everything here is tried on a few rows of both sides. What brings their error down to what it
should be is verified on every row by the caller, and only then told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.cost.reading import Sides, grid_of, sample
from qassay.comparison.facts import Transformation
from qassay.comparison.forms import Form
from qassay.comparison.orders import head_counts, named, rotary
from qassay.kernels import cost
from qassay.kernels.cost import Doubles, Floats, Of

SAMPLE = 64
"""Rows of a sample; every order of `orders.NAMED` acts inside of such runs."""
_ROLLS = 16
_NOUNS = {"scales": "scales", "zeros": "zero points", "minimums": "minimums"}

Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Idea:
    """A fault and how to set both sides against each other without it."""

    told: Transformation
    sides: Sides


def error_of(sides: Sides, rows: Order, bits: int) -> Doubles:
    """Return the measures of chosen rows."""
    ref, form = sample(sides, rows)
    grid, order = grid_of(form, bits)
    new = form.values()
    if order is not None:
        ref, new = ref[:, order], new[:, order]
    return cost.measure_rows(ref, new, grid)


def ratio_of(found: Doubles) -> float:
    """Return RMSE over what it should be."""
    error, par = float(found[:, Of.ERR2].sum()), float(found[:, Of.PAR2].sum())
    if error <= 0:
        return 0.0
    return float(np.sqrt(error / par)) if par > 0 else float("inf")


def sample_rows(bad: Order, rows: int) -> Order:
    """Return `SAMPLE` consecutive rows around the first bad one, a whole run of them."""
    first = int(bad[0]) // SAMPLE * SAMPLE if bad.size else 0
    return np.arange(first, min(first + SAMPLE, rows), dtype=np.int64)


def ideas(sides: Sides, form: Form, heads: tuple[int, ...], *, converted: bool) -> Iterator[Idea]:
    """Yield what may have happened to every row, the likeliest first."""
    if heads:
        yield from _rotary(sides, heads, converted=converted)
    yield from _shifts(sides, form)
    yield from _orders(sides, form)
    yield from _groups(sides, form)
    yield from _factor(sides)


def _rotary(sides: Sides, heads: tuple[int, ...], *, converted: bool) -> Iterator[Idea]:
    for count in dict.fromkeys((*heads, *head_counts(sides.rows))):
        order = rotary(sides.rows, count)
        if order is None:
            continue
        for way, kept in (("", order), (" undone", np.argsort(order).astype(np.int64))):
            text = f"rows of each of {count} heads in llama.cpp's rotary order{way}"
            code = "" if converted and not way else "Q603"
            told = Transformation("rotary-rows", code, (), text, {"heads": count})
            yield Idea(told, replace(sides, order=kept))


def _shifts(sides: Sides, form: Form) -> Iterator[Idea]:
    """Yield zero points that are off by one number, and codes with another offset."""
    if form.zeros is None:
        return
    bits = sides.weight.bits
    half = 1 << (bits - 1)
    stored = "zero points" if form.minimums is None else "codes"
    for by in (1, -1, 2, -2):

        def moved(one: Form, by: int = by) -> Form:
            assert one.zeros is not None  # noqa: S101 - the sample had them
            return replace(one, zeros=(one.zeros - by).astype(np.int16))

        lower = by < 0 if stored == "zero points" else by > 0
        way = "lower" if lower else "higher"
        told = Transformation(
            "zero-points-shifted" if form.minimums is None else "codes-shifted",
            "Q605",
            ("zeros",) if form.minimums is None else ("codes",),
            f"{stored} are {abs(by)} {way}: every weight is off by {abs(by)} step"
            + ("s" if abs(by) > 1 else ""),
            {"shift": by if form.minimums is None else -by, "modulus": 1 << bits},
        )
        yield Idea(told, replace(sides, undo=moved))

    def wrapped(one: Form) -> Form:
        return replace(one, codes=(one.codes ^ half).astype(np.int16))

    text = f"codes are {half} higher (modulo {1 << bits}): two's complement for offset binary"
    data = {"shift": half, "modulus": 1 << bits}
    yield Idea(
        Transformation("codes-shifted", "Q605", ("codes",), text, data),
        replace(sides, undo=wrapped),
    )


def _orders(sides: Sides, form: Form) -> Iterator[Idea]:
    """Yield orders of packers, along columns and along rows; of codes, zero points, or both."""
    for kind, text, order in named(form.codes.shape[1]):
        back = np.argsort(order)

        def columns(one: Form, back: Order = back) -> Form:
            return replace(one, codes=one.codes[:, back])

        told = Transformation(kind, "Q606", ("codes",), f"{text}, in codes", {"axis": "columns"})
        yield Idea(told, replace(sides, undo=columns))
    parts: tuple[tuple[str, ...], ...] = (("codes",), ("zeros",), ("codes", "zeros"))
    for names in parts:
        if "zeros" in names and (form.zeros is None or not np.ptp(form.zeros)):
            continue
        for kind, text, order in named(min(SAMPLE, sides.rows)):

            def rows(one: Form, order: Order = order, names: tuple[str, ...] = names) -> Form:
                return replace(one, **{name: _back(one.part(name), order) for name in names})

            words = " and ".join("zero points" if name == "zeros" else name for name in names)
            told = Transformation(kind, "Q606", names, f"{text}, in {words}", {"axis": "rows"})
            yield Idea(told, replace(sides, undo=rows))


def _back(part: Any, order: Order) -> Any:
    """Undo an order inside runs of rows; rows that fill no run stay where they are."""
    whole = part.shape[0] // order.size * order.size
    runs = part[:whole].reshape(-1, order.size, part.shape[1])[:, np.argsort(order)]
    return np.concatenate([runs.reshape(whole, part.shape[1]), part[whole:]])


def _groups(sides: Sides, form: Form) -> Iterator[Idea]:
    """Yield scales, zero points or minimums that are those of another group."""
    count = form.scales.shape[1]
    present = [name for name in ("scales", "zeros", "minimums") if _varies(form.part(name))]
    if count < 2 or not present:
        return
    sets = [tuple(present), *((name,) for name in present)] if len(present) > 1 else [(present[0],)]
    rolls = [each for by in range(1, min(_ROLLS, count - 1) + 1) for each in (by, -by)]
    for names in sets:
        words = " and ".join(_NOUNS[name] for name in names)
        for by in rolls:
            if abs(by) * 2 > count:
                continue
            noun = "group" if abs(by) == 1 else "groups"
            told = Transformation(
                "groups-rolled", "Q604", names, f"{words} are rolled by {by} {noun}",
                {"groups": by, "of": count},
            )  # fmt: skip
            yield Idea(told, replace(sides, undo=_taking(names, np.roll(np.arange(count), -by))))
        told = Transformation(
            "groups-permuted", "Q604", names, f"{words} are in reverse order of groups",
            {"of": count},
        )  # fmt: skip
        yield Idea(told, replace(sides, undo=_taking(names, np.arange(count)[::-1].copy())))


def _varies(part: Any) -> bool:
    return part is not None and bool(np.ptp(np.nan_to_num(part)))


def _taking(names: tuple[str, ...], order: Order) -> Callable[[Form], Form]:
    def undo(one: Form) -> Form:
        taken = {name: part[:, order] for name in names if (part := one.part(name)) is not None}
        return replace(one, **taken)

    return undo


def _factor(sides: Sides) -> Iterator[Idea]:
    """Yield one factor of all scales, if the sample has one."""
    ref, form = sample(sides, np.arange(min(SAMPLE, sides.rows), dtype=np.int64))
    fit = fitted(ref, form.values())
    if fit is None or abs(fit - 1) < 0.02:
        return
    factor = _plain(fit)

    def undo(one: Form) -> Form:
        with np.errstate(all="ignore"):
            scales = (one.scales / np.float32(factor)).astype(np.float32)
            minimums = one.minimums
            if minimums is not None:
                minimums = (minimums / np.float32(factor)).astype(np.float32)
        return replace(one, scales=scales, minimums=minimums)

    text = f"scales are {factor:.4g} times as large"
    if factor in (2.0, 0.5):
        text += " (as E4M3 FN read as FNUZ, or the reverse, needs)"
    told = Transformation("scales-multiplied", "Q613", ("scales",), text, {"factor": factor})
    yield Idea(told, replace(sides, undo=undo))


def fitted(ref: Floats, new: Floats) -> float | None:
    """Return the factor from the source to the other side, None where they are not alike."""
    one, two = ref.astype(np.float64).ravel(), new.astype(np.float64).ravel()
    sound = np.isfinite(one) & np.isfinite(two)
    one, two = one[sound], two[sound]
    factor = float(one @ two) / max(float(one @ one), 1e-300)
    return factor if factor and abs(likeness(ref, new)) > 0.8 and np.isfinite(factor) else None


def likeness(ref: Floats, new: Floats) -> float:
    """Return the cosine of two sides, over what is finite on both; 0 where one is zero."""
    one, two = ref.astype(np.float64).ravel(), new.astype(np.float64).ravel()
    sound = np.isfinite(one) & np.isfinite(two)
    one, two = one[sound], two[sound]
    norm = float(np.sqrt(float(one @ one)) * np.sqrt(float(two @ two)))
    return float(one @ two) / norm if norm > 0 else 0.0


def _plain(factor: float) -> float:
    """Return the plainest number within what rounding leaves open: 2, 1/16, 7.2e6."""
    power = float(np.copysign(2.0 ** round(np.log2(abs(factor))), factor))
    return power if abs(factor / power - 1) < 0.02 else factor
