"""Small stand-ins for weights: digests of rows, hashes of columns, taken in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.direct import Sides
from qassay.comparison.facts import PARTS
from qassay.comparison.forms import Form, plain_zero

Keys = npt.NDArray[np.void]
_DIGEST = 16


@dataclass(slots=True)
class Sketch:
    """What is kept of one side.

    Attributes:
        rows: By part, a digest of each row's elements, `V16 [N]`.
        columns: By part, a hash of each column (codes) or group (others), `V16`.
        groups: Group of each column in the first rows.
    """

    rows: dict[str, Keys] = field(default_factory=dict)
    columns: dict[str, Keys] = field(default_factory=dict)
    groups: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros(0, np.int32))

    def all_rows(self) -> Keys:
        """Return a digest of each row with all its parts."""
        return _together([self.rows[name] for name in self.rows])

    def all_columns(self) -> Keys:
        """Return a hash of each column with its group's scale, zero point and minimum."""
        keys = []
        for name, part in self.columns.items():
            keys.append(part if name == "codes" else part[self.groups])
        return _together(keys)


def _together(keys: list[Keys]) -> Keys:
    wide = np.concatenate([key.view(np.uint8).reshape(key.size, -1) for key in keys], axis=1)
    return digests(np.ascontiguousarray(wide))


def digests(values: npt.NDArray[Any]) -> Keys:
    """Return the digest of each row of a contiguous array."""
    raw = np.ascontiguousarray(values).view(np.uint8)
    joined = b"".join(blake2b(row, digest_size=_DIGEST).digest() for row in raw)
    return np.frombuffer(joined, f"V{_DIGEST}")


class ColumnHashes:
    """Adds up a linear hash of each column: 128 bits, whatever the number of rows."""

    def __init__(self) -> None:
        self._sums: npt.NDArray[np.uint64] | None = None

    def add(self, values: npt.NDArray[Any], start: int) -> None:
        """Add rows, the first of which is row `start`."""
        words = patterns(values)
        rows = np.arange(start, start + words.shape[0], dtype=np.uint64)
        sums = np.stack([mixed(rows, lane) @ words for lane in (0, 1)], axis=1)
        self._sums = sums if self._sums is None else self._sums + sums

    def keys(self) -> Keys:
        """Return the hash of each column."""
        assert self._sums is not None  # noqa: S101 - a weight has rows
        return np.ascontiguousarray(self._sums).view("V16")[:, 0]


def patterns(values: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return values as unsigned integers that are equal where `forms.same` says so."""
    clean = plain_zero(values)
    unsigned = np.ascontiguousarray(clean).view(f"u{clean.dtype.itemsize}")
    return np.asarray(unsigned, np.uint64)


def mixed(rows: npt.NDArray[np.uint64], lane: int) -> npt.NDArray[np.uint64]:
    """Return a pseudo-random number for each row (the finisher of SplitMix64)."""
    found: npt.NDArray[np.uint64] = (rows * np.uint64(2) + np.uint64(lane + 1)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(found ^ (found >> np.uint64(31)), np.uint64)


def sketch(sides: Sides, *, spread: bool) -> tuple[Sketch, Sketch]:
    """Return sketches of both sides.

    Args:
        sides: The weights.
        spread: Whether scales are taken for each column, not for each group: where the sides
            assign columns to groups differently, only that can be compared.
    """
    made = (Sketch(), Sketch())
    rows: tuple[dict[str, list[Keys]], ...] = ({}, {})
    columns: tuple[dict[str, ColumnHashes], ...] = ({}, {})
    for start, *forms in sides.pieces():
        for at, form in enumerate(forms):
            taken: Form = form.spread() if spread else form
            if start == 0:
                made[at].groups = taken.groups
            for name in PARTS:
                part = taken.part(name)
                if part is None:
                    continue
                rows[at].setdefault(name, []).append(digests(plain_zero(part)))
                columns[at].setdefault(name, ColumnHashes()).add(part, start)
    for at, each in enumerate(made):
        each.rows = {name: np.concatenate(parts) for name, parts in rows[at].items()}
        each.columns = {name: summed.keys() for name, summed in columns[at].items()}
    return made
