"""What a collector learns from a tensor's bytes: small, mergeable in any order, picklable."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np
import numpy.typing as npt

from qassay.core.finding import MAX_LOCATIONS, Location


class Offence(enum.Enum):
    """A kind of place that collectors count and locate; rules turn them into findings."""

    SCALE_NOT_FINITE = "scale-not-finite"
    ZERO_SCALE_LIVE_CODES = "zero-scale-live-codes"
    NEGATIVE_SCALE = "negative-scale"
    SUBNORMAL_SCALE = "subnormal-scale"
    LARGEST_SCALE = "largest-scale"
    DEAD_BLOCK = "dead-block"
    SATURATED_BLOCK = "saturated-block"
    FORBIDDEN_CODE = "forbidden-code"
    VALUE_NOT_FINITE = "value-not-finite"
    EXCEEDS_F16 = "exceeds-f16"
    LOST_BELOW_F16 = "lost-below-f16"
    DEAD_ROW = "dead-row"
    GROUP_OUT_OF_RANGE = "group-out-of-range"


@dataclass(slots=True)
class Tally:
    """Offences of one kind: the exact count and the first places in file order.

    Attributes:
        count: How many.
        places: At most `MAX_LOCATIONS` pairs (flat index of block, value or row; location).
        parts: Counts by finer kind (`nan`, `inf`), where the kind has any.
    """

    count: int = 0
    places: list[tuple[int, Location]] = field(default_factory=list)
    parts: Counter[str] = field(default_factory=Counter)

    def merge(self, other: Tally) -> None:
        """Add `other`; the outcome does not depend on the order of merging."""
        self.count += other.count
        self.parts.update(other.parts)
        self.places = nsmallest(
            MAX_LOCATIONS, self.places + other.places, key=lambda place: place[0]
        )

    @property
    def locations(self) -> tuple[Location, ...]:
        """The places, in file order."""
        return tuple(place for _, place in self.places)


@dataclass(slots=True)
class Histogram:
    """Counts of the bit patterns of a field of 16 bits or fewer, patterns that occur only.

    Attributes:
        patterns: The patterns that occur, ascending, int64 `[n]`.
        counts: How often each, int64 `[n]`.
    """

    patterns: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]

    @classmethod
    def of_dense(cls, dense: npt.NDArray[np.integer]) -> Histogram:
        """Return the sparse form of an array of one count per pattern."""
        patterns = np.flatnonzero(dense)
        return cls(patterns, dense[patterns].astype(np.int64))

    @classmethod
    def of_values(cls, values: npt.NDArray[np.integer]) -> Histogram:
        """Return the histogram of an array of patterns."""
        patterns, counts = np.unique(values, return_counts=True)
        return cls(patterns.astype(np.int64), counts.astype(np.int64))

    @classmethod
    def sum(cls, parts: Sequence[Histogram]) -> Histogram:
        """Return the sum of histograms of one kind of field."""
        if len(parts) == 1:
            return parts[0]
        largest = max((int(part.patterns[-1]) for part in parts if part.patterns.size), default=-1)
        dense = np.zeros(largest + 1, np.int64)
        for part in parts:
            dense[part.patterns] += part.counts  # a pattern occurs once a part
        return cls.of_dense(dense)

    @property
    def total(self) -> int:
        """Number of values counted."""
        return int(self.counts.sum())

    def count(self, chosen: npt.NDArray[np.bool_]) -> int:
        """Return how many values fall on patterns for which `chosen[pattern]` holds."""
        return int(self.counts[chosen[self.patterns]].sum())


@dataclass(frozen=True, slots=True)
class ScaleStats:
    """What a scale field holds over a tensor (or a file).

    Magnitudes are those of the finite values, sign left out; None where there is none.
    """

    blocks: int
    min_nonzero: float | None
    max: float | None
    median: float | None
    zero: int
    subnormal: int
    nonfinite: int
    negative: int

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the JSON form."""
        return {
            "blocks": self.blocks,
            "min_nonzero": self.min_nonzero,
            "max": self.max,
            "median": self.median,
            "zero": self.zero,
            "subnormal": self.subnormal,
            "nonfinite": self.nonfinite,
            "negative": self.negative,
        }


@dataclass(slots=True)
class ValueStats:
    """What a plain float tensor holds. Magnitudes are those of finite values."""

    values: int = 0
    nan: int = 0
    inf: int = 0
    zero: int = 0
    subnormal: int = 0
    exceeds_f16: int = 0
    lost_below_f16: int = 0
    min_nonzero: float | None = None
    max: float | None = None

    def merge(self, other: ValueStats) -> None:
        """Add `other`."""
        for name in ("values", "nan", "inf", "zero", "subnormal", "exceeds_f16", "lost_below_f16"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.min_nonzero = _extreme(min, self.min_nonzero, other.min_nonzero)
        self.max = _extreme(max, self.max, other.max)

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the JSON form."""
        return {name: getattr(self, name) for name in self.__slots__}


def _extreme(pick: object, one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    chosen: float = pick(one, other)  # type: ignore[operator]
    return chosen


@dataclass(slots=True)
class CodeStats:
    """Histogram of a tensor's codes.

    Attributes:
        histogram: Of the stored codes (zero point not subtracted).
        blocks: Blocks counted; of a layer, groups.
        complete: Whether those are all blocks of the tensor.
    """

    histogram: Histogram
    blocks: int
    complete: bool


@dataclass(frozen=True, slots=True)
class LayerMoments:
    """How the codes and zero points of a layer are distributed, over some rows or all.

    Attributes:
        rows: Rows looked at, all experts together.
        groups: Groups of those rows, each counted once a row.
        complete: Whether those are all rows.
        lowest_code: The stored code of which `TensorStats.codes` counts the occurrences first.
        possible_codes: Different codes that there are.
        zeros: Histogram of the stored zero points, as unsigned integers before any offset is
            added; None where none are stored.
        zeros_complete: Whether those are all zero points, not only those of the rows looked at.
        mean_code: Mean over the groups of the mean code of each; None for codes that are floats.
        mean_zero: Mean over the groups of the zero point as decoded; None without zero points.
        bias: Mean over the groups of mean code minus zero point, in steps; for codes that stand
            for themselves, `mean_code`.
        usual_bias: Median of the same.
        near_bias: Share of the groups of which the same is within a step of `bias`.
        lowest: Share of the groups that hold the lowest code.
        highest: Share of the groups that hold the highest code.
        correlation: Of a group's zero point with its mean code (Pearson), by how they are read:
            `as_read`; `codes_reordered` and `zeros_reordered`, had one of the two been written
            in the other order of lanes (that of AWQ, or the natural one); `codes_swapped` and
            `zeros_swapped`, with the halves of each byte swapped. A reading that the
            packing does not offer, or that has no variance, is left out.
        in_order: Where an index assigns columns to groups, whether they are in order all the
            same; None without an index.
        uneven: Groups that do not have as many columns as the size of a group says.
        index_digest: A checksum of which columns each group has.
    """

    rows: int
    groups: int
    complete: bool
    lowest_code: int
    possible_codes: int
    zeros: Histogram | None = None
    zeros_complete: bool = False
    mean_code: float | None = None
    mean_zero: float | None = None
    bias: float | None = None
    usual_bias: float | None = None
    near_bias: float = 0.0
    lowest: float = 0.0
    highest: float = 0.0
    correlation: dict[str, float] = field(default_factory=dict)
    in_order: bool | None = None
    uneven: int = 0
    index_digest: int = 0


TallyKey = tuple[Offence, "str | None", "int | None"]
"""Kind, field, expert."""


@dataclass(slots=True)
class TensorStats:
    """The summary of one tensor; rules read it, reports print it.

    Attributes:
        units: Blocks of a block encoding, values of a plain one, groups (times rows) of a layer.
        rows: Rows of the tensor, all experts together.
        histograms: Of the bit patterns of each scale field.
        scales: By scale field.
        values: For a plain float tensor.
        codes: Where codes were counted.
        tallies: Offences by kind, field and expert.
        scalars: Of a layer, the first 16 values of each part of which there are few: scales of
            the whole tensor and of activations. Of a scale by itself (`k_scale`), its values.
        layer: Of a layer, how its codes are distributed.
    """

    units: int = 0
    rows: int = 0
    histograms: dict[str, Histogram] = field(default_factory=dict)
    scales: dict[str, ScaleStats] = field(default_factory=dict)
    values: ValueStats | None = None
    codes: CodeStats | None = None
    tallies: dict[TallyKey, Tally] = field(default_factory=dict)
    scalars: dict[str, tuple[float, ...]] = field(default_factory=dict)
    layer: LayerMoments | None = None

    def offences(self, kind: Offence) -> Iterator[tuple[str | None, int | None, Tally]]:
        """Yield (field, expert, tally) for each tally of `kind`, by expert, then field."""
        if not self.tallies:  # as in most tensors: every rule asks
            return
        chosen = [(key, tally) for key, tally in self.tallies.items() if key[0] is kind]
        for (_, name, expert), tally in sorted(
            chosen, key=lambda item: (-1 if item[0][2] is None else item[0][2], item[0][1] or "")
        ):
            yield name, expert, tally

    def total(self, kind: Offence) -> int:
        """Return the number of offences of `kind` in the whole tensor."""
        return sum(tally.count for _, _, tally in self.offences(kind))


def merge_tallies(into: dict[TallyKey, Tally], others: Iterable[tuple[TallyKey, Tally]]) -> None:
    """Add tallies to `into`, key by key."""
    for key, tally in others:
        into.setdefault(key, Tally()).merge(tally)
