"""Orders that packers get wrong, as permutations: `b[i] == a[order[i]]` for each row or column.

All act inside runs of 2 to 64 elements; what is beyond is found by matching (`matching`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Order = npt.NDArray[np.int64]

AWQ_PACK = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight columns AWQ's GEMM layout keeps in each nibble (awq/utils/packing_utils.py)."""
AWQ_READ = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which nibble each of eight columns lies."""

_AWQ_NIBBLES = tuple(AWQ_PACK[AWQ_READ[i] ^ 1] for i in range(8))
_NIBBLES = "nibbles-swapped"
_WORDS = "nibble-order"


def _halves(half: int) -> tuple[int, ...]:
    """Return which element each place takes where pairs were packed and halves are read."""
    return tuple(2 * (place % half) + place // half for place in range(2 * half))


NAMED: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    # A reader takes column c from nibble AWQ_READ[c]; a plain packer put column i into nibble i.
    ("awq-order-missing", "the AWQ order of columns in a word is missing", AWQ_READ),
    ("awq-order-extra", "the AWQ order of columns in a word is applied twice", AWQ_PACK),
    (_NIBBLES, "the two nibbles of each byte are swapped", (1, 0)),
    (_NIBBLES, "the two nibbles of each byte are swapped (in AWQ order)", _AWQ_NIBBLES),
    *(
        (
            _NIBBLES,
            f"the two nibbles of each byte are swapped (elements j and j + {half})",
            tuple(i ^ half for i in range(2 * half)),
        )
        for half in (8, 16, 32)
    ),
    # ggml's blocks keep elements j and j + 16 (Q4_K: j + 32) in byte j, others 2j and 2j + 1.
    *(
        (
            _WORDS,
            f"nibbles of elements 2j and 2j + 1 are read as elements j and j + {half}",
            _halves(half),
        )
        for half in (8, 16, 32)
    ),
    *(
        (
            _WORDS,
            f"nibbles of elements j and j + {half} are read as elements 2j and 2j + 1",
            tuple(_halves(half).index(place) for place in range(2 * half)),
        )
        for half in (8, 16, 32)
    ),
    (_WORDS, "the bytes of each word are in reverse order", tuple(i ^ 6 for i in range(8))),
    (_WORDS, "the nibbles of each word are in reverse order", tuple(i ^ 7 for i in range(8))),
)
"""Kind, words, and the order inside a run."""


def tiled(order: tuple[int, ...], length: int) -> Order | None:
    """Return an order inside runs, for `length` elements; None where runs do not fill them."""
    size = len(order)
    if length % size or length == 0:
        return None
    inner = np.asarray(order, np.int64)
    return (np.arange(0, length, size)[:, None] + inner).reshape(-1)


def named(length: int) -> Iterator[tuple[str, str, Order]]:
    """Yield kind, words and order of everything in `NAMED` that fits."""
    for kind, text, order in NAMED:
        whole = tiled(order, length)
        if whole is not None:
            yield kind, text, whole


def rotary(rows: int, heads: int) -> Order | None:
    """Return the rows that llama.cpp's converter takes for Q and K of Llama models.

    `weights.reshape(heads, 2, rows // heads // 2, K).swapaxes(1, 2)` (conversion/llama.py,
    `permute`): the halves of each head are interleaved.
    """
    if heads < 1 or rows % (2 * heads):
        return None
    laid = np.arange(rows).reshape(heads, 2, rows // heads // 2)
    return np.ascontiguousarray(laid.swapaxes(1, 2).reshape(-1), np.int64)


def head_counts(rows: int) -> list[int]:
    """Return how many heads so many rows may be, by the lengths of heads in use."""
    return [rows // size for size in (128, 64, 80, 96, 256, 32, 112, 192, 160, 16) if
            rows % size == 0]  # fmt: skip


def matching(a: npt.NDArray[np.void], b: npt.NDArray[np.void]) -> Order | None:
    """Return `order` with `b[i] == a[order[i]]` for all i, None where there is none.

    Args:
        a: Keys that can be sorted, `[n]`.
        b: The same.
    """
    if a.shape != b.shape:
        return None
    first, second = np.argsort(a, kind="stable"), np.argsort(b, kind="stable")
    if not np.array_equal(a[first], b[second]):
        return None
    order = np.empty(a.size, np.int64)
    order[second] = first
    return order


def roll_of(order: Order) -> int | None:
    """Return r where `order` is `(i + r) % n`, None where it is no such thing."""
    if not order.size:
        return None
    shift = int(order[0])
    expected = (np.arange(order.size) + shift) % order.size
    return shift if np.array_equal(order, expected) else None


def summary(order: Order) -> dict[str, object]:
    """Return what a report says of a permutation."""
    moved = np.flatnonzero(order != np.arange(order.size))
    told: dict[str, object] = {"of": int(order.size), "moved": int(moved.size)}
    if moved.size:
        told["first"] = int(moved[0])
    if order.size <= 64:
        told["order"] = order.tolist()
    else:
        told["order_begins"] = order[:32].tolist()
    if moved.size == 2:
        told["swapped"] = moved.tolist()
    return told
