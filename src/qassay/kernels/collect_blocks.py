"""The collector of block encodings: reads a chunk once, then settles what is rare exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.core.stats import Histogram, Offence, merge_tallies
from qassay.encodings.base import (
    BlockEncoding,
    Blocks,
)
from qassay.encodings.fields import Health, Role, ScaleField
from qassay.kernels.chunk import CODE_SAMPLE, ChunkStats, Front
from qassay.kernels.geometry import Geometry, runs
from qassay.kernels.plan import blank_blocks, scan_plan
from qassay.kernels.select import Kernels

Index = npt.NDArray[np.int64]
_EXACT_AT_ONCE = 4096
"""Blocks that the exact test decodes at once: bounds its memory whatever the file holds."""


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
        hit = np.zeros(blocks.shape[0], bool)
        for at in doubtful:
            hit[at] = True
        self._settle(chunk, blocks, np.flatnonzero(hit), start)
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
        present = scale.health[histogram.patterns]
        for flag, offence in wanted.items():
            at = self._locate(histogram, present, scale, blocks, flag)
            if at.size:
                self._tally(chunk, offence, blocks, at, start, scale)
        self._largest(chunk, scale, blocks, start)
        return [
            self._locate(histogram, present, scale, blocks, Health.MAY_OVERFLOW),
            self._locate(histogram, present, scale, blocks, Health.ZERO),
        ]

    def _locate(
        self,
        histogram: Histogram,
        present: npt.NDArray[np.uint8],
        scale: ScaleField,
        blocks: Bytes,
        flag: Health,
    ) -> Index:
        """Return the blocks whose scale has `flag`; `present` is the health of the patterns."""
        count = int(histogram.counts[(present & int(flag)) > 0].sum())
        if count == 0:
            return np.zeros(0, np.int64)
        chosen = (scale.health & int(flag)) > 0
        return self.kernels.locate(blocks, scale.offset, scale.nbytes, chosen, count)

    def _tally(
        self,
        chunk: ChunkStats,
        offence: Offence,
        blocks: Bytes,
        at: Index,
        start: int,
        scale: ScaleField | None = None,
        part: str = "",
    ) -> None:
        """Tally the blocks at `at`, which in the tensor are numbered from `start` on."""
        if scale is None:
            tallies = self.geometry.tally(offence, at + start)
            for _, tally in tallies if part else ():
                tally.parts[part] = tally.count
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
        unsigned = (scale.sign or scale.patterns) - 1
        magnitude = int((finite & unsigned).max())
        if magnitude and self.front.advances(scale.name, magnitude, start):
            chosen = np.zeros(scale.patterns, bool)
            chosen[[magnitude, magnitude | (scale.sign or 0)]] = True
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
        """Say of the doubtful blocks which are dead, wiped, saturated or overflow."""
        rows = _RowCounter(chunk, self.geometry, whole=blocks.shape[0] >= self.geometry.per_row)
        for begin in range(0, doubtful.size, _EXACT_AT_ONCE):
            at = doubtful[begin : begin + _EXACT_AT_ONCE]
            some = np.ascontiguousarray(blocks[at])
            zero = self._blank(some)
            self._tally(chunk, Offence.DEAD_BLOCK, blocks, at[zero], start)
            left = np.flatnonzero(~zero)
            if left.size:
                zero[left] = self._exact(chunk, blocks, at[left], start)
            rows.add((at[zero] + start) // self.geometry.per_row)
        rows.finish()

    def _blank(self, some: Bytes) -> npt.NDArray[np.bool_]:
        """Tell which blocks are, byte for byte, what a writer leaves for a block of zeros."""
        signs, patterns = blank_blocks(self.encoding)
        unsigned = some & ~signs
        blank = np.zeros(some.shape[0], bool)
        for pattern in patterns:
            blank |= (unsigned == pattern).all(axis=1)
        return blank

    def _exact(
        self, chunk: ChunkStats, blocks: Bytes, at: Index, start: int
    ) -> npt.NDArray[np.bool_]:
        """Judge a few blocks by decoding them; return which of them decode to zeros only."""
        encoding = self.encoding
        some = np.ascontiguousarray(blocks[at])
        flat = self.kernels.dequantize(some.reshape(-1), encoding)
        values = flat.reshape(some.shape[0], -1)
        codes = self.kernels.unpack_codes(some, encoding)
        zero = np.logical_not(values.any(axis=1))
        wiped = np.zeros(some.shape[0], bool)
        for scale in encoding.scale_fields.values():
            health = scale.health[scale.patterns_of(some)]
            empty = (health & int(Health.ZERO)) > 0
            if scale.role is not Role.OFFSET and empty.any():
                live = _live(encoding, scale, codes, some) & empty
                self._tally(chunk, Offence.ZERO_SCALE_LIVE_CODES, blocks, at[live], start, scale)
                wiped |= live
            infinite = ((health & int(Health.MAY_OVERFLOW)) > 0) & ~np.isfinite(values).all(axis=1)
            self._tally(chunk, Offence.SCALE_NOT_FINITE, blocks, at[infinite], start, scale)
        bits = encoding.code_bits()
        low, high = encoding.codes.range(bits)
        extreme = np.isin(np.arange(low, high + 1), encoding.codes.extremes(bits))
        full = extreme[codes - low].all(axis=1)
        # No reference quantizer leaves a scale over codes that all stand for zero.
        dead, scaled = zero & ~wiped, self._scaled(some)
        self._tally(chunk, Offence.DEAD_BLOCK, blocks, at[dead & ~scaled], start)
        self._tally(chunk, Offence.DEAD_BLOCK, blocks, at[dead & scaled], start, part="scaled")
        self._tally(chunk, Offence.SATURATED_BLOCK, blocks, at[full & ~zero & ~wiped], start)
        return zero

    def _scaled(self, some: Bytes) -> npt.NDArray[np.bool_]:
        """Tell which blocks have a scale that is not zero; never with powers of two."""
        scaled = np.zeros(some.shape[0], bool)
        for scale in self.encoding.scale_fields.values():
            may_be_zero = scale.health & int(Health.ZERO)
            if scale.role is not Role.OFFSET and may_be_zero.any():
                scaled |= may_be_zero[scale.patterns_of(some)] == 0
        return scaled


class _RowCounter:
    """Adds up the zero blocks of rows, which come in ascending order, a batch at a time."""

    def __init__(self, chunk: ChunkStats, geometry: Geometry, *, whole: bool) -> None:
        self._chunk = chunk
        self._geometry = geometry
        self._whole = whole
        self._row, self._units = -1, 0

    def add(self, rows: Index) -> None:
        """Count a zero block for each number in `rows`."""
        if rows.size == 0:
            return
        numbers, units = runs(rows)
        if numbers[0] == self._row:
            units[0] += self._units
        else:
            self.finish()
        # The last row of a batch may go on in the next one.
        self._row, self._units = int(numbers[-1]), int(units[-1])
        dead = numbers[:-1][units[:-1] == self._geometry.per_row]
        merge_tallies(self._chunk.tallies, self._geometry.tally_dead_rows(dead))

    def finish(self) -> None:
        """Settle the row that was still open."""
        if self._units and not self._whole:
            self._chunk.dead[self._row] = self._units
        elif self._units == self._geometry.per_row:
            dead = np.array([self._row], np.int64)
            merge_tallies(self._chunk.tallies, self._geometry.tally_dead_rows(dead))
        self._units = 0


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
    if scale.role is Role.SUB_SCALE:
        first = encoding.sub_fields.index(scale) * encoding.group
        codes = codes[:, first : first + encoding.group]
    blanks = {0, *encoding.codes.zeros(encoding.code_bits()), *encoding.codes.blank}
    ends = codes[:, :1]
    return ~((codes == ends).all(axis=1) & np.isin(ends[:, 0], list(blanks)))
