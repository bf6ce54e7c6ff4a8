"""Judging a chunk of a float tensor on behalf of targets: by its runs, then the doubtful few."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.finding import MAX_LOCATIONS
from qassay.core.source import Bytes
from qassay.core.stats import Offence, Tally
from qassay.encodings.base import BlockEncoding, Encoding, Floats, PlainEncoding
from qassay.kernels.geometry import Geometry, Index
from qassay.kernels.preflight_reference import RUN, Patterns, runs_a_row
from qassay.runtimes.preflight_engines import outcomes
from qassay.runtimes.preflight_groups import judge_groups
from qassay.runtimes.preflight_outliers import RATIO as OUTLIER
from qassay.runtimes.preflight_outliers import flattened, outlier_runs
from qassay.runtimes.preflight_settle import (
    Settled,
    doubtful,
    has_engine,
    plain_limits,
    settle,
)
from qassay.runtimes.preflight_stats import Extent, Harm, PreflightStats, Row
from qassay.runtimes.targets import Choice, GroupFormat

SPAN = 256
"""Chunks begin at a multiple of so many weights in their row: every block length divides it."""

_MANY = 1 << 18
"""Doubtful weights converted to float32 at once."""


_scratch = threading.local()


@dataclass(frozen=True, slots=True)
class PreflightCollector:
    """Collects what targets would do to one float tensor, chunk by chunk.

    Attributes:
        source: Its encoding.
        geometry: Where its values lie.
        encodings: The encodings it may get.
        groups: The ways of storing groups it may get.
    """

    source: type[PlainEncoding]
    geometry: Geometry
    encodings: tuple[type[Encoding], ...]
    groups: tuple[GroupFormat, ...]

    @classmethod
    def of(
        cls, source: type[Encoding], geometry: Geometry, choices: Iterable[Choice]
    ) -> PreflightCollector | None:
        """Return the collector for a tensor; None where no target would change it."""
        chosen = list(choices)
        if not issubclass(source, PlainEncoding) or source.kind != "float":
            return None
        encodings = {choice.encoding.id: choice.encoding for choice in chosen if choice.encoding}
        encodings.pop(source.id, None)
        groups = {choice.group.id: choice.group for choice in chosen if choice.group}
        if not encodings and not groups:
            return None
        return cls(source, geometry, tuple(encodings.values()), tuple(groups.values()))

    @property
    def alignment(self) -> int:
        """Weights of which a part of a row has to hold a whole number."""
        return lcm(SPAN, *(group.size for group in self.groups))

    def place_for_runs(self, raw: Bytes) -> Patterns:
        """Return where the pass over `raw` puts the largest magnitude of each run.

        A thread has one such place: fresh memory for every chunk would cost more than the pass.
        """
        bits = self.source.bits(raw)
        columns = min(self.geometry.columns, bits.size)
        needed = bits.size // columns * runs_a_row(columns) * bits.itemsize
        known: npt.NDArray[np.uint8] | None = getattr(_scratch, "place", None)
        if known is None or known.size < needed:
            known = _scratch.place = np.empty(needed, np.uint8)
        return known[:needed].view(bits.dtype)

    @np.errstate(all="ignore")  # signalling NaN, and floats of any size
    def collect(self, raw: Bytes, start: int, runs: Patterns) -> dict[str, PreflightStats]:
        """Return by target id what becomes of the values `raw`, of which the first is `start`.

        Args:
            raw: The stored floats.
            start: The number of the first.
            runs: The largest magnitude of each run of them; not kept.
        """
        bits = self.source.bits(raw)
        columns = min(self.geometry.columns, bits.size)
        chunk = _Chunk(self, bits, columns, start, runs)
        found: dict[str, PreflightStats] = {}
        for encoding in self.encodings:
            if issubclass(encoding, BlockEncoding):
                found[encoding.id] = _blocks(chunk, encoding)
            elif issubclass(encoding, PlainEncoding):
                found[encoding.id] = _plain(chunk, encoding)
        for group in self.groups:
            found[group.id] = judge_groups(self.source, self.geometry, bits, start, group)
        return found


class _Chunk:
    """One chunk: its values, and the largest magnitude of every run of 32."""

    def __init__(
        self,
        owner: PreflightCollector,
        bits: npt.NDArray[Any],
        columns: int,
        start: int,
        runs: Patterns,
    ) -> None:
        self.owner, self.bits, self.columns, self.start = owner, bits, columns, start
        self.rows = bits.size // columns
        self.runs = runs_a_row(columns)
        # Patterns are in the order of the magnitudes; most chunks need no other numbers than these.
        self.least, self.most = self._ends(runs)
        self._patterns = {RUN: runs}
        self._amax: dict[int, Floats] = {}

    @property
    def calm(self) -> bool:
        """Whether every run holds finite weights that are not all zero."""
        return self.least > 0 and np.isfinite(self.most).item()

    def values(self, bits: npt.NDArray[Any]) -> Floats:
        """Return bit patterns as float32."""
        return self.owner.source.to_float32(bits.view(self.owner.source.dtype))

    def blocks(self, units: Index, length: int) -> Floats:
        """Return some blocks as float32 `[n, length]`."""
        return self.values(np.ascontiguousarray(self.bits.reshape(-1, length)[units]))

    def count(self, length: int) -> int:
        """Return the number of blocks; runs are blocks, too, the last of a row a shorter one."""
        return self._patterns[RUN].size // (length // RUN)

    def least_of(self, length: int) -> float:
        """Return the smallest of the blocks' largest magnitudes."""
        return self._ends(self._of_blocks(length))[0]

    def amax(self, length: int = RUN) -> Floats:
        """Return each block's largest magnitude; NaN or infinity where it holds one."""
        known = self._amax.get(length)
        if known is None:
            known = self._amax[length] = self.values(self._of_blocks(length))
        return known

    def sizes(self, length: int = RUN) -> npt.NDArray[np.floating]:
        """Return the same as stored: doubles that float32 cannot hold are neither zero nor inf."""
        if self.owner.source.block_bytes <= np.dtype(np.float32).itemsize:
            return self.amax(length)
        return self.owner.source.numbers(self._of_blocks(length))

    def _ends(self, patterns: Patterns) -> tuple[float, float]:
        least, most = self.values(np.array([patterns.min(), patterns.max()]))
        return float(least), float(most)

    def _of_blocks(self, length: int) -> Patterns:
        known = self._patterns.get(length)
        if known is None:
            # Halving is many times faster than reducing rows of eight.
            parts = self._patterns[RUN].reshape(-1, length // RUN)
            while parts.shape[1] > 1:
                half = parts.shape[1] // 2
                parts = np.maximum(parts[:, :half], parts[:, half:])
            known = self._patterns[length] = parts[:, 0]
        return known


def _geometry(chunk: _Chunk, length: int) -> Geometry:
    own = chunk.owner.geometry
    return replace(own, block=length, block_bytes=length * own.block_bytes)


def _begin(chunk: _Chunk, geometry: Geometry, length: int) -> PreflightStats:
    """Return stats with the counts and extremes that every target has."""
    stats = PreflightStats(units=chunk.count(length))
    largest = chunk.most
    if not np.isfinite(largest):
        finite = chunk.sizes()[np.isfinite(chunk.sizes())]
        largest = float(finite.max()) if finite.size else 0.0
    stats.amax = largest
    if largest:
        stats.exponent = int(np.frexp(largest)[1])
    if geometry.rows_per_expert is None:
        live = stats.units if chunk.calm else int(np.count_nonzero(chunk.sizes(length)))
        stats.live = {None: live}
        return stats
    rows = chunk.start // geometry.columns + np.arange(chunk.rows)
    per_row = (chunk.sizes(length) != 0).reshape(chunk.rows, -1).sum(axis=1)
    for expert, members in geometry.by_expert(rows):
        stats.live[expert] = int(per_row[members].sum())
    return stats


def add_harms(
    stats: PreflightStats,
    geometry: Geometry,
    harm: Harm,
    units: Index,
    amax: npt.NDArray[Any],
    worst: npt.NDArray[Any] | None = None,
    data: dict[str, npt.NDArray[Any]] | None = None,
) -> None:
    """Add harms of blocks with these numbers (in the tensor) and largest magnitudes."""
    if units.size == 0:
        return
    exponents = np.frexp(np.where(np.isfinite(amax), amax, 1.0))[1]
    if harm not in (Harm.LOST_BLOCK, Harm.FLATTENED):
        exponents = np.zeros_like(exponents)
    for exponent in np.unique(exponents):
        some = np.flatnonzero(exponents == exponent)
        tallies = geometry.tally(Offence.DEAD_BLOCK, units[some], read=amax[some].__getitem__)
        for (_, _, expert), tally in tallies:
            key = (harm, int(exponent), expert)
            stats.tallies.setdefault(key, Tally()).merge(tally)
    badness = np.zeros(units.size) if worst is None else worst
    for expert, members in geometry.by_expert(units // geometry.per_row):
        first = int(members[np.argmax(badness[members])])
        told = {name: float(numbers[first]) for name, numbers in (data or {}).items()}
        sizes = amax[members]
        extent = Extent(
            float(sizes.min()), float(sizes.max()), float(badness[first]), int(units[first]), told
        )
        stats.extend((harm, expert), extent)


def _add_rows(
    chunk: _Chunk,
    stats: PreflightStats,
    geometry: Geometry,
    amax: npt.NDArray[np.floating],
    lost: Index,
) -> None:
    """Add rows that hold lost blocks; of a part of a row, what there is to know of it."""
    whole = chunk.columns == chunk.owner.geometry.columns
    per_row = amax.size // chunk.rows
    first = chunk.start // geometry.columns
    rows = np.unique(lost // per_row) if whole else np.arange(chunk.rows)
    counts = np.bincount(lost // per_row, minlength=chunk.rows)
    for row in rows.tolist():
        sizes = amax[row * per_row : (row + 1) * per_row]
        live = int((sizes != 0).sum())
        if whole and live != counts[row]:
            continue
        if live:
            finite = sizes[np.isfinite(sizes)]
            largest = float(finite.max()) if finite.size else 0.0
            exponent = int(np.frexp(largest)[1]) if largest else -10_000
            stats.open_rows[row + first] = Row(live, int(counts[row]), exponent, largest)
    if whole:
        stats.close_rows(geometry)


def _blocks(chunk: _Chunk, encoding: type[BlockEncoding]) -> PreflightStats:
    length = encoding.block
    geometry = _geometry(chunk, length)
    stats = _begin(chunk, geometry, length)
    stats.estimated = not has_engine(encoding)
    low, high = doubtful(encoding)
    if chunk.calm and chunk.most < high and (chunk.least > low or chunk.least_of(length) > low):
        _add_outliers(chunk, stats, geometry, encoding)
        return _with_open_rows(chunk, stats, geometry, length)
    amax, stored = chunk.amax(length), chunk.sizes(length)
    finite = np.isfinite(amax)
    units = np.flatnonzero(((amax <= low) & (amax != 0)) | ((amax >= high) & finite))
    first = chunk.start // length
    lost_units: list[Index] = []
    step = max(1, _MANY // length)
    for begin in range(0, units.size, step):
        some = units[begin : begin + step]
        verdict = settle(chunk.blocks(some, length), encoding)
        lost_units.append(some[verdict.lost])
        _add_settled(stats, geometry, some + first, amax[some], verdict)
    lost = np.concatenate(lost_units) if lost_units else np.zeros(0, np.int64)
    _add_rows(chunk, stats, geometry, amax, lost)
    _add_outliers(chunk, stats, geometry, encoding)
    beyond = np.flatnonzero(~finite & np.isfinite(stored))  # doubles that no float32 holds
    sizes = stored[beyond].astype(np.float64)
    add_harms(stats, geometry, Harm.OVERFLOW, beyond + first, sizes, sizes, {"amax": sizes})
    _add_not_finite(chunk, stats, geometry, encoding, np.flatnonzero(~np.isfinite(stored)))
    return stats


def _with_open_rows(
    chunk: _Chunk, stats: PreflightStats, geometry: Geometry, length: int
) -> PreflightStats:
    """Return stats of a chunk without lost blocks; of a part of a row that must be known, too."""
    if chunk.columns != geometry.columns:
        _add_rows(chunk, stats, geometry, chunk.amax(length), np.zeros(0, np.int64))
    return stats


def _add_settled(
    stats: PreflightStats, geometry: Geometry, units: Index, amax: Floats, verdict: Settled
) -> None:
    sizes = amax.astype(np.float64)
    for harm, chosen, badness in (
        (Harm.OVERFLOW, verdict.overflow, sizes),
        (Harm.LOST_BLOCK, verdict.lost, sizes),
        (Harm.COARSE, verdict.coarse, verdict.steps),
    ):
        data = {
            "amax": sizes[chosen],
            "scale": verdict.exact[chosen],
            "stored": verdict.stored[chosen],
            "steps": verdict.steps[chosen],
        }
        if harm is Harm.COARSE:
            data["of_minimum"] = verdict.of_minimum[chosen].astype(np.float64)
        add_harms(stats, geometry, harm, units[chosen], sizes[chosen], badness[chosen], data)


def _add_outliers(
    chunk: _Chunk, stats: PreflightStats, geometry: Geometry, encoding: type[BlockEncoding]
) -> None:
    if chunk.calm and chunk.most < OUTLIER * chunk.least:
        return
    amax = chunk.amax(encoding.block)
    runs = outlier_runs(chunk.amax(), chunk.runs)
    units = np.unique(runs // (encoding.block // RUN))
    units = units[np.isfinite(amax[units])]
    if units.size == 0 or not has_engine(encoding):
        return
    hit, rest, gone = flattened(chunk.blocks(units, encoding.block), encoding)
    sizes = amax[units].astype(np.float64)
    data = {"outlier": sizes[hit], "rest": rest[hit], "gone": gone[hit]}
    first = chunk.start // encoding.block
    # Graded by what is lost, not by the outlier.
    add_harms(stats, geometry, Harm.FLATTENED, units[hit] + first, rest[hit], sizes[hit], data)


def _add_not_finite(
    chunk: _Chunk,
    stats: PreflightStats,
    geometry: Geometry,
    encoding: type[BlockEncoding],
    units: Index,
) -> None:
    """Add blocks with NaN or infinity: each offending weight has a place of its own."""
    if units.size == 0:
        return
    own = chunk.owner.geometry
    for expert, members in geometry.by_expert(
        (units + chunk.start // encoding.block) // geometry.per_row
    ):
        tally = Tally()
        for begin in range(0, members.size, _MANY // encoding.block):
            some = units[members[begin : begin + _MANY // encoding.block]]
            values = chunk.blocks(some, encoding.block)
            block, element = np.nonzero(~np.isfinite(values))
            nan = int(np.isnan(values).sum())
            tally.parts.update({"nan": nan, "inf": block.size - nan, "blocks": some.size})
            tally.count += block.size
            for at in range(min(block.size, MAX_LOCATIONS - len(tally.places))):
                flat = int(some[block[at]]) * encoding.block + int(element[at]) + chunk.start
                value = float(values[block[at], element[at]])
                place = own.place(flat, field=None, into=0, value=value)
                unit = flat // encoding.block
                tally.places.append((flat, replace(place, block=unit)))
        stats.tallies.setdefault((Harm.NOT_FINITE, 0, expert), Tally()).merge(tally)
        first = int(units[members[0]])
        block_values = chunk.blocks(np.array([first]), encoding.block)[0]
        unit = first + chunk.start // encoding.block
        # Of equals the first in the file stays: so this is told of the tensor's first such block.
        extent = Extent(0.0, 0.0, 1.0, unit, {"engines": outcomes(block_values, encoding)})
        stats.extend((Harm.NOT_FINITE, expert), extent)


def _plain(chunk: _Chunk, encoding: type[PlainEncoding]) -> PreflightStats:
    """Judge a target without scales: values that overflow, rows that round to zeros."""
    # A row of runs is no whole number of anything: places are told by value.
    geometry = chunk.owner.geometry
    stats = _begin(chunk, geometry, RUN)
    least, most = plain_limits(encoding)
    if chunk.calm and least < chunk.least and chunk.most < most:
        return _with_open_rows(chunk, stats, geometry, RUN)
    amax, stored = chunk.amax().astype(np.float64), chunk.sizes()
    lost = np.flatnonzero((amax <= least) & (stored != 0))
    _add_rows(chunk, stats, geometry, stored, lost)
    if bool(((amax >= most) | ~np.isfinite(amax)).any()):
        for begin in range(0, chunk.bits.size, _MANY):
            some = chunk.bits[begin : begin + _MANY]
            # Programs convert by way of float32; what overflows on that way is finite as stored.
            rounded = np.abs(chunk.values(some)).astype(np.float64)
            values = np.abs(chunk.owner.source.numbers(some))
            over = np.flatnonzero((rounded >= most) & np.isfinite(values))
            add_harms(
                stats,
                geometry,
                Harm.OVERFLOW,
                over + begin + chunk.start,
                values[over],
                values[over],
            )
    return stats
