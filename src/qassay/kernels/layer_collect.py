"""The collector of layers: reads a slab of codes and scales once, then settles what is rare."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from qassay.core.stats import Offence, merge_tallies
from qassay.encodings.fields import Health
from qassay.encodings.layers.layout import CodeLayout, Form
from qassay.kernels.layer_chunk import LayerChunk
from qassay.kernels.layer_codes import Slab, blank_codes, read_slab
from qassay.kernels.layer_geometry import Entries, LayerGeometry
from qassay.kernels.layer_index import GroupIndex
from qassay.kernels.layer_reference import BLANK, FULL, NAN
from qassay.kernels.layer_scales import Cut, Scales
from qassay.kernels.select import Kernels

Index = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_AT_ONCE = 1 << 20
"""Weights that are unpacked at once."""
_NAN_AT_ONCE = 1 << 16


@dataclass(slots=True, eq=False)
class LayerCollector:
    """Collects one layer, slab by slab.

    A slab is a run of groups, for all rows, where the codes of a column lie side by side
    (`Form.COLUMNS`, `Form.LANES`), else a run of rows, of one expert unless each row has its own
    scales.

    Attributes:
        geometry: Where its groups lie.
        layout: How its codes are packed; None: they are unpacked by the family, which is slower.
        index: Which columns each group has.
        scales: The parts that hold a scale a group.
        kernels: What does the reading.
        all_codes: Whether to count every code.
    """

    geometry: LayerGeometry
    layout: CodeLayout | None
    index: GroupIndex
    scales: list[Scales]
    kernels: Kernels
    all_codes: bool = False

    @property
    def by_group(self) -> bool:
        """Whether slabs are runs of groups."""
        return self.layout is not None and self.layout.form in (Form.COLUMNS, Form.LANES)

    def slabs(self, chunk_bytes: int) -> Iterator[tuple[int, int]]:
        """Yield the start and length of slabs of about `chunk_bytes` of codes each."""
        layer = self.geometry.layer
        size = layer.codes.nbytes or 0
        if self.by_group:
            step = max(1, chunk_bytes * layer.groups // max(1, size))
            for start in range(0, layer.groups, step):
                yield start, min(step, layer.groups - start)
            return
        step = max(1, chunk_bytes * layer.total_rows // max(1, size))
        if self.layout is None:
            step = max(1, min(step, _AT_ONCE // layer.columns))
        if layer.group_rows > 1 and not all(part.whole for part in self.scales):
            step = max(1, step // layer.group_rows) * layer.group_rows
        # A scale of several rows, or of a whole matrix, ends with its expert, and so do slabs.
        joined = layer.group_rows == 1 and not any(part.whole for part in self.scales)
        experts, rows = (1, layer.total_rows) if joined else (layer.experts or 1, layer.rows)
        for expert in range(experts):
            for inside in range(0, rows, step):
                yield expert * rows + inside, min(step, rows - inside)

    def collect(self, start: int, length: int) -> LayerChunk:
        """Return what the groups (or rows) `start` to `start + length` hold."""
        slab = read_slab(self.geometry, self.layout, self.index, start, length, self.kernels)
        chunk = LayerChunk(units=slab.flags.size)
        if self.all_codes:
            chunk.codes = slab.count(self.kernels)
        cuts = [cut for part in self.scales if (cut := self._cut(part, slab)) is not None]
        for cut in cuts:
            cut.collect(chunk, self.kernels)
        dead = self._dead(slab)
        if dead is not None:
            self._tally(chunk, Offence.DEAD_BLOCK, slab, self._finite(dead, slab, cuts))
        if slab.has_flags:
            full = (slab.flags & FULL) > 0
            if dead is not None:
                full &= ~dead
            self._tally(chunk, Offence.SATURATED_BLOCK, slab, np.flatnonzero(full))
            if (slab.flags & NAN).any():
                self._nan(chunk, slab)
        decoded = None if dead is None else dead.copy()
        for cut in cuts:
            decoded = self._zero(chunk, cut, slab, dead, decoded)
            at = cut.having(Health.MAY_OVERFLOW)
            if at.size:
                cut.add(chunk, Offence.SCALE_NOT_FINITE, at[self._overflow(cut, at)])
        if decoded is not None and decoded.any():
            decoded = decoded | self._empty(slab)
            counts = decoded.reshape(slab.shape).sum(axis=0 if self.by_group else 1)
            chunk.dead = (0 if self.by_group else start, np.asarray(counts, np.int64))
        return chunk

    def _empty_groups(self) -> Flags:
        """Return which groups an index gives no columns: nothing lies under their scales."""
        return np.diff(self.index.starts) == 0

    def _empty(self, slab: Slab) -> Flags:
        """Return which segments of a slab have no columns."""
        if self.index.natural:
            return np.zeros(slab.flags.size, bool)
        _, groups = slab.units(np.arange(slab.flags.size))
        return self._empty_groups()[groups]

    def _finite(self, dead: Flags, slab: Slab, cuts: list[Cut]) -> Index:
        """Take the segments whose scale is no number out of `dead`; return the rest."""
        for cut in cuts:
            at = cut.having(Health.NOT_FINITE)
            # A scale of a whole matrix comes with its first slab: no slab may go by it alone.
            if at.size and not cut.scales.whole:
                lost = np.zeros(cut.patterns.size, bool)
                lost[at] = True
                dead &= ~self._spread(cut, lost, slab)
        return np.flatnonzero(dead)

    def _spread(self, cut: Cut, chosen: Flags, slab: Slab) -> Flags:
        """Return for each segment of a slab what is said of its scale."""
        layer = self.geometry.layer
        if cut.scales.whole:
            return np.full(slab.flags.size, chosen.any())
        if self.geometry.by_group:
            grid = chosen.reshape(-1, cut.width)
            return grid.reshape(-1) if self.by_group else np.ascontiguousarray(grid.T).reshape(-1)
        grid = chosen.reshape(-1, layer.groups)
        return np.repeat(grid, layer.group_rows, axis=0)[: slab.length].reshape(-1)

    def _dead(self, slab: Slab) -> Flags | None:
        """Return which segments hold only codes that stand for zero; None where none does."""
        if not slab.has_flags:
            return None
        at = np.flatnonzero(slab.flags & BLANK)
        if at.size == 0:
            return None
        if slab.zero_flags:
            live = np.zeros(0, np.int64)
        else:
            rows, groups = slab.units(at)
            live = np.flatnonzero(slab.first_codes(at) != blank_codes(slab, rows, groups))
        dead = (slab.flags & BLANK) > 0
        dead[at[live]] = False
        return dead if dead.any() else None

    def _tally(self, chunk: LayerChunk, kind: Offence, slab: Slab, at: Index) -> None:
        if at.size:
            merge_tallies(chunk.tallies, self.geometry.tally(kind, self._entries(slab, at)))

    def _entries(self, slab: Slab, at: Index) -> Entries:
        """Return where segments are, told by position in the slab, in the order of the file."""
        rows, groups = slab.units(at)
        keys = self.geometry.keys(rows, groups)
        if self.geometry.by_group != self.by_group:
            order = np.argsort(keys, kind="stable")
            rows, groups, keys = rows[order], groups[order], keys[order]
        return Entries(keys, rows, groups, slab.offsets(rows, groups))

    def _nan(self, chunk: LayerChunk, slab: Slab) -> None:
        """Tally codes that are NaN or infinite, one by one."""
        layer = self.geometry.layer
        name = layer.encoding.codes_part(layer.parts)
        at = np.flatnonzero(slab.flags & NAN)
        step = max(1, _NAN_AT_ONCE // layer.group)
        for begin in range(0, at.size, step):
            rows, columns, codes = slab.not_finite(at[begin : begin + step])
            keys = rows * layer.columns + columns
            entries = Entries(keys, rows, columns // layer.group, layer.codes.offset + keys)
            tallies = self.geometry.tally(
                Offence.FORBIDDEN_CODE, entries, field=name, read=codes.__getitem__
            )
            for _, tally in tallies:
                tally.places = [
                    (key, replace(place, column=key % layer.columns)) for key, place in tally.places
                ]
            merge_tallies(chunk.tallies, tallies)

    def _cut(self, part: Scales, slab: Slab) -> Cut | None:
        """Return the scales that belong to a slab; of those of a whole matrix, with its first."""
        layer = self.geometry.layer
        stop = slab.start + slab.length
        if self.geometry.by_group:
            whole = part.read if self.by_group else part.read_across
            return whole(slab.start, stop)
        expert, inside = divmod(slab.start, layer.rows)
        if part.whole:
            late = inside or (part.shared and expert)
            return None if late else part.read(expert, expert + 1)
        first = expert * -(-layer.rows // layer.group_rows) + inside // layer.group_rows
        return part.read(first, first + -(-slab.length // layer.group_rows))

    def _zero(
        self, chunk: LayerChunk, cut: Cut, slab: Slab, dead: Flags | None, decoded: Flags | None
    ) -> Flags | None:
        """Add scales that are zero over live codes; return what decodes to zeros all in all."""
        zero = cut.having(Health.ZERO)
        if zero.size == 0:
            return decoded
        if cut.scales.whole:
            # What lies under it may be in other slabs: settled when all of them have been seen.
            other = LayerChunk()
            cut.add(other, Offence.ZERO_SCALE_LIVE_CODES, zero)
            merge_tallies(chunk.wiped, other.tallies.items())
            return decoded
        live = self._live(cut, slab, dead)
        if not self.index.natural:
            live &= ~self._empty_groups()[cut.entries(np.arange(live.size)).groups]
        cut.add(chunk, Offence.ZERO_SCALE_LIVE_CODES, zero[live[zero]])
        chosen = np.zeros(cut.patterns.size, bool)
        chosen[zero] = True
        wiped = self._spread(cut, chosen, slab)
        return wiped if decoded is None else decoded | wiped

    def _live(self, cut: Cut, slab: Slab, dead: Flags | None) -> Flags:
        """Return which scales of a slab have a code under them that stands for something."""
        if dead is None:
            return np.ones(cut.patterns.size, bool)
        grid = ~dead.reshape(slab.shape)
        if self.geometry.by_group:
            return grid.reshape(-1) if self.by_group else np.ascontiguousarray(grid.T).reshape(-1)
        starts = np.arange(0, slab.length, self.geometry.layer.group_rows)
        return np.logical_or.reduceat(grid, starts, axis=0).reshape(-1)

    def _overflow(self, cut: Cut, at: Index) -> Flags:
        """Return which of some scales overflow float32 under the codes that they multiply."""
        layer = self.geometry.layer
        entries = cut.entries(at)
        tall = min(layer.group_rows, layer.rows)
        found = np.zeros(at.size, bool)
        starts = np.arange(0, layer.columns, layer.group)
        step = max(1, _AT_ONCE // layer.columns)
        for row in np.unique(entries.rows // step * step).tolist():
            mine = np.flatnonzero((entries.rows >= row) & (entries.rows < row + step))
            stop = min(row + step + tall - 1, layer.total_rows)
            infinite = np.isinf(layer.encoding.unpack(layer, row, stop).dequantize())
            grid = np.logical_or.reduceat(infinite, starts, axis=1)
            for below in range(tall):
                inside = entries.rows[mine] + below - row
                seen = mine[inside < stop - row]
                found[seen] |= grid[inside[inside < stop - row], entries.groups[seen]]
        return found
