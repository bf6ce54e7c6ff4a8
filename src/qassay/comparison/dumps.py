"""Two dumps of a whole model, tensor by tensor: what differs, by how much, and in which way.

What is not finite is counted first, on each side, and takes no part in any other number. Both
arrays are `[..., channels]`: rows are all axes but the last.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.facts import Difference
from qassay.comparison.profile import Histogram, along, histogram

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

USUAL_LIMIT = 0.5
"""Relative error beyond which a tensor is bad, where no other limit is given.

Honest 4-bit weights cost 5 to 25 % in each layer, and errors add up on the way: only half of a
tensor's own size is taken for more than that, and never for proven.
"""
_SLAB = 1 << 21
_DRAWN = 64
"""Rows that a histogram is of: evenly spread."""
_WORST = 8
_SORTED = 1 << 25
_WIDEST = 1 << 20
"""Channels that are told apart. A longer last axis is no axis of channels: it counts as one."""
_DEAD_SHARE = 0.1
_MASK = -1e4
"""What stands for minus infinity where a device has none: this, or less."""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Values that are not finite.

    Attributes:
        reference: In the reference.
        device: In the device's tensor.
        born: Not finite on the device where the reference is; or another kind of not finite.
        hidden: Finite on the device where the reference is not.
        both: NaN, or plus infinity, on both sides.
        masked: Minus infinity on both sides, as attention masks hold it on purpose; or -10,000 or
            less on the device.
        first: Row and channel of the first that counts: born, hidden or both.
    """

    reference: int = 0
    device: int = 0
    born: int = 0
    hidden: int = 0
    both: int = 0
    masked: int = 0
    first: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class TensorPair:
    """One tensor of both dumps.

    Attributes:
        name: In the reference.
        other: In the device's dump.
        shape: In the reference.
        relation: `equal`, `close`, `bad`, or `not-compared`.
        why: In words, where it is bad or not compared.
        code: The rule that reports it, "" where none does.
        difference: Of what is finite on both sides.
        not_finite: The rest.
        order: Place in graph order.
    """

    name: str
    other: str
    shape: tuple[int, ...] = ()
    relation: str = "not-compared"
    why: str = ""
    code: str = ""
    difference: Difference | None = None
    not_finite: NotFinite = field(default_factory=NotFinite)
    order: int = 0


@dataclass(slots=True, eq=False)
class DumpComparison:
    """Two dumps.

    Attributes:
        paths: Both, as reports name them.
        pairs: In graph order.
        missing: Names that the device's dump lacks.
        fused: Of names that it lacks, those that its graph does not have either.
        extra: Names that only the device's dump has.
        limit: Relative error beyond which a tensor is bad.
        chosen: Whether the user set the limit.
        order: Where the order is from: `graph` or `dump`.
    """

    paths: tuple[str, str]
    pairs: list[TensorPair] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    fused: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    limit: float = USUAL_LIMIT
    chosen: bool = False
    order: str = "dump"

    @property
    def bad(self) -> list[TensorPair]:
        """What is bad, in graph order."""
        return [one for one in self.pairs if one.relation == "bad"]


def compare_tensor(pair: TensorPair, reference: Array, device: Array, limit: float) -> None:
    """Fill in what two arrays of numbers say."""
    pair.shape = reference.shape
    if not _alike(reference.shape, device.shape):
        pair.relation, pair.code = "bad", "Q616"
        pair.why = f"of shape {list(device.shape)} where the reference has {list(reference.shape)}"
        if _transposed(reference, device):
            pair.why += ": it is transposed"
        return
    width = reference.shape[-1] if reference.ndim else 1
    width = 1 if width > _WIDEST else width
    rows = reference.size // width if width else 0
    a, b = reference.reshape(rows, width), device.reshape(rows, width)
    sums = Sums(width)
    for start, stop in _slabs(rows, width):
        sums.add(a[start:stop], b[start:stop], start)
    found = sums.difference()
    drawn = _drawn(a, b, found.rms)
    pair.not_finite, pair.difference = sums.not_finite(), replace(found, histogram=drawn)
    pair.code, pair.why = _judged(pair, sums, a, b, limit)
    same = sums.equal and not pair.code
    pair.relation = "bad" if pair.code else "equal" if same else "close"


@np.errstate(all="ignore")
def _drawn(a: Array, b: Array, rms: float) -> Histogram | None:
    """Return how errors are spread in a few rows; None where there are none."""
    if not 0 < rms < np.inf:
        return None
    some = slice(None, None, max(1, -(-len(a) // _DRAWN)))
    one, two = a[some].astype(np.float64), b[some].astype(np.float64)
    known = np.isfinite(one) & np.isfinite(two)
    return histogram((two - one)[known] / rms, "rms", len(one))


def _alike(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Tell whether two shapes differ by axes of 1, or by how rows are counted, alone."""
    short, other = ([axis for axis in shape if axis != 1] for shape in (one, two))
    if short == other:
        return True
    return bool(one and two) and one[-1] == two[-1] and math.prod(one) == math.prod(two)


@np.errstate(all="ignore")
def _transposed(reference: Array, device: Array) -> bool:
    """Tell whether a matrix of another shape is the reference with its axes swapped, about."""
    a, b = (
        each.reshape([axis for axis in each.shape if axis != 1]) for each in (reference, device)
    )
    if a.ndim != 2 or a.shape != b.shape[::-1] or not 0 < a.size <= _SORTED:
        return False
    gap = b.T.astype(np.float64) - a
    known = np.isfinite(gap)
    return bool(known.any() and np.square(gap[known]).mean() < 0.1 * np.square(a[known]).mean())


def _slabs(rows: int, width: int) -> Iterator[tuple[int, int]]:
    step = max(1, _SLAB // max(1, width))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)


class Sums:
    """Sums over rows that come a few at a time.

    Args:
        width: Channels.
    """

    def __init__(self, width: int) -> None:
        self.error = np.zeros(width)
        self.power = np.zeros(width)
        self.other = np.zeros(width)
        self.seen = np.zeros(width, np.int64)
        self.live = np.zeros(width, bool)
        self.product = 0.0
        self.largest = 0.0
        self.equal = True
        self.rows = 0
        self._counts = dict.fromkeys(("reference", "device", "born", "hidden", "both", "masked"), 0)
        self._first: tuple[int, int] | None = None

    @np.errstate(all="ignore")
    def add(self, reference: Array, device: Array, row: int) -> None:
        """Add rows, the first of which is `row`."""
        a, b = reference.astype(np.float64), device.astype(np.float64)
        fine_a, fine_b = np.isfinite(a), np.isfinite(b)
        known = fine_a & fine_b
        if not known.all():
            self._count(a, b, fine_a, fine_b, row)
            a, b = np.where(known, a, 0), np.where(known, b, 0)
        gap = b - a
        self.rows += len(a)
        self.equal = self.equal and not gap.any()
        self.error += np.einsum("ij,ij->j", gap, gap)
        self.power += np.einsum("ij,ij->j", a, a)
        self.other += np.einsum("ij,ij->j", b, b)
        self.product += float(np.einsum("ij,ij->", a, b))
        self.seen += known.sum(axis=0)
        self.live |= b.any(axis=0)
        self.largest = max(self.largest, float(np.abs(gap).max(initial=0)))

    def _count(self, a: Doubles, b: Doubles, fine_a: Array, fine_b: Array, row: int) -> None:
        lost = ~fine_a & ~fine_b
        same = lost & ((a == b) | (np.isnan(a) & np.isnan(b)))
        masked = (a == -np.inf) & (same | (fine_b & (b <= _MASK)))
        masks = {
            "reference": ~fine_a,
            "device": ~fine_b,
            "born": (fine_a & ~fine_b) | (lost & ~same),
            "hidden": ~fine_a & fine_b & ~masked,
            "both": same & ~masked,
            "masked": masked,
        }
        for name, mask in masks.items():
            self._counts[name] += int(np.count_nonzero(mask))
        if self._first is None:
            found = np.argwhere(masks["born"] | masks["hidden"] | masks["both"])
            if len(found):
                self._first = (row + int(found[0][0]), int(found[0][1]))

    def not_finite(self) -> NotFinite:
        """Return what is not finite."""
        return NotFinite(**self._counts, first=self._first)

    def dead(self) -> npt.NDArray[np.intp]:
        """Return channels that are zero on the device in each of several rows, and matter."""
        if self.rows < 2:
            return np.zeros(0, np.intp)
        usual = np.sqrt(self.power.mean()) if self.power.size else 0.0
        heavy = np.sqrt(self.power) > _DEAD_SHARE * usual
        return np.flatnonzero(~self.live & heavy & (self.seen == self.rows))

    @np.errstate(all="ignore")
    def difference(self) -> Difference:
        """Return the difference of what is finite on both sides."""
        count = int(self.seen.sum())
        power, error, other = (float(one.sum()) for one in (self.power, self.error, self.other))
        seen = np.maximum(self.seen, 1)
        by_channel, own = np.sqrt(self.error / seen), np.sqrt(self.power / seen)
        share = np.where(own > 0, by_channel / np.maximum(own, 1e-300),
                         np.where(by_channel > 0, np.inf, 0))  # fmt: skip
        worst = np.argsort(-by_channel, kind="stable")[:_WORST]
        both = float(np.sqrt(power) * np.sqrt(other))
        finite = np.where(np.isfinite(share), share, 0)
        spread = np.quantile(finite, (0.5, 0.95, 1)) if finite.size else np.zeros(3)
        return Difference(
            elements=count,
            not_finite=self.rows * self.seen.size - count,
            largest=self.largest,
            rms=float(np.sqrt(error / max(1, count))),
            relative=float(np.sqrt(error / power)) if power > 0 else (np.inf if error else 0.0),
            cosine=self.product / both if both > 0 else float(not error),
            snr=None if not error else float(10 * np.log10(max(power, 1e-300) / error)),
            channels=tuple((int(n), float(by_channel[n]), float(share[n])) for n in worst
                           if by_channel[n] > 0),
            spread=(float(spread[0]), float(spread[1]), float(spread[2])),
            profile=along(by_channel),
        )  # fmt: skip


def _judged(pair: TensorPair, sums: Sums, a: Array, b: Array, limit: float) -> tuple[str, str]:
    """Return the code of what is wrong with a tensor, and the words; "" where nothing is."""
    odd, found = pair.not_finite, pair.difference
    assert found is not None  # noqa: S101 - just made
    if odd.born or odd.both:
        here = f", {odd.both:,} of them in the reference, too" if odd.both else ""
        return "Q801", f"{odd.born + odd.both:,} of {a.size:,} values are not finite{here}"
    if odd.hidden:
        return (
            "Q608",
            f"{odd.hidden:,} of {a.size:,} values are finite where the reference's are not",
        )
    if sums.equal:
        return "", ""
    moved = _moved(a, b)
    if moved:
        return "Q603", moved
    dead = sums.dead()
    if dead.size:
        listed = ", ".join(map(str, dead[:4].tolist())) + (", ..." if dead.size > 4 else "")
        return (
            "Q616",
            f"{dead.size:,} of {sums.seen.size:,} channels are zero in every row: {listed}",
        )
    if found.relative > limit:
        return "Q616", (f"its error is {_percent(found.relative)} of its size, cosine"
                        f" {found.cosine:.4f}; {_percent(limit)} is the limit")  # fmt: skip
    return "", ""


def _percent(share: float) -> str:
    return f"{share:.3g} times" if share >= 10 else f"{share:.1%}"


def _moved(a: Array, b: Array) -> str:
    """Return how the same values lie elsewhere, "" where they do not."""
    if a.size > _SORTED or a.size < 4:
        return ""
    one, two = (np.ascontiguousarray(each, np.float32) for each in (a, b))
    if not np.array_equal(np.sort(one, axis=None), np.sort(two, axis=None), equal_nan=True):
        return ""
    for noun, left, right in (("channels", one.T, two.T), ("rows", one, two)):
        order = _order(left, right)
        if order is not None:
            away = np.flatnonzero(order != np.arange(len(order)))
            some = ", ".join(f"{n} holds {order[n]}" for n in away[:4].tolist())
            more = ", ..." if len(away) > 4 else ""
            return f"{len(away):,} of {len(order):,} {noun} are permuted: {some}{more}"
    return "the same values lie in other places"


def _order(one: Array, two: Array) -> npt.NDArray[np.intp] | None:
    """Return which row of `one` each row of `two` is, None where that is not clear."""
    if len(one) < 2:
        return None
    left, right = _digests(one), _digests(two)
    at = np.argsort(left, kind="stable")
    known = left[at]
    if (known[1:] == known[:-1]).any():
        return None
    order = at[np.minimum(np.searchsorted(known, right), len(at) - 1)]
    whole = len(np.unique(order)) == len(order)
    # Rows that only look alike by their digests are told apart here; some at a time.
    step = max(1, _SLAB // max(1, one.shape[1]))
    for start in range(0, len(two) if whole else 0, step):
        stop = start + step
        if not np.array_equal(one[order[start:stop]], two[start:stop], equal_nan=True):
            return None
    return order if whole else None


def _digests(rows: Array) -> npt.NDArray[np.uint64]:
    """Return a number for each row of float32, such that equal rows have equal ones."""
    odd = np.random.default_rng(1).integers(1 << 63, size=rows.shape[1], dtype=np.uint64) * 2 + 1
    found = np.zeros(len(rows), np.uint64)
    step = max(1, _SLAB // max(1, rows.shape[1]))
    for start in range(0, len(rows), step):
        some = np.ascontiguousarray(rows[start : start + step]) + np.float32(0)  # no -0
        words = some.view(np.uint32).astype(np.uint64) + np.uint64(1)
        found[start : start + step] = (words * odd).sum(axis=1, dtype=np.uint64)
    return found
