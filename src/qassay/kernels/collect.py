"""Collectors: read a chunk of a tensor once and return what there is to know about it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.core.stats import Histogram, Offence, Tally, ValueStats, merge_tallies
from qassay.encodings.base import BlockEncoding, Blocks, Encoding, PlainEncoding
from qassay.encodings.fields import Health, Role, ScaleField
from qassay.kernels.chunk import CODE_SAMPLE, ChunkStats, Front
from qassay.kernels.geometry import Geometry
from qassay.kernels.plan import scan_plan
from qassay.kernels.reference import ValueScan
from qassay.kernels.select import Kernels

Index = npt.NDArray[np.int64]
_EXACT_AT_ONCE = 4096
"""Blocks that the exact test decodes at once: bounds its memory whatever the file holds."""

F16_OVERFLOW = 65520.0
"""The smallest number that rounds to infinity in f16 (halfway from 65504 to 65536)."""

F16_UNDERFLOW = 2.0**-25
"""The largest number that rounds to zero in f16 (halfway to 2^-24, and ties go to even)."""


@dataclass(slots=True)
class BlockCollector:
    """Collects one block-encoded tensor, chunk by chunk; one a thread and tensor.

    Attributes:
        encoding: Its encoding.
        geometry: Where its blocks lie.
        kernels: What does the reading.
        front: The largest scales so far, shared between threads.
        all_codes: Whether to count the codes of every block, not of the first `CODE_SAMPLE`.
    """

    encoding: type[BlockEncoding]
    geometry: Geometry
    kernels: Kernels
    front: Front
    all_codes: bool = False

    def collect(self, raw: Bytes, start: int) -> ChunkStats:
        """Return what the blocks `raw`, of which the first is number `start`, hold."""
        encoding = self.encoding
        blocks = encoding.as_blocks(raw)
        chunk = ChunkStats(units=blocks.shape[0])
        scan = self.kernels.scan_blocks(blocks, scan_plan(encoding))
        doubtful = [scan.candidates]
        for scale, histogram in zip(encoding.scale_fields.values(), scan.scales, strict=True):
            chunk.histograms[scale.name] = histogram
            doubtful += self._scale(chunk, scale, blocks, start)
        if scan.forbidden:
            self._forbidden(chunk, blocks, start)
        self._settle(chunk, blocks, np.unique(np.concatenate(doubtful)), start)
        counted = blocks if self.all_codes else blocks[: max(0, CODE_SAMPLE - start)]
        if counted.shape[0]:
            chunk.codes = (self.kernels.count_codes(counted, encoding), counted.shape[0])
        return chunk

    def _scale(
        self, chunk: ChunkStats, scale: ScaleField, blocks: Bytes, start: int
    ) -> list[Index]:
        """Tally what is wrong with one scale field; return blocks that the exact test must see."""
        histogram = chunk.histograms[scale.name]
        wanted = {Health.NOT_FINITE: Offence.SCALE_NOT_FINITE}
        if not scale.signed:
            wanted[Health.NEGATIVE] = Offence.NEGATIVE_SCALE
        if not scale.subnormal_is_normal:
            wanted[Health.SUBNORMAL] = Offence.SUBNORMAL_SCALE
        for flag, offence in wanted.items():
            at = self._locate(histogram, scale, blocks, flag)
            if at.size:
                self._tally(chunk, offence, blocks, at, start, scale)
        self._largest(chunk, scale, blocks, start)
        return [
            self._locate(histogram, scale, blocks, Health.MAY_OVERFLOW),
            self._locate(histogram, scale, blocks, Health.ZERO),
        ]

    def _locate(
        self, histogram: Histogram, scale: ScaleField, blocks: Bytes, flag: Health
    ) -> Index:
        """Return the blocks whose scale has `flag`; costs nothing when the histogram has none."""
        chosen = (scale.health & int(flag)) > 0
        count = histogram.count(chosen)
        if count == 0:
            return np.zeros(0, np.int64)
        return self.kernels.locate(blocks, scale.offset, scale.nbytes, chosen, count)

    def _tally(
        self,
        chunk: ChunkStats,
        offence: Offence,
        blocks: Bytes,
        at: Index,
        start: int,
        scale: ScaleField | None = None,
    ) -> None:
        """Tally the blocks at `at`, which in the tensor are numbered from `start` on."""
        if scale is None:
            tallies = self.geometry.tally(offence, at + start)
        else:
            tallies = self.geometry.tally(
                offence,
                at + start,
                field=scale.name,
                into=scale.offset,
                read=lambda some: scale.magnitudes[scale.patterns_of(blocks[at[some]])],
            )
        merge_tallies(chunk.tallies, tallies)

    def _largest(self, chunk: ChunkStats, scale: ScaleField, blocks: Bytes, start: int) -> None:
        """Find the first block with the chunk's largest finite scale, if it can matter."""
        if scale.role is Role.OFFSET:
            return
        patterns = chunk.histograms[scale.name].patterns
        finite = patterns[(scale.health[patterns] & int(Health.NOT_FINITE)) == 0]
        if finite.size == 0:
            return
        unsigned = scale.patterns // (2 if scale.format == "f16" else 1) - 1
        magnitude = int((finite & unsigned).max())
        if magnitude and self.front.advances(scale.name, magnitude, start):
            chosen = (np.arange(scale.patterns) & unsigned) == magnitude
            count = chunk.histograms[scale.name].count(chosen)
            at = self.kernels.locate(blocks, scale.offset, scale.nbytes, chosen, count)
            pattern = int(scale.patterns_of(blocks[at[:1]])[0])
            chunk.largest[scale.name] = (magnitude, int(at[0]) + start, pattern)

    def _forbidden(self, chunk: ChunkStats, blocks: Bytes, start: int) -> None:
        """Tally codes that no writer produces, block by block (a block counts once a field)."""
        for stored in self.encoding.bits_fields.values():
            for name, run in stored.runs.items():
                if not stored.forbidden:
                    continue
                for begin in range(0, blocks.shape[0], _EXACT_AT_ONCE):
                    codes = run.unpack(blocks[begin : begin + _EXACT_AT_ONCE])
                    hits = np.isin(codes, list(stored.forbidden))
                    at = np.flatnonzero(hits.any(axis=1))
                    worst = codes[at, hits[at].argmax(axis=1)]
                    tallies = self.geometry.tally(
                        Offence.FORBIDDEN_CODE,
                        at + begin + start,
                        field=name,
                        into=stored.offset,
                        read=worst.__getitem__,
                    )
                    merge_tallies(chunk.tallies, tallies)

    def _settle(self, chunk: ChunkStats, blocks: Bytes, doubtful: Index, start: int) -> None:
        """Decode the doubtful blocks and say which are dead, wiped, saturated or overflow."""
        for begin in range(0, doubtful.size, _EXACT_AT_ONCE):
            at = doubtful[begin : begin + _EXACT_AT_ONCE]
            zero = self._exact(chunk, blocks, at, start)
            rows = (at[zero] + start) // self.geometry.per_row
            for row, units in zip(*np.unique(rows, return_counts=True), strict=True):
                chunk.dead[int(row)] = chunk.dead.get(int(row), 0) + int(units)

    def _exact(
        self, chunk: ChunkStats, blocks: Bytes, at: Index, start: int
    ) -> npt.NDArray[np.bool_]:
        """Judge a few blocks by decoding them; return which of them decode to zeros only."""
        encoding = self.encoding
        some = np.ascontiguousarray(blocks[at])
        values = encoding.dequantize(some.reshape(-1)).reshape(some.shape[0], -1)
        codes = encoding.code_bits().unpack(some)
        zero = np.logical_not(values.any(axis=1))
        wiped = np.zeros(some.shape[0], bool)
        for scale in encoding.scale_fields.values():
            health = scale.health[scale.patterns_of(some)]
            if scale.role is not Role.OFFSET:
                live = _live(encoding, scale, codes, some) & ((health & int(Health.ZERO)) > 0)
                self._tally(chunk, Offence.ZERO_SCALE_LIVE_CODES, blocks, at[live], start, scale)
                wiped |= live
            infinite = ((health & int(Health.MAY_OVERFLOW)) > 0) & ~np.isfinite(values).all(axis=1)
            self._tally(chunk, Offence.SCALE_NOT_FINITE, blocks, at[infinite], start, scale)
        full = np.isin(codes, encoding.codes.extremes(encoding.code_bits())).all(axis=1)
        self._tally(chunk, Offence.DEAD_BLOCK, blocks, at[zero & ~wiped], start)
        self._tally(chunk, Offence.SATURATED_BLOCK, blocks, at[full & ~zero & ~wiped], start)
        return zero


def _live(
    encoding: type[BlockEncoding], scale: ScaleField, codes: npt.NDArray[np.int16], some: Bytes
) -> npt.NDArray[np.bool_]:
    """Tell for each block whether the integers that `scale` multiplies say anything.

    A block that a writer left blank (all codes zero, the zero point, or whatever its quantizer
    puts down for a block of zeros) says nothing; a single differing code does.
    """
    if scale.role is Role.MIN_SCALE:
        mins = Blocks(encoding, some).m.reshape(some.shape[0], -1)
        return np.asarray(mins.any(axis=1))
    blanks = {0, *encoding.codes.zeros(encoding.code_bits()), *encoding.codes.blank}
    first = codes[:, :1]
    return ~((codes == first).all(axis=1) & np.isin(first[:, 0], list(blanks)))


@dataclass(slots=True)
class ValueCollector:
    """Collects one plain tensor, chunk by chunk."""

    encoding: type[PlainEncoding]
    geometry: Geometry
    kernels: Kernels

    def collect(self, raw: Bytes, start: int) -> ChunkStats:
        """Return what the values `raw`, of which the first is number `start`, hold.

        A chunk is a number of whole rows or a part of one row.
        """
        if self.encoding.kind == "integer":
            return self._integers(raw, start)
        encoding = self.encoding
        bits = encoding.bits(raw)
        columns = min(self.geometry.columns, bits.size)
        least = encoding.pattern_up_to(F16_UNDERFLOW)
        scan = self.kernels.scan_values(bits, columns, encoding.least_normal, least)
        chunk = ChunkStats(units=bits.size, values=self._summary(scan, bits.size))
        most = encoding.pattern_up_to(F16_OVERFLOW)
        if encoding.numbers(most)[0] == F16_OVERFLOW:
            most -= 1
        if scan.largest > most:
            self._large(chunk, bits, start, most)
        if scan.small_at.size:
            tallies = self.geometry.tally(
                Offence.LOST_BELOW_F16,
                scan.small_at + start,
                read=lambda some: encoding.numbers(bits[scan.small_at[some]]),
            )
            merge_tallies(chunk.tallies, tallies)
        first = start // self.geometry.columns
        chunk.dead = {int(row) + first: columns for row in scan.dead_rows}
        return chunk

    def _summary(self, scan: ValueScan, size: int) -> ValueStats:
        numbers = self.encoding.numbers([scan.smallest, min(scan.largest, self._last_finite)])
        seen = scan.smallest and scan.smallest <= self._last_finite
        return ValueStats(
            values=size,
            zero=scan.zero,
            subnormal=scan.subnormal,
            lost_below_f16=scan.small_at.size,
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
        values = chunk.values or ValueStats()
        magnitude = bits & bits.dtype.type((1 << (8 * bits.itemsize - 1)) - 1)
        at = np.flatnonzero(magnitude > most)
        numbers = self.encoding.numbers(bits[at])
        bad = ~np.isfinite(numbers)
        values.nan = int(np.isnan(numbers).sum())
        values.inf = int(np.isinf(numbers).sum())
        values.exceeds_f16 = int((~bad).sum())
        if bad.any():
            finite = magnitude[magnitude <= self._last_finite]
            values.max = float(self.encoding.numbers(finite.max())[0]) if finite.size else None
        for kind, chosen in ((Offence.VALUE_NOT_FINITE, bad), (Offence.EXCEEDS_F16, ~bad)):
            tallies = self.geometry.tally(
                kind, at[chosen] + start, read=numbers[chosen].__getitem__
            )
            merge_tallies(chunk.tallies, tallies)
        for expert, members in self.geometry.by_expert((at[bad] + start) // self.geometry.columns):
            tally = chunk.tallies.get((Offence.VALUE_NOT_FINITE, None, expert), Tally())
            nan = int(np.isnan(numbers[bad][members]).sum())
            tally.parts.update({"nan": nan, "inf": int(members.size) - nan})

    def _integers(self, raw: Bytes, start: int) -> ChunkStats:
        """Integers hold any value; only a bool can hold one that means nothing."""
        chunk = ChunkStats(units=raw.size // self.encoding.block_bytes)
        allowed = self.encoding.allowed_max
        if allowed is not None:
            at = np.flatnonzero(raw > allowed)
            tallies = self.geometry.tally(
                Offence.FORBIDDEN_CODE, at + start, read=raw[at].__getitem__
            )
            merge_tallies(chunk.tallies, tallies)
        return chunk


def make_collector(
    encoding: type[Encoding], geometry: Geometry, kernels: Kernels, front: Front, *, all_codes: bool
) -> BlockCollector | ValueCollector:
    """Return the collector of a tensor's encoding."""
    if issubclass(encoding, BlockEncoding):
        return BlockCollector(encoding, geometry, kernels, front, all_codes)
    if issubclass(encoding, PlainEncoding):
        return ValueCollector(encoding, geometry, kernels)
    raise TypeError(f"no collector reads {encoding.__name__}")
