"""What plain floats (F16, BF16, F32, 8-bit) would do to an array."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from qassay.core.finding import Finding, Location, Severity
from qassay.encodings.base import Floats, PlainEncoding
from qassay.guards.floats import Array
from qassay.guards.tally import Spot
from qassay.runtimes.arithmetic import halves, of_halves
from qassay.runtimes.preflight import shortest
from qassay.runtimes.scale_storage_formats import storage

_PIECE = 1 << 20
_LEAST_OF_TENSOR = 2.0**-30
_WAYS = {"bf16": "bf16", "f8_e4m3": "e4m3", "f8_e5m2": "e5m2"}


def look_plain(array: Array, to: type[PlainEncoding], name: str) -> list[Finding]:
    """Return what storing an array as `to` would damage: overflow, and values that become zero."""
    overflow, lost, bad = Spot("Q501"), Spot("Q502"), Spot("Q504")
    least_normal = float(to.numbers(np.array([to.least_normal], to.dtype))[0])
    largest = largest_lost = 0.0
    subnormal = 0
    for start in range(0, array.size, _PIECE):
        values = array.floats(start, min(_PIECE, array.size - start))
        stored = _stored(values, to)
        finite = np.isfinite(values)
        sizes = np.where(finite, np.abs(values), np.float32(0))
        largest = max(largest, float(sizes.max()))
        gone = finite & (values != 0) & (stored == 0)
        largest_lost = max(largest_lost, float(sizes[gone].max(initial=0.0)))
        small = np.abs(stored) < least_normal
        subnormal += int((finite & (stored != 0) & small & (sizes >= 2.0**-126)).sum())
        _note(bad, array, start, ~finite, values, to)
        _note(overflow, array, start, finite & ~np.isfinite(stored), values, to)
        _note(lost, array, start, gone, values, to)
    whole = largest > 0 and largest_lost == largest
    if not whole:
        small_loss = largest_lost < _LEAST_OF_TENSOR * largest
        lost.severity = Severity.INFO if small_loss else Severity.WARNING
    for spot in (overflow, lost, bad):
        spot.data.update(
            overflows=overflow.count, zeroed=lost.count, subnormal=subnormal, largest=largest
        )
    found = sorted((spot for spot in (overflow, lost, bad) if spot.count), key=lambda s: s.first)
    return [spot.finding(name, noun="elements") for spot in found]


@np.errstate(all="ignore")
def _stored(values: Floats, to: type[PlainEncoding]) -> Floats:
    """Return float32 values as `to` stores them, rounded to nearest even."""
    if to.id == "f16":
        return of_halves(halves(values))
    way = _WAYS.get(to.id)
    if way is None:
        return values
    stored = storage(way).store(np.abs(values))
    return np.asarray(np.copysign(stored, values), np.float32)


def _note(
    spot: Spot,
    array: Array,
    start: int,
    chosen: npt.NDArray[np.bool_],
    values: Floats,
    to: type[PlainEncoding],
) -> None:
    spot.count += int(chosen.sum())
    row = array.shape[-1] if array.shape else 1
    for index in np.flatnonzero(chosen)[:16]:
        if spot.full:
            return
        flat, value = start + int(index), float(values[index])
        where = f"element {flat} (row {flat // row}, column {flat % row})"
        spot.add(
            Location(row=flat // row, column=flat % row, value=value),
            f"{where}: {_words(spot, array, flat, value, to)}",
            flat,
        )


def _words(spot: Spot, array: Array, flat: int, value: float, to: type[PlainEncoding]) -> str:
    if spot.code == "Q501":
        return f"{shortest(value)} becomes infinite in {to.id}"
    if spot.code == "Q502":
        return f"{shortest(value)} becomes zero in {to.id}"
    word = "NaN" if np.isnan(value) else "inf" if value > 0 else "-inf"
    if np.isinf(value) and not array.infinite_already(flat):
        return f"{word} as float32, and finite before"
    return f"{word} in the source already"
