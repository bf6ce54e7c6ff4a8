"""Tensors of one number a weight: compared value by value, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison import names
from qassay.comparison.cost.floats import explain_floats
from qassay.comparison.cost.judge import nonfinite_faults
from qassay.comparison.direct import is_reciprocal
from qassay.comparison.facts import Difference, Pair, PartCount, Transformation
from qassay.comparison.forms import plain_zero, same
from qassay.comparison.orders import rotary
from qassay.comparison.sketches import digests
from qassay.comparison.weights import SLAB, Plain


def compare_plain(
    a: Plain, b: Plain, pair: Pair, *, heads: tuple[int, ...] = (), norm: bool = False
) -> None:
    """Fill in what became of two plain tensors of one size.

    Args:
        a: The first side's.
        b: The second side's.
        pair: What is filled in.
        heads: Numbers of attention heads, where rows may be in llama.cpp's rotary order.
        norm: Whether this is a norm that a converter may have added 1 to.

    Values of different dtypes are equal where both stand for the same number. Where the second
    side is the first rounded to its own dtype, or the reverse, that is said and is no fault.
    """
    found = Difference()
    count = found.parts.setdefault("values", PartCount())
    odd = [0, 0, 0]
    columns = a.shape[-1] if a.shape else 1
    ways = {"rounded": a.encoding.kind == b.encoding.kind == "float" and a.encoding != b.encoding,
            "plus one": norm and a.encoding.kind == b.encoding.kind == "float"}  # fmt: skip
    for start in range(0, a.size, SLAB):
        stop = min(start + SLAB, a.size)
        one, two = a.read(start, stop), b.read(start, stop)
        off = ~_alike(one, two, inverse=a.inverse or b.inverse)
        _count_nonfinite(odd, one, two)
        count.of += off.size
        if ways["rounded"]:
            ways["rounded"] = _is_rounded(one, two, a, b)
        if ways["plus one"]:
            with np.errstate(all="ignore"):
                ways["plus one"] = bool(same(one + one.dtype.type(1), two).all())
        if off.any():
            _count(found, count, one, two, off, _Place(start, columns))
    found.weights = PartCount(count.different, count.of)
    if a.inverse or b.inverse:
        pair.notes.append("a divisor on one side and a multiplier on the other; compared as such")
    if not names.MASK.search(pair.name):
        pair.faults += nonfinite_faults(odd, count.of)
    if not count.different:
        return
    pair.difference = found
    pair.relation = "equal-up-to"
    kinds = f"{a.encoding.id} and {b.encoding.id}"
    if ways["rounded"]:
        pair.transformations = (
            Transformation("rounded", "", ("values",), f"values are equal once rounded ({kinds})"),
        )
    elif ways["plus one"]:
        pair.transformations = (
            Transformation(
                "plus-one",
                "",
                ("values",),
                "values are 1 larger, as Gemma's norms are in GGUF",
            ),
        )
    elif (told := _rotary_rows(a, b, heads)) is not None:
        pair.transformations = (told,)
    else:
        pair.relation = "different"
        if a.encoding.kind == b.encoding.kind == "float" and not (a.inverse or b.inverse):
            explain_floats(a, b, pair)


def _count_nonfinite(odd: list[int], one: npt.NDArray[Any], two: npt.NDArray[Any]) -> None:
    """Count values that are finite on the second side alone, on the first alone, on neither."""
    if one.dtype.kind != "f" or two.dtype.kind != "f":
        return
    first, second = np.isfinite(one), np.isfinite(two)
    if first.all() and second.all():
        return
    for at, which in enumerate((~first & second, first & ~second, ~first & ~second)):
        odd[at] += int(np.count_nonzero(which))


def _alike(one: npt.NDArray[Any], two: npt.NDArray[Any], *, inverse: bool) -> npt.NDArray[np.bool_]:
    if not inverse:
        return same(one, two)
    with np.errstate(all="ignore"):
        return is_reciprocal(one, 1 / two.astype(np.float64))


def _rotary_rows(a: Plain, b: Plain, heads: tuple[int, ...]) -> Transformation | None:
    """Return whether the rows of Q or K are those of the other side in the converter's order."""
    if not heads:
        return None
    one, two = _row_digests(a), _row_digests(b)
    for count in heads:
        order = rotary(one.size, count)
        if order is None:
            continue
        for kept in (order, np.argsort(order)):
            if np.array_equal(two, one[kept]):
                text = f"rows of each of {count} heads in llama.cpp's rotary order"
                return Transformation("rotary-rows", "", ("values",), text, {"heads": count})
    return None


def _row_digests(plain: Plain) -> npt.NDArray[np.void]:
    columns = plain.shape[-1] if len(plain.shape) > 1 else 1
    step = max(1, SLAB // columns) * columns
    found = []
    for start in range(0, plain.size, step):
        values = plain.read(start, min(start + step, plain.size))
        with np.errstate(invalid="ignore"):
            wide = values.astype(np.float64)
        found.append(digests(plain_zero(wide).reshape(-1, columns)))
    return np.concatenate(found)


@dataclass(frozen=True, slots=True)
class _Place:
    start: int
    columns: int

    def of(self, at: int) -> tuple[int, int]:
        row, column = divmod(self.start + at, self.columns)
        return row, column


def _count(
    found: Difference,
    count: PartCount,
    one: npt.NDArray[Any],
    two: npt.NDArray[Any],
    off: npt.NDArray[np.bool_],
    place: _Place,
) -> None:
    count.different += int(off.sum())
    if found.first is None:
        at = int(np.argmax(off))
        row, column = place.of(at)
        found.first = {
            "row": row,
            "column": column,
            "part": "values",
            "values": [one[at].item(), two[at].item()],
        }
    with np.errstate(invalid="ignore"):  # a signalling NaN is an answer, not a fault
        left, right = one.astype(np.float64), two.astype(np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    found.one_sided += int((off & ~finite).sum())
    away = np.zeros_like(left)
    np.subtract(left, right, out=away, where=finite)
    at = int(np.argmax(np.abs(away)))
    if abs(away[at]) > found.largest:
        found.largest = float(abs(away[at]))
        found.largest_at = place.of(at)


def _is_rounded(one: npt.NDArray[Any], two: npt.NDArray[Any], a: Plain, b: Plain) -> bool:
    """Tell whether one side is the other's values rounded to its dtype, nearest, ties to even."""
    return bool(
        same(_rounded(one, b.encoding.id), two).all()
        or same(_rounded(two, a.encoding.id), one).all()
    )


def _rounded(values: npt.NDArray[Any], dtype: str) -> npt.NDArray[Any]:
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "bf16":
            bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
            kept = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
            return np.where(np.isfinite(values), kept.view(np.float32), values)
        narrow = {"f16": np.float16, "f32": np.float32}.get(dtype)
        return values if narrow is None else values.astype(narrow).astype(values.dtype)
