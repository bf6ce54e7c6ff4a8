"""Whether an error is what the scheme should cost, and if not, what kind of thing went wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from qassay.comparison.cost import hypotheses, places
from qassay.comparison.cost.facts import Cost
from qassay.comparison.cost.folds import Fold, folds
from qassay.comparison.cost.hypotheses import Idea, error_of, ratio_of, sample_rows
from qassay.comparison.cost.limits import (
    ABOVE,
    ABOVE_ROW,
    ACCEPT,
    BIAS,
    FEW,
    GAIN,
    LOOK,
    LOOK_GROUP,
    LOOK_ROW,
    LOOK_STEPS,
    NEAREST,
)
from qassay.comparison.cost.reading import Piece, Sides, measured, sample
from qassay.comparison.cost.remainder import columns_of, remainder
from qassay.comparison.cost.secondlook import look_again, spread_rows
from qassay.comparison.facts import Fault, Transformation
from qassay.kernels.cost import Of

Order = npt.NDArray[np.int64]
Others = Callable[[Sides], str]


@dataclass(slots=True)
class Judged:
    """What became of one weight.

    Attributes:
        cost: As both sides are.
        undone: Once what went wrong is undone; None where nothing did or nothing known.
        transformations: What turns one into the other, verified on every row.
        faults: What else there is to say.
        other: The tensor whose weights these are.
        notes: What was allowed for.
        left: The sides as they are best set against each other.
        fold: Factors of channels that leave what the scheme should cost.
        folded: The error with them.
    """

    cost: Cost
    undone: Cost | None = None
    transformations: list[Transformation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    other: str = ""
    notes: list[str] = field(default_factory=list)
    left: Sides | None = None
    fold: Fold | None = None
    folded: Cost | None = None


def judge(
    sides: Sides,
    others: Others,
    heads: Sequence[int] = (),
    *,
    converted: bool = False,
    pieces: Iterator[Piece] | None = None,
) -> Judged:
    """Measure a weight, and find out what went wrong if something did.

    Args:
        sides: The weight.
        others: Returns the name of another float tensor that these weights are, or "".
        heads: Numbers of attention heads, where rows may be in llama.cpp's rotary order.
        converted: Whether such an order is expected.
        pieces: The measures of the weight, where they are taken already.
    """
    found = Judged(_whole(sides, pieces), left=sides)
    _nonfinite(found)
    if not _odd(found.cost) or _sound(found.cost, sides):
        return found
    bad = _bad_rows(found.cost)
    idea = _explained(sides, found.cost, bad, tuple(heads), converted=converted)
    if idea is not None:
        _take(found, idea)
    elif _biased(found):
        return found
    elif found.cost.ratio > ABOVE:
        found.other = others(sides)
    if not found.other and not found.transformations:
        found.faults += remainder(found.cost, sides, bad)
        if found.cost.ratio > ABOVE:
            _scaled(found, sides)
    return found


def _scaled(found: Judged, sides: Sides) -> None:
    """See whether channels are scaled: sound where something before holds the inverse."""
    if not any(fault.kind == "unexplained" for fault in found.faults):
        return
    most = min(ACCEPT, GAIN * found.cost.ratio)
    rows = sample_rows(np.zeros(0, np.int64), sides.rows)
    for fold in folds(sides):
        scaled = fold.applied(sides)
        if ratio_of(error_of(scaled, rows, sides.weight.bits)) > ACCEPT:
            continue
        after = _whole(scaled)
        if after.ratio > most or (after.row_ratios() > ABOVE_ROW).any():
            continue
        found.fold, found.folded = fold, after
        parts = [name for name in ("columns", "rows") if getattr(fold, name) is not None]
        text = (
            f"{' and '.join(parts)} are scaled, each by its own factor, and nothing before or after"
            f" holds the inverse; with that undone the error is {after.ratio:.2g} times what it"
            f" should be, as it is {found.cost.ratio:.3g} times"
        )
        kept = [fault for fault in found.faults if fault.kind != "unexplained"]
        data = {"kind": "channels-scaled", "ratio": found.cost.ratio, "ratio_scaled": after.ratio}
        found.faults = [*kept, Fault("Q601", "channels-scaled", text, severe=True, data=data)]
        return


def _whole(sides: Sides, pieces: Iterator[Piece] | None = None) -> Cost:
    cost = Cost()
    for start, rows in measured(sides) if pieces is None else pieces:
        cost.add(start, rows)
    return cost


def _odd(cost: Cost) -> bool:
    rows = cost.row_ratios()
    return (
        cost.ratio > LOOK
        or cost.code_ratio > LOOK
        or bool((rows > LOOK_ROW).any())
        or cost.group[0] > LOOK_GROUP
        or (cost.steps[0] > LOOK_STEPS and cost.count(Of.ASTRAY) > 0)
        or max(abs(each) for each in _excess(cost)) > BIAS / 2
    )


def _sound(cost: Cost, sides: Sides) -> bool:
    """Tell whether codes are the nearest, and costs what a sound quantizer may leave."""
    if cost.code_ratio > NEAREST or max(abs(each) for each in _excess(cost)) > BIAS / 2:
        return False
    if cost.count(Of.HIDDEN) or cost.count(Of.BORN):
        return False
    bad = (cost.row_ratios() > LOOK_ROW) | (cost.group_ratios() > LOOK_GROUP)
    for rows, limit in ((spread_rows(sides.rows), LOOK), (np.flatnonzero(bad), math.inf)):
        if not rows.size:
            continue
        looked = look_again(sides, rows.astype(np.int64), cost.floor)
        ratios, groups = looked.row_ratios(), looked.group_ratios()
        if looked.ratio() > limit or ratios.max() > LOOK_ROW or groups.max() > LOOK_GROUP:
            return False
    return True


def _excess(cost: Cost) -> tuple[float, float]:
    return (
        cost.bias(Of.NEGATIVE, excess=True) or 0.0,
        cost.bias(Of.POSITIVE, excess=True) or 0.0,
    )


def _bad_rows(cost: Cost) -> Order:
    return np.flatnonzero(cost.row_ratios() > LOOK_ROW).astype(np.int64)


def _nonfinite(found: Judged) -> None:
    cost = found.cost
    odd = [cost.count(name) for name in (Of.HIDDEN, Of.BORN, Of.BOTH)]
    rows = (cost.hidden, cost.born, None)
    found.faults += nonfinite_faults(odd, cost.count(Of.COMPARED) + sum(odd), rows)


def nonfinite_faults(
    odd: Sequence[int], of: int, rows: Sequence[int | None] = (None, None, None)
) -> list[Fault]:
    """Return what there is to say of values that are not finite.

    Args:
        odd: How many are finite on the second side alone, on the first alone, on neither.
        of: How many values there are.
        rows: Where first each.
    """
    found = []
    for count, row, (kind, code, text) in zip(odd, rows, _NOT_FINITE, strict=True):
        if count:
            said = f"{count:,} of {of:,} values {text}"
            found.append(Fault(code, kind, said, count, row, data={"of": of}))
    return found


_NOT_FINITE = (
    ("hidden", "Q608", "are NaN or infinite in the source and ordinary numbers here"),
    ("born", "Q617", "are ordinary numbers in the source and NaN or infinite here"),
    ("both", "Q617", "are NaN or infinite on both sides: the source has them already"),
)


def _biased(found: Judged) -> bool:
    """Report codes that are rounded the wrong way; a zero point off by one is another thing."""
    below, above = _excess(found.cost)
    # Nearest codes can be off to one side, and codes chosen together make up for that: no fault.
    plain = (found.cost.bias(Of.NEGATIVE) or 0.0, found.cost.bias(Of.POSITIVE) or 0.0)
    wrong = [min(abs(more), abs(all_)) for more, all_ in zip((below, above), plain, strict=True)]
    if max(wrong) <= BIAS or found.cost.code_ratio < 1.1:
        return False
    if min(abs(below), abs(above)) > 0.8 and below * above > 0:
        return False
    # Codes rounded wrongly are never more than 1.5 steps off, but for what is clipped.
    if found.cost.code_ratio > 4 or (found.cost.steps[0] > 2.5 and not _mostly_near(found.cost)):
        return False
    kind = "another rounding"
    if abs(below - 1) < 0.25 and abs(above) < 0.15:
        kind = "(int)(x + 0.5): the cast cuts off toward zero, which is wrong below zero"
    elif abs(above + 1) < 0.25 and abs(below) < 0.15:
        kind = "(int)(x - 0.5), which is wrong above zero"
    elif abs(below - 0.5) < 0.15 and abs(above + 0.5) < 0.15:
        kind = "the fraction is cut off toward zero"
    elif abs(below + 0.5) < 0.15 and abs(above + 0.5) < 0.15:
        kind = "the fraction is rounded down"
    elif abs(below - 0.5) < 0.15 and abs(above - 0.5) < 0.15:
        kind = "the fraction is rounded up"
    text = (
        f"codes are off by {below:+.2f} steps on average for weights below zero and by {above:+.2f}"
        f" above ({kind}); the error is {found.cost.code_ratio:.2g} times what the nearest codes"
        " would cost"
    )
    data = {"negative_excess": below, "positive_excess": above, "kind": kind,
            "code_ratio": found.cost.code_ratio}  # fmt: skip
    found.faults.append(
        Fault("Q602", "rounding", text, max(1, found.cost.count(Of.ASTRAY)), data=data)
    )
    return True


def _mostly_near(cost: Cost) -> bool:
    """Tell whether all but clipped weights can be within 1.5 steps, by the mean square."""
    return cost.count(Of.CLIPPED) > 0 and cost.code_ratio < 3.5


def _explained(
    sides: Sides, cost: Cost, bad: Order, heads: tuple[int, ...], *, converted: bool
) -> tuple[Idea, Cost] | None:
    """Return the fault that, undone, leaves what the scheme should cost; verified on every row."""
    widespread = bad.size * 4 > sides.rows or cost.ratio > LOOK
    best: list[tuple[float, Idea]] = []
    if widespread:
        rows = sample_rows(bad, sides.rows)
        form = sample(sides, rows)[1]
        before = ratio_of(error_of(sides, rows, sides.weight.bits))
        for idea in hypotheses.ideas(sides, form, heads, converted=converted):
            after = ratio_of(error_of(idea.sides, rows, sides.weight.bits))
            if after <= min(ACCEPT, GAIN * before):
                best.append((after, idea))
                if idea.told.kind == "rotary-rows":
                    break
    best.sort(key=lambda each: each[0])
    for _, idea in best[:2]:
        done = _verified(idea, cost)
        if done is not None:
            return idea, done
    return _elsewhere(sides, cost, bad)


def _elsewhere(sides: Sides, cost: Cost, bad: Order) -> tuple[Idea, Cost] | None:
    rows = places.rows_elsewhere(sides, bad)
    if rows is not None:
        idea = Idea(rows[1], replace(sides, order=rows[0]))
        done = _verified(idea, cost)
        moved = rows[0] != np.arange(sides.rows)
        if done is not None and _better(done, cost, moved):
            return idea, done
    if sides.rows < FEW:
        return None
    before = columns_of(sides)
    columns = places.columns_elsewhere(sides, np.flatnonzero(before.ratios > LOOK_ROW))
    if columns is not None:
        moved = columns[0] != np.arange(sides.width)
        together, codes = places.undone_columns(sides, columns[0])
        told = columns[1]
        alone = replace(told, parts=("codes",), text=f"codes of {told.text}")
        for idea in (Idea(told, together), Idea(alone, codes)):
            after = columns_of(idea.sides).ratios[moved]
            # A few rows are like others by accident, but not as near as quantizing leaves them.
            if np.quantile(after, 0.9) > LOOK_ROW:
                continue
            if (after**2).sum() > GAIN**2 * (before.ratios[moved] ** 2).sum():
                continue
            done = _verified(idea, cost)
            if done is not None:
                return idea, done
    return None


def _better(after: Cost, before: Cost, moved: npt.NDArray[np.bool_]) -> bool:
    """Tell whether rows that were put elsewhere are much nearer there."""
    left, had = after.each(Of.ERR2)[moved], before.each(Of.ERR2)[moved]
    return bool(left.sum() <= GAIN**2 * had.sum())


def _verified(idea: Idea, before: Cost) -> Cost | None:
    """Return what an undone fault leaves, None where that is not what the scheme should cost."""
    after = _whole(idea.sides)
    if after.ratio > ACCEPT or after.total(Of.ERR2) >= before.total(Of.ERR2):
        return None
    left, had = after.row_ratios(), before.row_ratios()
    better = (left > LOOK_ROW).sum() <= 0.5 * (had > LOOK_ROW).sum()
    return after if better else None


def _take(found: Judged, explained: tuple[Idea, Cost]) -> None:
    idea, after = explained
    found.left = idea.sides
    found.undone = after
    if idea.told.code:
        found.transformations.append(idea.told)
    else:
        found.notes.append(
            f"{idea.told.text}, as its converter leaves them; compared in that order"
        )
        found.cost = after
        found.undone = None
        found.transformations.append(idea.told)
