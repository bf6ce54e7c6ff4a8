"""The collector of plain tensors: floats, integers and booleans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.core.stats import Offence, ValueStats, merge_tallies
from qassay.encodings.base import (
    PlainEncoding,
    per_encoding,
)
from qassay.kernels.chunk import ChunkStats
from qassay.kernels.geometry import Geometry
from qassay.kernels.preflight_reference import Patterns
from qassay.kernels.reference import PIECE, ValueScan
from qassay.kernels.select import Kernels

Index = npt.NDArray[np.int64]
F16_OVERFLOW = 65520.0
"""The smallest number that rounds to infinity in f16 (halfway from 65504 to 65536)."""

F16_UNDERFLOW = 2.0**-25
"""The largest number that rounds to zero in f16 (halfway to 2^-24, and ties go to even)."""


@per_encoding
def f16_limits(encoding: type[PlainEncoding]) -> tuple[int, int]:
    """Return the largest bit pattern that f16 flushes to zero, and the largest that it can hold."""
    most = encoding.pattern_up_to(F16_OVERFLOW)
    if encoding.numbers(most)[0] == F16_OVERFLOW:
        most -= 1
    return encoding.pattern_up_to(F16_UNDERFLOW), most


@dataclass(slots=True)
class ValueCollector:
    """Collects one plain tensor, chunk by chunk."""

    encoding: type[PlainEncoding]
    geometry: Geometry
    kernels: Kernels

    def collect(self, raw: Bytes, start: int, runs: Patterns | None = None) -> ChunkStats:
        """Return what the values `raw`, of which the first is number `start`, hold.

        A chunk is a number of whole rows or a part of one row.

        Args:
            raw: The stored floats, integers or booleans.
            start: The number of the first.
            runs: Where to put the largest magnitude of every run of floats, as bit patterns
                without sign (`preflight_reference.run_extremes`): one pass finds both.
        """
        if self.encoding.kind == "integer":
            return self._integers(raw, start)
        encoding = self.encoding
        bits = encoding.bits(raw)
        columns = min(self.geometry.columns, bits.size)
        least, most = f16_limits(encoding)
        limits = encoding.least_normal, least
        if runs is None:
            scan = self.kernels.scan_values(bits, columns, *limits)
        else:
            scan = self.kernels.scan_runs(bits, columns, *limits, runs)
        chunk = ChunkStats(units=bits.size, values=self._summary(scan, bits.size))
        if scan.largest > most:
            self._large(chunk, bits, start, most)
        if scan.small:
            self._small(chunk, bits, start, scan, least)
        first = start // self.geometry.columns
        if columns == self.geometry.columns:
            dead = self.geometry.tally_dead_rows(scan.dead_rows + first)
            merge_tallies(chunk.tallies, dead)
        elif scan.dead_rows.size:
            chunk.dead = {first: columns}
        return chunk

    def _small(
        self,
        chunk: ChunkStats,
        bits: npt.NDArray[np.unsignedinteger],
        start: int,
        scan: ValueScan,
        least: int,
    ) -> None:
        """Tally the values that become zero in f16."""
        columns = min(self.geometry.columns, bits.size)
        for at in self.kernels.locate_small(bits, columns, least, scan):
            shown = bits[at]
            tallies = self.geometry.tally(
                Offence.LOST_BELOW_F16,
                at + start,
                read=lambda some, shown=shown: self.encoding.numbers(shown[some]),  # type: ignore[misc]
            )
            merge_tallies(chunk.tallies, tallies)

    def _summary(self, scan: ValueScan, size: int) -> ValueStats:
        numbers = self.encoding.numbers([scan.smallest, min(scan.largest, self._last_finite)])
        seen = scan.smallest and scan.smallest <= self._last_finite
        return ValueStats(
            values=size,
            zero=scan.zero,
            subnormal=scan.subnormal,
            lost_below_f16=scan.small,
            min_nonzero=float(numbers[0]) if seen else None,
            max=float(numbers[1]) if scan.largest <= self._last_finite else None,
        )

    @property
    def _last_finite(self) -> int:
        return self.encoding.first_nonfinite - 1

    def _large(
        self, chunk: ChunkStats, bits: npt.NDArray[np.unsignedinteger], start: int, most: int
    ) -> None:
        """Look again at a chunk with values that f16 cannot hold: which, and where."""
        mask = bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
        largest = -1
        for begin in range(0, bits.size, PIECE):
            piece = bits[begin : begin + PIECE]
            magnitude = piece & mask
            finite = magnitude[magnitude <= self._last_finite]
            largest = max(largest, int(finite.max(initial=0)) if finite.size else -1)
            at = np.flatnonzero(magnitude > most)
            if at.size:
                self._tally_large(chunk, piece[at], at + begin + start)
        if chunk.values is not None:
            chunk.values.max = float(self.encoding.numbers(largest)[0]) if largest >= 0 else None

    def _tally_large(
        self, chunk: ChunkStats, bits: npt.NDArray[np.unsignedinteger], at: Index
    ) -> None:
        """Tally values at `at` that are not finite, or finite and beyond f16."""
        values = chunk.values or ValueStats()
        numbers = self.encoding.numbers(bits)
        bad = ~np.isfinite(numbers)
        values.nan += int(np.isnan(numbers).sum())
        values.inf += int(np.isinf(numbers).sum())
        values.exceeds_f16 += int((~bad).sum())
        for kind, chosen in ((Offence.VALUE_NOT_FINITE, bad), (Offence.EXCEEDS_F16, ~bad)):
            tallies = self.geometry.tally(kind, at[chosen], read=numbers[chosen].__getitem__)
            merge_tallies(chunk.tallies, tallies)
        for expert, members in self.geometry.by_expert(at[bad] // self.geometry.columns):
            if members.size:
                tally = chunk.tallies[Offence.VALUE_NOT_FINITE, None, expert]
                nan = int(np.isnan(numbers[bad][members]).sum())
                tally.parts.update({"nan": nan, "inf": int(members.size) - nan})

    def _integers(self, raw: Bytes, start: int) -> ChunkStats:
        """Integers hold any value; only a bool can hold one that means nothing."""
        chunk = ChunkStats(units=raw.size // self.encoding.block_bytes)
        allowed = self.encoding.allowed_max
        if allowed is None:
            return chunk
        for begin in range(0, raw.size, PIECE):
            piece = raw[begin : begin + PIECE]
            at = np.flatnonzero(piece > allowed)
            tallies = self.geometry.tally(
                Offence.FORBIDDEN_CODE, at + begin + start, read=piece[at].__getitem__
            )
            merge_tallies(chunk.tallies, tallies)
        return chunk
