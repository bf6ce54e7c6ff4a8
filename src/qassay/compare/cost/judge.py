"""Whether an error is what the scheme should cost, and if not, what kind of thing went wrong.

The limits were set by measuring sound files: round to nearest, searched scales (ggml's K-quants),
and methods that move codes away from the nearest on purpose (GPTQ, AutoRound). Sound tensors stay
below 1.4 times what they should cost, sound rows below 1.8; a row that is another row's, a zero
point off by one or a cast that cuts off the wrong way are above 2.5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.compare.cost import hypotheses, places
from qassay.compare.cost.facts import Cost
from qassay.compare.cost.folds import Fold, folds
from qassay.compare.cost.hypotheses import Idea, error_of, ratio_of, sample_rows
from qassay.compare.cost.reading import Piece, Sides, grid_of, measured, sample
from qassay.compare.facts import Fault, Transformation
from qassay.kernels import cost as kernels
from qassay.kernels.cost import Of

LOOK = 1.9
"""Times what it should cost, from which a tensor is looked at more closely."""
LOOK_ROW = 2.4
LOOK_GROUP = 4.0
LOOK_STEPS = 3.0
BIAS = 0.2
"""Steps of mean error of one sign, beyond that of the nearest codes (sound files: below 0.02)."""
ABOVE = 2.5
"""Times what it should cost, from which a tensor is reported."""
ABOVE_ROW = 4.0
ABOVE_GROUP = 6.0
ABOVE_COLUMN = 5.0
ACCEPT = 2.0
"""What is left of the error of a fault that is undone, at most."""
_GAIN = 0.6
_SAMPLED = 512

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
    if not _odd(found.cost):
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
        _remainder(found, sides, bad)
        if any(fault.kind == "unexplained" for fault in found.faults):
            _scaled(found, sides)
    return found


def _scaled(found: Judged, sides: Sides) -> None:
    """See whether channels are scaled: sound where something before holds the inverse."""
    rows = sample_rows(np.zeros(0, np.int64), sides.rows)
    for fold in folds(sides):
        scaled = fold.applied(sides)
        if ratio_of(error_of(scaled, rows, sides.weight.bits)) > ACCEPT:
            continue
        after = _whole(scaled)
        if after.ratio > ACCEPT or (after.row_ratios() > ABOVE_ROW).any():
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
        or cost.group[0] > LOOK_GROUP**2
        or (cost.steps[0] > LOOK_STEPS and cost.count(Of.ASTRAY) > 0)
        or max(abs(each) for each in _excess(cost)) > BIAS / 2
    )


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
    if max(abs(below), abs(above)) <= BIAS or found.cost.code_ratio < 1.1:
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
            if after <= min(ACCEPT, _GAIN * before):
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
        if done is not None:
            return idea, done
    columns = places.columns_elsewhere(sides, bad_columns(sides, LOOK_ROW)[0])
    if columns is not None:
        together, codes = places.undone_columns(sides, columns[0])
        told = columns[1]
        alone = replace(told, parts=("codes",), text=f"codes of {told.text}")
        for idea in (Idea(told, together), Idea(alone, codes)):
            done = _verified(idea, cost)
            if done is not None:
                return idea, done
    return None


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


def bad_columns(sides: Sides, limit: float) -> tuple[Order, npt.NDArray[np.float64], Any]:
    """Return columns whose error is far above what the nearest codes would cost.

    Returns:
        The columns, ascending; every column's ratio; decoded weights of the rows looked at.
    """
    rows = np.unique(np.linspace(0, sides.rows - 1, min(sides.rows, _SAMPLED)).astype(np.int64))
    ref, form = sample(sides, rows)
    new = form.values()
    grid, order = grid_of(form, sides.weight.bits)
    if order is None:
        order = np.arange(sides.width, dtype=np.int64)
    with np.errstate(all="ignore"):
        old = np.nan_to_num(ref[:, order].astype(np.float64), nan=0, posinf=0, neginf=0)
        error = np.nan_to_num(new[:, order].astype(np.float64) - old, nan=0, posinf=0, neginf=0)
        best = np.nan_to_num(kernels.nearest_error(old, grid), nan=0, posinf=0, neginf=0)
        own, least = (error**2).sum(axis=0), (best**2).sum(axis=0)
        usual = float(np.median(least))
        ratios = np.sqrt(own / np.maximum(least, max(0.25 * usual, 1e-300)))
    spread = np.empty_like(ratios)
    spread[order] = np.where(own > 0, ratios, 0)
    bad = np.flatnonzero(spread > limit).astype(np.int64)
    return bad, spread, new


def _remainder(found: Judged, sides: Sides, bad: Order) -> None:
    """Say what is wrong where nothing that is known explains it."""
    cost = found.cost
    columns, ratios, new = bad_columns(sides, ABOVE_COLUMN)
    lost = [int(at) for at in columns if not new[:, at].any()]
    rows = cost.row_ratios()
    if lost:
        text = f"{_many(len(lost), 'column')} decode to zeros and are none in the source"
        found.faults.append(
            Fault("Q601", "columns-lost", text, len(lost), 0, lost[0], severe=True,
                  data={"kind": "columns-lost", "columns": lost[:64]})
        )  # fmt: skip
        return
    empty = _empty_rows(sides, bad[rows[bad] > LOOK_ROW]) if bad.size else []
    if empty:
        text = f"{_many(len(empty), 'row')} decode to zeros and are none in the source"
        found.faults.append(
            Fault("Q601", "rows-lost", text, len(empty), empty[0], severe=True,
                  data={"kind": "rows-lost", "rows": empty[:64]})
        )  # fmt: skip
        return
    if _out_of_range(found, sides):
        return
    above = (
        cost.ratio > ABOVE
        or bool((rows > ABOVE_ROW).any())
        or cost.group[0] > ABOVE_GROUP**2
        or columns.size > 0
    )
    if above:
        found.faults.append(_above(cost, rows, columns, ratios, sides))


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _empty_rows(sides: Sides, rows: Order) -> list[int]:
    some = rows[:4096]
    found: list[int] = []
    for at in range(0, some.size, 256):
        piece = some[at : at + 256]
        form = sample(sides, piece)[1]
        zero = ~form.values().any(axis=1)
        found += [int(row) for row in piece[zero]]
    return found


def _out_of_range(found: Judged, sides: Sides) -> bool:
    """Report weights that no code of their group reaches, where those make the error."""
    cost = found.cost
    worst, row, column = cost.group
    if worst <= LOOK_GROUP**2 or not cost.count(Of.CLIPPED):
        return False
    form = sample(sides, np.array([row], np.int64))[1]
    ref = sides.source(row, row + 1)[0]
    inside = np.flatnonzero(form.groups == form.groups[column])
    old, new = ref[inside].astype(np.float64), form.values()[0, inside].astype(np.float64)
    grid, order = grid_of(form, sides.weight.bits)
    best = kernels.nearest_error(ref[None] if order is None else ref[None, order], grid)[0]
    at = inside if order is None else np.flatnonzero(np.isin(order, inside))
    with np.errstate(all="ignore"):
        if float((best[at] ** 2).sum()) < 0.5 * float(((new - old) ** 2).sum()):
            return False
    one_sided = bool((old > 0).all() or (old < 0).all())
    step = abs(float(form.scales[0, form.groups[column]]))
    most = float(np.abs(new - old).max()) / step if step > 0 else float("inf")
    seen = cost.count(Of.CLIPPED)
    kind = "one-sided-group" if one_sided else "out-of-range"
    why = (
        ": all weights of the group have one sign, and the zero point was cut off at the end of"
        " its range instead of extending the range to zero"
        if one_sided
        else ""
    )
    text = (
        f"{seen:,} weights lie beyond all codes of their group: codes are saturated at one end, and"
        f" the worst group is off by up to {most:.3g} steps{why}. It is the quantizer's"
        " arithmetic, not the order of codes: no other code would be nearer"
    )
    found.faults.append(
        Fault("Q601", kind, text, seen, row, column, severe=most > 2,
              data={"kind": kind, "largest_steps": most, "layout": False})
    )  # fmt: skip
    return True


def _above(
    cost: Cost,
    rows: npt.NDArray[np.float64],
    columns: Order,
    ratios: npt.NDArray[np.float64],
    sides: Sides,
) -> Fault:
    label = sides.weight.label
    text = f"the error is {cost.ratio:.3g} times what {label} should cost here"
    count, worst = 1, int(rows.argmax())
    place: tuple[int | None, int | None] = (worst, None)
    if cost.ratio <= ABOVE:
        if rows[worst] > ABOVE_ROW:
            count = int((rows > ABOVE_ROW).sum())
            text = (
                f"{_many(count, 'row')} of {rows.size:,} cost up to {rows[worst]:.3g} times what"
                f" {label} should cost"
            )
        elif columns.size:
            count = int(columns.size)
            column = int(ratios.argmax())
            text = (
                f"{_many(count, 'column')} of {ratios.size:,} cost up to {ratios[column]:.3g} times"
                " what the nearest codes would"
            )
            place = (None, column)
        else:
            text = f"one group costs {cost.group[0] ** 0.5:.3g} times what {label} should cost"
            place = cost.group[1:]
    text += (
        f" (codes: {cost.code_ratio:.3g} times what the nearest would cost; scales:"
        f" {cost.scale_ratio:.3g} times), and nothing known explains it"
    )
    data = {"kind": "unexplained", "ratio": cost.ratio, "code_ratio": cost.code_ratio,
            "scale_ratio": cost.scale_ratio}  # fmt: skip
    return Fault("Q601", "unexplained", text, count, *place, severe=cost.ratio > 6, data=data)
