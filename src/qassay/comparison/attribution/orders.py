"""Orders in which channels, features and groups come out when something is left undone.

Each is an index: place i takes what belongs to place order[i]. With P lanes and h = N / P::

    dealt to P lanes, not dealt back     order[i * h + j] = j * P + i
    dealt back without having been       order[j * P + i] = i * h + j
    AWQ's order, not undone              order[8c + i]    = 8c + (0, 2, 4, 6, 1, 3, 5, 7)[i]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qassay.comparison.attribution.setup import Index

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """One order.

    Attributes:
        id: `deal64`, `awq-inverse`.
        text: How channels in that order are told of, behind the word for what is moved.
        code: The rule that reports it, "" for the target's own.
        order: The index.
        common: Whether it is tried in pairs of faults.
    """

    id: str
    text: str
    code: str
    order: Index
    common: bool = True


def deal(n: int, lanes: int) -> Index:
    """Return the order after dealing to lanes."""
    order: Index = np.arange(n).reshape(n // lanes, lanes).T.reshape(-1)
    return order


def within(n: int, pattern: tuple[int, ...]) -> Index:
    """Return a pattern repeated over runs of its length."""
    run = len(pattern)
    order: Index = (np.arange(n).reshape(-1, run)[:, np.array(pattern)]).reshape(-1)
    return order


def inverse(order: Index) -> Index:
    """Return the order that undoes another."""
    return np.argsort(order, kind="stable")


def of_rows(n: int, lanes: tuple[int, ...], chip_lanes: int = 0) -> Iterator[Order]:
    """Yield the orders of N output channels; those of a known chip are tried in pairs, too."""
    for p in lanes:
        if n % p or p in (1, n):
            continue
        dealt = deal(n, p)
        common = not chip_lanes or p == chip_lanes
        yield Order(f"deal{p}", f"dealt to {p} lanes and not dealt back", "", dealt, common)
        text = f"dealt back from {p} lanes without having been dealt"
        yield Order(f"undeal{p}", text, "", inverse(dealt), common)
    if n % 8 == 0 and n:
        awq = within(n, AWQ)
        yield Order("awq", "in AWQ's order (0, 2, 4, 6, 1, 3, 5, 7), not undone", "Q606", awq)
        yield Order("awq-inverse", "with AWQ's order undone once too often", "Q606", inverse(awq))
    yield from _plain(n, "channel")


def of_columns(k: int) -> Iterator[Order]:
    """Yield the orders of K input features."""
    if k % 2 == 0:
        yield Order("pairs", "with the two nibbles of every byte swapped", "Q606",
                    within(k, (1, 0)))  # fmt: skip
    if k % 8 == 0 and k:
        awq = within(k, AWQ)
        reverse, pairs = tuple(range(7, -1, -1)), (6, 7, 4, 5, 2, 3, 0, 1)
        yield Order("word", "with the nibbles of every 32-bit word reversed", "Q606",
                    within(k, reverse))  # fmt: skip
        yield Order("bytes", "with the bytes of every 32-bit word reversed", "Q606",
                    within(k, pairs))  # fmt: skip
        yield Order("awq", "in AWQ's order along a row, not undone", "Q606", awq)
        yield Order("awq-inverse", "with AWQ's order undone along a row", "Q606", inverse(awq))
    if k % 32 == 0 and k:
        halves = tuple(j // 2 + 16 * (j % 2) for j in range(32))
        split = within(k, halves)
        text = "as if low nibbles were the first half of 32 and high nibbles the second"
        yield Order("halves", text, "Q606", inverse(split), common=False)
        yield Order("halves-inverse", "with the two halves of 32 interleaved", "Q606", split,
                    common=False)  # fmt: skip
    roll = np.roll(np.arange(k), 1)
    yield Order("roll+1", "shifted by one column", "Q603", roll)
    yield Order("roll-1", "shifted by one column the other way", "Q603", inverse(roll))
    yield Order("reverse", "in reverse order along a row", "Q603", np.arange(k)[::-1])


def _plain(n: int, noun: str) -> Iterator[Order]:
    roll = np.roll(np.arange(n), 1)
    yield Order("roll+1", f"taken from the {noun} before", "", roll)
    yield Order("roll-1", f"taken from the {noun} after", "", inverse(roll))
    if n % 2 == 0 and n > 2:
        yield Order("pairs", f"with {noun}s 2i and 2i + 1 swapped", "", within(n, (1, 0)))
        half = n // 2
        yield Order("half", f"with the two halves of all {noun}s swapped", "",
                    np.roll(np.arange(n), half), common=False)  # fmt: skip
    yield Order("reverse", "in reverse order", "", np.arange(n)[::-1])
    for r in (2, 4, 8, 16, 32, 64, 128):
        if 2 * r < n:
            index = np.roll(np.arange(n), r)
            yield Order(f"roll+{r}", f"taken from {r} {noun}s before", "", index, common=False)
            yield Order(f"roll-{r}", f"taken from {r} {noun}s after", "", inverse(index),
                        common=False)  # fmt: skip


def of_groups(g: int) -> Iterator[tuple[str, str, Index]]:
    """Yield id, text and order of groups within each row."""
    if g > 1:
        yield "roll+1", "taken from the group before", _rolled(g, 1)
        yield "roll-1", "taken from the group after", _rolled(g, -1)
        for r in (2, 3):
            if g > 2 * r:
                yield f"roll+{r}", f"taken from {r} groups before", _rolled(g, r)
                yield f"roll-{r}", f"taken from {r} groups after", _rolled(g, -r)
        yield "reverse", "with the groups of a row in reverse order", np.arange(g)[::-1]


def _rolled(n: int, by: int) -> Index:
    return np.roll(np.arange(n), by)
