"""Channels that are scaled on purpose: AWQ and SmoothQuant multiply columns and divide before.

`W x = (W diag(c)) (diag(1/c) x)`: the columns of a weight are multiplied by c, and the norm before
it, or the rows of the weight before it, divided. So scaled columns are sound where such a partner
holds the inverse, and a fault where none does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qassay.comparison.cost.facts import Cost
from qassay.comparison.cost.reading import Sides, sample
from qassay.comparison.facts import Pair, Transformation
from qassay.comparison.weights import Plain
from qassay.kernels.cost import Floats

NEAR = 0.04
"""How far factors of partners may be apart: each is fitted through the rounding of 4 bits."""
_SAMPLED = 512
_ROOM = 1 << 21
"""Weights that factors are fitted from, at most."""
_ROUNDS = 6
"""Rounds in which factors of rows and of columns are fitted in turn."""

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Fold:
    """Factors of the columns and rows of a weight, None where they are 1."""

    columns: Doubles | None = None
    rows: Doubles | None = None

    @property
    def both(self) -> bool:
        """Whether rows and columns are scaled."""
        return self.columns is not None and self.rows is not None

    def applied(self, sides: Sides) -> Sides:
        """Return sides of which the float one is scaled alike."""
        one = None if self.columns is None else self.columns.astype(np.float32)
        two = None if self.rows is None else self.rows.astype(np.float32)
        return replace(sides, factors=one, row_factors=two)


def folds(sides: Sides) -> Iterator[Fold]:
    """Yield factors that may have been folded in: of columns, of rows, of both."""
    count = max(1, min(sides.rows, _SAMPLED, _ROOM // max(1, sides.width)))
    rows = np.unique(np.linspace(0, sides.rows - 1, count).astype(np.int64))
    ref, form = sample(sides, rows)
    new = form.values()
    columns = _factors(ref, new, axis=0)
    if columns is not None:
        yield Fold(columns=columns)
    every = _row_factors(sides, None)
    if every is not None:
        yield Fold(rows=every)
    for _ in range(_ROUNDS):
        if columns is None:
            return
        some = _factors((ref * columns).astype(np.float32), new, axis=1)
        if some is None:
            return
        columns = _factors((ref * some[:, None]).astype(np.float32), new, axis=0)
    if columns is not None:
        every = _row_factors(sides, columns)
        if every is not None:
            yield Fold(columns, every)


def _row_factors(sides: Sides, columns: Doubles | None) -> Doubles | None:
    found = []
    step = max(1, (1 << 21) // max(1, sides.width))
    for start in range(0, sides.rows, step):
        stop = min(start + step, sides.rows)
        ref = sides.source(start, stop)
        if columns is not None:
            ref = (ref * columns).astype(np.float32)
        part = _factors(ref, sides.form(start, stop).values(), axis=1)
        if part is None:
            return None
        found.append(part)
    return np.concatenate(found)


def _factors(ref: Floats, new: Floats, axis: int) -> Doubles | None:
    """Return the factor of each column (axis 0) or row (axis 1) that fits best."""
    with np.errstate(all="ignore"):
        one = np.nan_to_num(ref.astype(np.float64), nan=0, posinf=0, neginf=0)
        two = np.nan_to_num(new.astype(np.float64), nan=0, posinf=0, neginf=0)
        norm = (one * one).sum(axis=axis)
        found = np.where(norm > 0, (one * two).sum(axis=axis) / norm, 1.0)
    if not (np.isfinite(found) & (found > 0)).all():
        return None
    return found


def settle_folds(
    kept: Sequence[tuple[Pair, Fold, Cost]], norms: Sequence[tuple[Pair, Plain, Plain]]
) -> None:
    """Take back what was said of scaled channels where a partner holds the inverse.

    Args:
        kept: Weights whose error is what it should be once channels are scaled.
        norms: Tensors of one axis that differ, with both sides.
    """
    used: set[int] = set()
    for pair, fold, after in kept:
        missing = False
        # Of rows and columns together, a factor may go to either.
        free = fold.both
        for mine, of_columns in ((fold.columns, True), (fold.rows, False)):
            if mine is None:
                continue
            partners = [
                other
                for other, theirs, _ in kept
                if other is not pair
                and _inverse(
                    mine, theirs.rows if of_columns else theirs.columns, free or theirs.both
                )
            ]
            beside = [one for one, a, b in norms if of_columns and _norm_is(mine, a, b, free)]
            missing |= not partners and not beside
            used |= {id(one) for one in beside}
        if missing:
            continue
        pair.faults = [fault for fault in pair.faults if fault.kind != "channels-scaled"]
        text = (
            "channels are scaled (as AWQ and SmoothQuant do), and what is before holds the inverse"
        )
        if not pair.faults and pair.relation == "different":
            pair.relation = "quantized"
        pair.transformations = (Transformation("channels-scaled", "", (), text, _told(fold)),)
        pair.cost, pair.undone = after, None
    for pair, _, _ in norms:
        if id(pair) in used:
            pair.relation, pair.faults = "equal-up-to", []
            text = "channels are divided by what the weight after it is multiplied by"
            pair.transformations = (Transformation("channels-scaled", "", ("values",), text, {}),)


def _told(fold: Fold) -> dict[str, list[float]]:
    parts = {"columns": fold.columns, "rows": fold.rows}
    return {
        name: [float(f"{part.min():.4g}"), float(f"{part.max():.4g}")]
        for name, part in parts.items()
        if part is not None
    }


def _inverse(one: Doubles, two: Doubles | None, free: bool) -> bool:
    """Tell whether factors are each other's inverse; `free`: but for one factor."""
    if two is None or one.size != two.size:
        return False
    product = one * two
    with np.errstate(all="ignore"):
        product = product / np.median(product) if free else product
    return bool(np.median(np.abs(product - 1)) < NEAR and np.ptp(one) > NEAR)


def _norm_is(factors: Doubles, a: Plain, b: Plain, free: bool) -> bool:
    if a.size != factors.size:
        return False
    old, new = a.read(0, a.size).astype(np.float64), b.read(0, b.size).astype(np.float64)
    with np.errstate(all="ignore"):
        for plus in (0.0, 1.0):  # Gemma's norms multiply by 1 + w
            if _inverse(factors, np.nan_to_num((new + plus) / (old + plus)), free):
                return True
    return False
