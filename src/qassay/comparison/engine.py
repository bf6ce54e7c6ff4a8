"""Two containers, weight by weight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any

from qassay.comparison import names
from qassay.comparison.cost import reading
from qassay.comparison.cost.facts import Cost
from qassay.comparison.cost.folds import Fold, settle_folds
from qassay.comparison.cost.pairs import Floats, compare_cost, is_float
from qassay.comparison.cost.steps import steps_of
from qassay.comparison.direct import Sides, differ
from qassay.comparison.entries import Entries, Match, entries_of, matches
from qassay.comparison.facts import Alone, Comparison, Pair, Transformation
from qassay.comparison.metadata import heads_of, metadata_differences
from qassay.comparison.plain import compare_plain
from qassay.comparison.search import Context, explain
from qassay.comparison.weights import (
    Entry,
    Plain,
    Unread,
    Weight,
    is_quantized,
    label_of,
    place_of,
    rows_of,
)
from qassay.core.container import Container
from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.encodings.registry import for_stored_type

_PEEK = 8
"""Rows by which weights are told apart when another one's are looked for."""

_ROTATED = ("q_proj", "k_proj", "attn_q.", "attn_k.")
"""What is in the names of tensors whose rows llama.cpp's converter may permute."""

Progress = Callable[[int], None]

_SAME_VALUES = Transformation(
    "same-values", "", (), "codes or scales differ, and every decoded weight is equal"
)


def compare_containers(
    a: Container, b: Container, progress: Progress | None = None, *, pictures: bool = True
) -> Comparison:
    """Compare every weight that both sides have, and list those that one side has alone.

    Args:
        a: The reference.
        b: What is set against it.
        progress: Called with the number of bytes just read.
        pictures: Whether to look how errors are spread over a step, which no verdict needs.
    """
    one, two = entries_of(a), entries_of(b)
    found = Comparison((a.path, b.path), metadata=metadata_differences(a, b))
    context = Context(one.gguf != two.gguf, heads_of(a, b))
    known = Known(one, two, pictures=pictures)
    broken = (_not_whole(a), _not_whole(b))
    with known.ahead:
        for match, after in pairwise(chain([None], matches(one, two), [None])):
            _begin(after, known)
            if match is None:
                continue
            if match.a is None or match.b is None:
                _alone(found, match, one, two, broken)
                continue
            pair = compare_entries(match, context, known)
            found.pairs.append(pair)
            if progress is not None:
                progress(pair.nbytes)
    settle_folds(known.folds, known.norms)
    return found


def _begin(match: Match | None, known: Known) -> None:
    """Have the weight that is next measured already, if it will be set against a float one."""
    if match is None or match.a is None or match.b is None or _incomparable(match.a, match.b):
        return
    if is_quantized(match.a) != is_quantized(match.b):
        plain, weight = _float_first(match.a, match.b)
        if _squeezed(plain.shape) == _squeezed(weight.shape):
            known.ahead.start(reading.Sides(plain, weight))


def _float_first(a: Entry, b: Entry) -> tuple[Plain, Weight]:
    plain, weight = (a, b) if isinstance(a, Plain) else (b, a)
    assert isinstance(plain, Plain)  # noqa: S101 - one of both is
    assert not isinstance(weight, (Plain, Unread))  # noqa: S101
    return plain, weight


def _not_whole(container: Container) -> str:
    """Return why a tensor that a container lacks may only not have been read; "" where it may not.

    A shard that is missing or a header that breaks off takes tensors along: they are not lost from
    the model, and nothing is known of them.
    """
    if not container.skipped:
        return ""
    lost = container.skipped[0]
    return (
        f"{container.path} was not read whole, and may hold it ({safe(lost.name)}: {lost.reason})"
    )


def _alone(
    found: Comparison, match: Match, one: Entries, two: Entries, broken: tuple[str, str]
) -> None:
    entry, side, lacking = (match.a, 0, two) if match.b is None else (match.b, 1, one)
    assert entry is not None  # noqa: S101 - one of both is there
    path, tensor = place_of(entry)
    if names.COMPUTED.search(tensor):
        found.computed.append(tensor)
        return
    reason = entry.reason if isinstance(entry, Unread) else ""
    if not reason and match.name not in lacking.by_name:
        reason = lacking.unread.get(names.split(match.name)[0], "")
    reason = reason or broken[1 - side]
    if not reason:
        found.alone.append(Alone(tensor, path, side, label_of(entry)))
        return
    shape = entry.stored.shape if isinstance(entry, Unread) else entry.shape
    sides = (label_of(entry), "") if side == 0 else ("", label_of(entry))
    found.pairs.append(
        Pair(match.name, tensor, path, sides, shape, relation="not-compared", reason=reason)
    )


def compare_entries(match: Match, context: Context, known: Known) -> Pair:
    """Compare two entries that belong together."""
    a, b = match.a, match.b
    assert a is not None  # noqa: S101 - the caller looked
    assert b is not None  # noqa: S101
    path, tensor = place_of(b)
    pair = Pair(
        match.name,
        tensor,
        path,
        (label_of(a), label_of(b)),
        a.stored.shape if isinstance(a, Unread) else a.shape,
        nbytes=_nbytes(a) + _nbytes(b),
    )
    if _is_empty(a) and _is_empty(b):
        _compare_empty(a, b, pair)
        return pair
    reason = _incomparable(a, b)
    if not reason:
        try:
            _compare(a, b, pair, context, known)
        except InputError as error:  # a file shrank, or is gone
            reason = error.message
    if reason:
        pair.relation, pair.reason = "not-compared", reason
        pair.transformations, pair.difference = (), None
        pair.cost, pair.undone, pair.faults = None, None, []
    return pair


def _is_empty(entry: Entry) -> bool:
    """Tell whether an entry is a sound tensor that has an axis of 0."""
    return (
        isinstance(entry, Unread)
        and entry.stored.readable
        and not entry.stored.size
        and not entry.stored.part_of
        and for_stored_type(entry.stored.type) is not None
    )


def _compare_empty(a: Entry, b: Entry, pair: Pair) -> None:
    assert isinstance(a, Unread)  # noqa: S101 - the caller looked
    assert isinstance(b, Unread)  # noqa: S101
    if a.stored.shape != b.stored.shape:
        _other_shape(pair, a.stored.shape, b.stored.shape)


def _compare(a: Entry, b: Entry, pair: Pair, context: Context, known: Known) -> None:
    """Fill in what became of two entries of one kind."""
    q_or_k = any(part in pair.name for part in _ROTATED)
    if is_quantized(a) != is_quantized(b):
        _compare_cost(a, b, pair, context, known, q_or_k=q_or_k)
    elif not isinstance(a, Plain) or not isinstance(b, Plain):
        _compare_weights(a, b, pair, context, known, q_or_k=q_or_k)  # type: ignore[arg-type]
    elif not _same_shape(a.shape, b.shape):
        _other_shape(pair, a.shape, b.shape)
    else:
        heads = context.heads if q_or_k and context.converted else ()
        norm = context.converted and "norm" in pair.name
        compare_plain(a, b, pair, heads=heads, norm=norm)
        if pair.relation == "different" and len(_squeezed(a.shape)) == 1 and is_float(a):
            known.norms.append((pair, a, b))


def _compare_cost(
    a: Entry, b: Entry, pair: Pair, context: Context, known: Known, *, q_or_k: bool
) -> None:
    """Measure a quantized weight against a float one; the float side is the reference."""
    plain, weight = (a, b) if isinstance(a, Plain) else (b, a)
    assert isinstance(plain, Plain)  # noqa: S101 - one of both is
    assert not isinstance(weight, (Plain, Unread))  # noqa: S101
    if not _same_shape(plain.shape, weight.shape):
        _other_shape(pair, a.shape, b.shape)  # type: ignore[union-attr]
        return
    if plain is b:
        pair.notes.append("the second side is float: the first was measured against it")
    floats, name = known.floats(0 if plain is a else 1), pair.name if plain is a else pair.tensor
    heads = context.heads if q_or_k else ()
    done = compare_cost(
        plain,
        weight,
        pair,
        floats,
        name,
        heads,
        converted=context.converted and q_or_k,
        pieces=known.ahead.pieces(plain, weight),
    )
    if known.pictures:
        done.cost.histogram = steps_of(plain, weight)
    if done.fold is not None and done.folded is not None:
        known.folds.append((pair, done.fold, done.folded))


def _nbytes(entry: Entry) -> int:
    if isinstance(entry, Unread):
        return 0
    if isinstance(entry, Plain):
        return entry.size * entry.encoding.block_bytes
    return entry.nbytes


def _incomparable(a: Entry, b: Entry) -> str:
    for entry in (a, b):
        if isinstance(entry, Unread):
            return entry.reason
    for entry in (a, b):
        if isinstance(entry, Plain) and is_quantized(a) != is_quantized(b) and not is_float(entry):
            first, second = label_of(a), label_of(b)
            return f"one side holds integers and the other is quantized ({first}, {second})"
    return ""


def _same_shape(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
    """Tell whether two shapes are one but for axes of 1 that one of them leaves out.

    `[N, 1]` and `[1, N]` are not: a runtime that multiplies by them does different things.
    """
    return one == two or (len(one) != len(two) and _squeezed(one) == _squeezed(two))


def _squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dim for dim in shape if dim != 1)


def _other_shape(pair: Pair, one: tuple[int, ...], two: tuple[int, ...]) -> None:
    pair.relation = "different"
    pair.notes.append(f"shapes differ: {list(one)} against {list(two)}")


def _compare_weights(
    a: Weight, b: Weight, pair: Pair, context: Context, known: Known, *, q_or_k: bool
) -> None:
    if not _same_shape(a.shape, b.shape):
        _other_shape(pair, a.shape, b.shape)
        return
    sides = Sides.of(a, b)
    found = differ(sides)
    pair.difference = found
    if a.whole is not None and b.whole is not None and a.whole.divides != b.whole.divides:
        pair.notes.append(
            "the scale of the whole tensor is a divisor on one side and a multiplier on the"
            " other; they were compared as reciprocals, to one unit in the last place"
        )
    if found.same_form:
        return
    if not found.weights.different and not found.comparable:
        pair.notes.append(f"encodings differ ({a.label}, {b.label}), every decoded weight is equal")
        return
    told = explain(sides, found, context, q_or_k=q_or_k)
    if told is None and not found.weights.different:
        told = (_SAME_VALUES,)
    if told is not None:
        pair.relation = "equal-up-to"
        # What changes no weight is no fault, whatever it is.
        pair.transformations = tuple(
            each if found.weights.different else replace(each, code="") for each in told
        )
        return
    pair.relation = "different"
    pair.other = known.holds(b, pair.name)


class Known:
    """The first side's weights by what their first rows hold, looked up when one is different."""

    def __init__(
        self, entries: Entries, others: Entries | None = None, *, pictures: bool = True
    ) -> None:
        self.ahead = reading.Ahead()
        self.pictures = pictures
        self._entries = entries
        self._sides = (entries, entries if others is None else others)
        self._floats: dict[int, Floats] = {}
        self.folds: list[tuple[Pair, Fold, Cost]] = []
        self.norms: list[tuple[Pair, Plain, Plain]] = []
        self._by_rows: Mapping[bytes, list[tuple[str, Weight]]] | None = None

    def floats(self, side: int) -> Floats:
        """Return the float tensors of one side."""
        if side not in self._floats:
            self._floats[side] = Floats(self._sides[side].by_name)
        return self._floats[side]

    def holds(self, weight: Weight, name: str) -> str:
        """Return the name of another weight that is equal to this one, or ""."""
        for other, candidate in self._index().get(_peek(weight), ()):
            alike = other != name and candidate.shape == weight.shape
            if alike and differ(Sides.of(candidate, weight)).same_form:
                return other
        return ""

    def _index(self) -> Mapping[bytes, list[tuple[str, Weight]]]:
        if self._by_rows is None:
            found: dict[bytes, list[tuple[str, Weight]]] = {}
            for name, entry in self._entries.by_name.items():
                if not isinstance(entry, (Plain, Unread)):
                    found.setdefault(_peek(entry), []).append((name, entry))
            self._by_rows = found
        return self._by_rows


def _peek(weight: Weight) -> bytes:
    rows = min(_PEEK, rows_of(weight))
    codes: Any = weight.form(0, rows, local=False).codes
    head = f"{weight.shape}".encode()
    return blake2b(head + codes.tobytes(), digest_size=16).digest()
