"""What turns one weight into the other: proposed from sketches and samples, proven on every row.

Each part of a weight (codes, zero points, scales, minimums) is explained by itself, because that
is how packers go wrong: an order dropped in the zero points, groups moved in the scales. Only
where every part is explained is anything claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qassay.comparison.direct import Sides
from qassay.comparison.facts import PARTS, Difference, Transformation
from qassay.comparison.forms import Form, same
from qassay.comparison.orders import (
    Order,
    head_counts,
    matching,
    named,
    roll_of,
    rotary,
    summary,
)
from qassay.comparison.sketches import Sketch, sketch
from qassay.comparison.values import elementwise, transposed, whole_scale

SAMPLE = 256
"""Rows on which proposals are tried before a pass over everything."""

_WORDS = {"codes": "codes", "zeros": "zero points", "scales": "scales", "minimums": "minimums"}


@dataclass(frozen=True, slots=True)
class Context:
    """What is known of the models.

    Attributes:
        converted: Whether one side is GGUF and the other is not.
        heads: Numbers of attention heads that their configurations tell.
    """

    converted: bool = False
    heads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Idea:
    """A transformation of some parts, and how to test it on rows; no test: proven already."""

    transformation: Transformation
    test: Callable[[Form, Form], bool] | None = None


@dataclass(slots=True)
class Ideas:
    """Proposals by part, the likeliest first."""

    by_part: dict[str, list[Idea]] = field(default_factory=dict)

    def add(self, part: str, idea: Idea) -> None:
        """Propose `idea` for a part."""
        self.by_part.setdefault(part, []).append(idea)


def explain(
    sides: Sides, found: Difference, context: Context, *, q_or_k: bool = False
) -> tuple[Transformation, ...] | None:
    """Return what turns the first weight into the second, None where nothing known does.

    Args:
        sides: The weights.
        found: How they differ as they are.
        context: What is known of the models.
        q_or_k: Whether the weight is a query or key projection.
    """
    if not sides.comparable:
        return None
    whole = whole_scale(sides, found)
    if whole is None:
        return None
    wrong = [name for name in PARTS if name in found.parts and found.parts[name].different]
    if not wrong:
        return whole
    one, two = sides.forms(0, min(SAMPLE, _rows(sides)))
    narrow = np.array_equal(one.groups, two.groups)
    if not narrow and one.scales.shape[1] == two.scales.shape[1]:
        moved = _groups_moved(sides, one, two)
        if moved is not None:
            return (*whole, moved)
    if any(found.drift) and not _elementwise(sides.a.bits, one, two):
        return None  # codes changed their numbers, not their places, and not all alike
    a, b = sketch(sides, spread=not narrow)
    every = _whole_rows(a, b, context, q_or_k=q_or_k)
    if every is not None:
        return (*whole, every)
    ideas = Ideas()
    _propose(ideas, wrong, sides, a, b, (one, two), narrow=narrow)
    chosen = _prove(sides, ideas, wrong, (one, two), narrow=narrow)
    return None if chosen is None else (*whole, *_merged(chosen))


def _rows(sides: Sides) -> int:
    return int(np.prod(sides.a.shape[:-1]))


def _elementwise(bits: int, one: Form, two: Form) -> bool:
    """Tell whether something that changes every code alike explains a sample."""
    return any(test(one, two) for _, test in elementwise("codes", bits, one, two))


def _groups_moved(sides: Sides, one: Form, two: Form) -> Transformation | None:
    """Return what is to be said where only the assignment of columns to groups differs."""
    for _, left, right in sides.pieces():
        for name in PARTS:
            a, b = left.part(name), right.part(name)
            if a is None or b is None:
                continue
            if a.shape != b.shape or not same(a, b).all():
                return None
    moved = np.flatnonzero(one.groups != two.groups)
    sizes = [np.bincount(form.groups, minlength=one.scales.shape[1]) for form in (one, two)]
    shuffled = np.array_equal(sizes[0], sizes[1])
    how = "in another order" if shuffled else "and other numbers of columns a group"
    return Transformation(
        "columns-in-other-groups",
        "Q604",
        ("groups",),
        f"{moved.size} of {one.groups.size} columns are assigned to other groups ({how}: g_idx)",
        {"columns": int(moved.size), "of": int(one.groups.size), "first": int(moved[0]),
         "shuffled": shuffled},
    )  # fmt: skip


def _whole_rows(a: Sketch, b: Sketch, context: Context, *, q_or_k: bool) -> Transformation | None:
    """Return the permutation that moves whole rows, with all that belongs to them."""
    one, two = a.all_rows(), b.all_rows()
    if q_or_k:
        for heads in dict.fromkeys((*context.heads, *head_counts(one.size))):
            order = rotary(one.size, heads)
            if order is None:
                continue
            for way, kept in (("", order), (" undone", np.argsort(order))):
                if np.array_equal(two, one[kept]):
                    return Transformation(
                        "rotary-rows",
                        "" if context.converted else "Q603",
                        (),
                        f"rows of each of {heads} heads in llama.cpp's rotary order{way}",
                        {"heads": heads},
                    )
    order = matching(one, two)
    if order is None:
        return None
    return _permuted_rows(order, ())


def _permuted_rows(order: Order, parts: tuple[str, ...]) -> Transformation:
    told = summary(order)
    told["axis"] = "rows"
    of_scales = bool(parts) and "codes" not in parts
    code = "Q604" if of_scales else "Q603"
    shift = roll_of(order)
    if shift is not None:
        told["rolled"] = shift
    moved = f"{told['moved']:,} of {told['of']:,} moved"
    how = f"rolled by {shift} rows" if shift is not None else f"permuted between rows ({moved})"
    text = f"{_subject(parts)} are {how}"
    return Transformation("rows-permuted", code, parts, text, told)


def _subject(parts: Sequence[str]) -> str:
    words = [_WORDS[name] for name in parts if name in _WORDS]
    return " and ".join(words) if words else "whole rows"


def _propose(
    ideas: Ideas,
    wrong: Sequence[str],
    sides: Sides,
    a: Sketch,
    b: Sketch,
    sample: tuple[Form, Form],
    *,
    narrow: bool,
) -> None:
    one, two = sample
    bits = sides.a.bits
    for name in wrong:
        left, right = one.part(name), two.part(name)
        if left is None or right is None or name not in a.rows or name not in b.rows:
            continue
        for kind, text, order in named(a.rows[name].size):
            if np.array_equal(b.rows[name], a.rows[name][order]):
                ideas.add(name, Idea(_named(kind, text, name, "rows")))
        if name == "codes":
            for kind, text, order in named(one.codes.shape[1]):
                ideas.add(name, Idea(_named(kind, text, name, "columns"), _takes(name, order)))
        if narrow or name == "codes":
            for transformation, test in elementwise(name, bits, one, two):
                ideas.add(name, Idea(transformation, test))
        if name != "codes" and narrow:
            for transformation, order in _groups(name, a, b):
                ideas.add(name, Idea(transformation, _takes(name, order)))
            turned = transposed(sides, name)
            if turned is not None:
                ideas.add(name, Idea(turned))
        order_ = matching(a.rows[name], b.rows[name])
        if order_ is not None:
            ideas.add(name, Idea(_permuted_rows(order_, (name,))))
    _propose_columns(ideas, wrong, a, b)


def _propose_columns(ideas: Ideas, wrong: Sequence[str], a: Sketch, b: Sketch) -> None:
    """Propose one permutation of the columns, with their groups or without."""
    together = matching(a.all_columns(), b.all_columns())
    alone = matching(a.columns["codes"], b.columns["codes"])
    if together is not None:
        text = "columns are permuted, each with its scale"
        told = Transformation("columns-permuted", "Q603", (), text, _columns(together))
        for name in wrong:
            ideas.add(name, Idea(told, _takes(name, together, wide=True)))
    if alone is not None and "codes" in wrong:
        text = "codes are permuted between columns"
        told = Transformation("columns-permuted", "Q603", ("codes",), text, _columns(alone))
        ideas.add("codes", Idea(told, _takes("codes", alone)))


def _columns(order: Order) -> dict[str, Any]:
    return {**summary(order), "axis": "columns"}


def _named(kind: str, text: str, part: str, axis: str) -> Transformation:
    return Transformation(kind, "Q606", (part,), text, {"axis": axis})


def _groups(name: str, a: Sketch, b: Sketch) -> Iterator[tuple[Transformation, Order]]:
    """Yield how groups of a part may have moved along the rows."""
    one, two = a.columns[name], b.columns[name]
    if one.shape != two.shape:
        return
    count = one.size
    if count <= 4096:
        for shift in range(1, count):
            order = (np.arange(count) - shift) % count
            if np.array_equal(two, one[order]):
                by = shift if shift <= count // 2 else shift - count
                noun = "group" if abs(by) == 1 else "groups"
                text = f"{_WORDS[name]} are rolled by {by} {noun}"
                data = {"groups": by, "of": count}
                yield Transformation("groups-rolled", "Q604", (name,), text, data), order
                break
    order_ = matching(one, two)
    if order_ is not None:
        text = f"{_WORDS[name]} are permuted between groups"
        told = Transformation("groups-permuted", "Q604", (name,), text, summary(order_))
        yield told, order_


def _takes(name: str, order: Order, *, wide: bool = False) -> Callable[[Form, Form], bool]:
    """Return a test that a part of the second form is one of the first, columns reordered."""

    def test(one: Form, two: Form) -> bool:
        left, right = one.part(name), two.part(name)
        if left is None or right is None:
            return left is right
        if wide and name != "codes":
            left, right = left[:, one.groups], right[:, two.groups]
        return left.shape == right.shape and bool(same(left[:, order], right).all())

    return test


def _prove(
    sides: Sides,
    ideas: Ideas,
    wrong: Sequence[str],
    sample: tuple[Form, Form],
    *,
    narrow: bool,
) -> dict[str, Transformation] | None:
    """Return for each part the first idea that holds on every row; None where a part has none."""
    alive = {
        name: [
            idea
            for idea in ideas.by_part.get(name, [])
            if idea.test is None or idea.test(*_laid(sample, name, narrow=narrow))
        ]
        for name in wrong
    }
    for _, one, two in sides.pieces():
        if not all(alive.values()):
            return None
        forms = (one, two)
        for name, left in alive.items():
            alive[name] = [
                idea
                for idea in left
                if idea.test is None or idea.test(*_laid(forms, name, narrow=narrow))
            ]
    if not all(alive.values()):
        return None
    _prefer_shared(alive)
    return {name: left[0].transformation for name, left in alive.items()}


def _laid(forms: tuple[Form, Form], name: str, *, narrow: bool) -> tuple[Form, Form]:
    if narrow or name == "codes":
        return forms
    return forms[0].spread(), forms[1].spread()


def _prefer_shared(alive: dict[str, list[Idea]]) -> None:
    """Put first what explains every part at once: one cause is likelier than several."""
    for idea in next(iter(alive.values())):
        what = idea.transformation
        if len(alive) > 1 and all(
            any(other.transformation is what for other in left) for left in alive.values()
        ):
            for left in alive.values():
                left.sort(key=lambda other: other.transformation is not what)
            return


def _merged(chosen: dict[str, Transformation]) -> tuple[Transformation, ...]:
    """Return one transformation for all parts that were changed alike."""
    found: list[Transformation] = []
    for told in chosen.values():
        if told in found:
            continue
        twin = next((at for at, each in enumerate(found) if _alike(each, told)), None)
        if twin is None:
            found.append(told)
            continue
        parts = (*found[twin].parts, *told.parts)
        text = told.text.replace(_subject(told.parts), _subject(parts), 1)
        found[twin] = Transformation(told.kind, found[twin].code, parts, text, found[twin].data)
    return tuple(_worded(each) for each in found)


def _alike(one: Transformation, two: Transformation) -> bool:
    if not one.parts or not two.parts or one.kind != two.kind:
        return False
    if one.code == "Q606":
        return one.kind != "nibbles-swapped" or _WORDS[one.parts[0]] != _WORDS[two.parts[0]]
    return one.data == two.data


def _worded(told: Transformation) -> Transformation:
    """Return a transformation that says of what it is, if its text does not yet."""
    if told.code != "Q606":
        return told
    text = f"{told.text}, in {_subject(told.parts)}"
    return Transformation(told.kind, told.code, told.parts, text, told.data)
