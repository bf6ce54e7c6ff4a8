"""Transformations of numbers, not of places: shifts, factors, signs, a turned matrix."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.direct import Sides, is_reciprocal
from qassay.comparison.facts import Difference, Transformation
from qassay.comparison.forms import Form, same
from qassay.comparison.weights import Whole

MOST_TURNED = 1 << 25
"""Scales of one weight that are held at once to see whether they are turned."""

Test = Callable[[Form, Form], bool]
_WORDS = {"codes": "codes", "zeros": "zero points", "scales": "scales", "minimums": "minimums"}


def elementwise(
    name: str, bits: int, one: Form, two: Form
) -> Iterator[tuple[Transformation, Test]]:
    """Yield what may have happened to every element of a part, by the look of a sample."""
    if one.table is None and name in ("codes", "zeros"):
        yield _recentred(name)
        shift = _shift(one.part(name), two.part(name), 1 << bits)
        if shift:
            yield _shifted(name, shift, bits)
    if name in ("scales", "codes", "zeros"):
        yield _signs()
    if name in ("scales", "minimums"):
        for factor in _factors(one.part(name), two.part(name)):
            yield _scaled(name, factor)


_RECENTRED = Transformation(
    "codes-and-zeros-shifted",
    "",
    ("codes", "zeros"),
    "codes and zero points are moved by the same amount",
)
_SIGNS = Transformation(
    "scale-signs-flipped",
    "",
    ("codes", "scales"),
    "signs of scales are flipped, and codes with them",
)


def _recentred(name: str) -> tuple[Transformation, Test]:
    del name

    def test(one: Form, two: Form) -> bool:
        return bool(np.array_equal(one.centred(), two.centred()))

    return _RECENTRED, test


def _signs() -> tuple[Transformation, Test]:
    def test(one: Form, two: Form) -> bool:
        if one.scales.shape != two.scales.shape:
            return False
        kept = same(one.scales, two.scales)
        if not (kept | (one.scales == -two.scales)).all():
            return False
        sign = np.where(kept, np.int16(1), np.int16(-1))[:, one.groups]
        return bool(same(one.centred() * sign, two.centred()).all())

    return _SIGNS, test


def _shift(
    left: npt.NDArray[Any] | None, right: npt.NDArray[Any] | None, modulus: int
) -> int | None:
    if left is None or right is None or not left.size or left.shape != right.shape:
        return None
    return int(right.flat[0] - left.flat[0]) % modulus or None


def _shifted(name: str, shift: int, bits: int) -> tuple[Transformation, Test]:
    modulus = 1 << bits
    signed = shift if shift <= modulus // 2 else shift - modulus
    way = "higher" if signed > 0 else "lower"

    def test(one: Form, two: Form) -> bool:
        left, right = one.part(name), two.part(name)
        assert left is not None  # noqa: S101 - the sample had it
        assert right is not None  # noqa: S101
        away = right.astype(np.int32) - left - shift
        return not (away % modulus).any()

    told = Transformation(
        "zero-points-shifted" if name == "zeros" else "codes-shifted",
        "Q605",
        (name,),
        f"{_WORDS[name]} are {abs(signed)} {way} (modulo {modulus})",
        {"shift": signed, "modulus": modulus},
    )
    return told, test


def _factors(left: npt.NDArray[Any] | None, right: npt.NDArray[Any] | None) -> list[float]:
    """Return factors that may lead from one sample to the other, the plainest first."""
    if left is None or right is None or left.shape != right.shape:
        return []
    usable = np.isfinite(left) & np.isfinite(right) & (left != 0) & (right != 0)
    if not usable.any():
        return []
    ratios = right[usable].astype(np.float64) / left[usable]
    middle = float(np.median(ratios))
    if not math.isfinite(middle) or middle in (0.0, 1.0):
        return []
    power = math.copysign(2.0 ** round(math.log2(abs(middle))), middle)
    whole = float(round(middle)) if abs(middle) >= 1 else 1 / round(1 / middle)
    found = [power, whole, float(np.float32(middle)), middle]
    near = [each for each in found if each != 1.0 and abs(each / middle - 1) < 1e-6]
    return list(dict.fromkeys(near))


def _scaled(name: str, factor: float) -> tuple[Transformation, Test]:
    def test(one: Form, two: Form) -> bool:
        left, right = one.part(name), two.part(name)
        assert left is not None  # noqa: S101 - the sample had it
        assert right is not None  # noqa: S101
        with np.errstate(over="ignore", invalid="ignore"):
            product = (left.astype(np.float64) * factor).astype(np.float32)
        return bool(same(product, right).all())

    text = f"{_WORDS[name]} are {factor:.9g} times as large"
    if name == "scales" and factor in (2.0, 0.5):
        text += " (as E4M3 FN read as FNUZ, or the reverse, needs)"
    return Transformation("scales-multiplied", "Q613", (name,), text, {"factor": factor}), test


def whole_scale(sides: Sides, found: Difference) -> tuple[Transformation, ...] | None:
    """Return what happened to the scale of the whole tensor; None where nothing known did."""
    count = found.parts.get("whole")
    if count is None or not count.different:
        return ()
    one, two = sides.a.whole, sides.b.whole
    assert one is not None  # noqa: S101 - it was compared
    assert two is not None  # noqa: S101
    a, b = one.factors(), two.factors()
    if a.size != b.size:
        return None
    with np.errstate(all="ignore"):
        inverted = is_reciprocal(1 / a, b)
        ratios = b / a
    data = {"a": _told(one), "b": _told(two), "factor": float(ratios[0])}
    if inverted.all():
        text = "the scale of the whole tensor is inverted (divisor against multiplier)"
        return (Transformation("global-scale-inverted", "Q613", ("whole",), text, data),)
    if np.isfinite(ratios).all() and (ratios == ratios[0]).all():
        text = f"the scale of the whole tensor is {ratios[0]:.9g} times as large"
        return (Transformation("scales-multiplied", "Q613", ("whole",), text, data),)
    return None


def _told(whole: Whole) -> dict[str, Any]:
    return {"value": float(whole.values[0]), "divides": whole.divides}


def transposed(sides: Sides, name: str) -> Transformation | None:
    """Return whether a part is the other side's with rows and groups exchanged.

    Three ways to go wrong: a square matrix is turned; the bytes of `[G, N]` are read as `[N, G]`;
    or the reverse. Block scales, of which many rows share one, are looked at once a block.
    """
    gathered = _gathered(sides, name)
    if gathered is None:
        return None
    one, two = gathered
    rows, groups = one.shape
    if rows == 1 or groups == 1:
        return None
    ways = [one.T.reshape(rows, groups), one.reshape(groups, rows).T]
    if rows == groups:
        ways.insert(0, one.T)
    if not any(same(np.ascontiguousarray(way), two).all() for way in ways):
        return None
    text = f"{_WORDS[name]} are transposed ({rows} rows, {groups} groups)"
    return Transformation(
        "scales-transposed", "Q604", (name,), text, {"rows": rows, "groups": groups}
    )


def _gathered(sides: Sides, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    kept: tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]] = ([], [])
    held = 0
    every = 128
    for start, *forms in sides.pieces():
        for form in forms:
            part = form.part(name)
            shared = part is not None and _shared(part, every)
            if start == 0 and not shared:
                every = 1
        for side, form in zip(kept, forms, strict=True):
            part = form.part(name)
            if part is None:
                return None
            if every > 1 and not _shared(part, every):
                return None
            side.append(part[::every])
            held += part.size // every
        if held > MOST_TURNED:
            return None
    one, two = (np.concatenate(side) for side in kept)
    return (one, two) if one.shape == two.shape else None


def _shared(part: npt.NDArray[Any], every: int) -> bool:
    """Tell whether runs of so many rows hold the same."""
    if part.shape[0] <= every:
        return False
    heads = np.repeat(part[::every], every, axis=0)[: part.shape[0]]
    return bool(same(heads, part).all())
