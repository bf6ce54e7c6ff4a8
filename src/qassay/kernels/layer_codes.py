"""A slab of a layer's codes: which segments are blank or full, and what a few of them hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.layers.base import Layer
from qassay.encodings.layers.canonical import Canonical
from qassay.encodings.layers.layout import CodeLayout, Form, Zeros
from qassay.kernels.layer_geometry import LayerGeometry
from qassay.kernels.layer_index import GroupIndex
from qassay.kernels.layer_reference import BLANK, FULL
from qassay.kernels.select import Kernels

Index = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Slab:
    """Some groups of all rows, or some rows, and the flags of their segments.

    Attributes:
        layer: The layer.
        layout: How codes are packed; None: `canonical` holds them.
        index: Which columns each group has.
        start: The first group, or row.
        length: How many of them.
        flags: Of each segment, uint8, in the order of `shape`.
        data: The codes as they are packed: words `[K / 8, N]` (of the groups of the slab, or of
            all where an index deals columns out), words `[K, N / 8]`, or bytes `[rows, width]`.
        canonical: Where there is no layout.
    """

    layer: Layer
    layout: CodeLayout | None
    index: GroupIndex
    start: int
    length: int
    flags: Bytes
    data: npt.NDArray[Any]
    canonical: Canonical | None = None

    @property
    def by_group(self) -> bool:
        """Whether it is a run of groups."""
        return self.layout is not None and self.layout.form in (Form.COLUMNS, Form.LANES)

    @property
    def shape(self) -> tuple[int, int]:
        """Of the segments: `(groups, N)` or `(rows, G)`."""
        layer = self.layer
        return (self.length, layer.rows if self.by_group else layer.groups)

    @property
    def has_flags(self) -> bool:
        """Whether any segment has a flag."""
        return bool(self.flags.any())

    @property
    def zero_flags(self) -> bool:
        """Whether a blank segment is one of zeros, not only of codes that are alike."""
        return self.layout is None or self.layout.floats

    def units(self, at: Index) -> tuple[Index, Index]:
        """Return row and group of segments, told by position."""
        slow, fast = np.divmod(at, self.shape[1])
        return (fast, slow + self.start) if self.by_group else (slow + self.start, fast)

    def first_codes(self, at: Index) -> npt.NDArray[np.uint8]:
        """Return the first stored code of segments, as an unsigned integer."""
        assert self.layout is not None  # noqa: S101 - without one, blank means zero
        rows, groups = self.units(at)
        columns = self.index.first_of(groups)
        form = self.layout.form
        if form is Form.COLUMNS:
            words = self.data[columns // 8 - self._origin() // 8, rows]
            return np.asarray((words >> (columns % 8 * 4).astype(np.uint32)) & 15, np.uint8)
        if form is Form.LANES:
            nibble = np.argsort(self.layout.lanes)[rows % 8]
            words = self.data[columns - self._origin(), rows // 8]
            return np.asarray((words >> (nibble * 4).astype(np.uint32)) & 15, np.uint8)
        inside = rows - self.start
        if form is Form.NIBBLES:
            stored = self.data[inside, columns // 2]
            return np.asarray((stored >> (columns % 2 * 4).astype(np.uint8)) & 15, np.uint8)
        return np.asarray(self.data[inside, columns], np.uint8)

    def _origin(self) -> int:
        """Return the column with which `data` begins, where groups are the slow axis."""
        return int(self.index.starts[self.start]) if self.index.natural else 0

    def offsets(self, rows: Index, groups: Index) -> Index | None:
        """Return the byte, in the file of the codes, at which segments begin."""
        layer = self.layer
        if self.layout is None:
            return None
        columns = self.index.first_of(groups)
        form = self.layout.form
        if form is Form.COLUMNS:
            at = (columns // 8 * layer.rows + rows) * 4
        elif form is Form.LANES:
            at = (columns * (layer.rows // 8) + rows // 8) * 4
        elif form is Form.NIBBLES:
            at = rows * (layer.columns // 2) + columns // 2
        else:
            at = rows * layer.columns + columns
        return np.asarray(layer.codes.offset + at, np.int64)

    def not_finite(self, at: Index) -> tuple[Index, Index, npt.NDArray[np.uint8]]:
        """Return row, column and code of the 8-bit floats of segments that are no number."""
        assert self.layout is not None  # noqa: S101 - only such segments are flagged
        rows, groups = self.units(at)
        columns = (groups * self.layer.group)[:, None] + np.arange(self.layer.group)
        inside = np.minimum(columns, self.layer.columns - 1)
        codes = self.data[(rows - self.start)[:, None], inside]
        bad = ((codes & 0x7F) >= self.layout.nan) & (columns == inside)
        return np.repeat(rows, bad.sum(axis=1)), columns[bad], codes[bad]

    def count(self, kernels: Kernels) -> Index:
        """Return how often each stored code occurs, from the lowest on."""
        if self.layout is None:
            assert self.canonical is not None  # noqa: S101 - one of the two is there
            return count_canonical(self.canonical, self.layer.bits, kernels)
        data = self.data
        if self.layout.form is Form.COLUMNS and not self.index.natural:
            # Slabs share the words: each counts its part of them.
            ends = [at * data.shape[0] // self.layer.groups for at in self._bounds()]
            data = data[ends[0] : ends[1]]
        return folded(kernels.count_bytes(data.reshape(-1).view(np.uint8)), self.layout)

    def _bounds(self) -> tuple[int, int]:
        return self.start, self.start + self.length


def folded(counts: Index, layout: CodeLayout) -> Index:
    """Return counts of codes, from the lowest on, given those of bytes."""
    if layout.form is Form.BYTES:
        return counts if layout.floats else np.roll(counts, 128)
    square = counts.reshape(16, 16)
    return np.asarray(square.sum(axis=0) + square.sum(axis=1), np.int64)


def code_range(codes: npt.NDArray[Any], bits: int) -> tuple[int, int]:
    """Return the lowest canonical code and how many there are: signed ones take a whole byte."""
    return (-128, 256) if codes.dtype.kind == "i" else (0, 1 << bits)


def count_canonical(canonical: Canonical, bits: int, kernels: Kernels) -> Index:
    """Return how often each code occurs, from the lowest on."""
    low, possible = code_range(canonical.codes, bits)
    counts = kernels.count_bytes(np.ascontiguousarray(canonical.codes).view(np.uint8).reshape(-1))
    return np.roll(counts, -low)[:possible]


def read_slab(
    geometry: LayerGeometry,
    layout: CodeLayout | None,
    index: GroupIndex,
    start: int,
    length: int,
    kernels: Kernels,
) -> Slab:
    """Read a slab and flag its segments."""
    layer = geometry.layer
    if layout is None:
        return _unpacked(layer, index, start, length)
    stored, groups = layer.codes, index.starts[start : start + length + 1]
    if layout.form in (Form.COLUMNS, Form.LANES):
        per = 8 if layout.form is Form.COLUMNS else 1
        width = layer.rows * per // 8
        first, last = 0, layer.columns
        if index.natural:
            first, last = int(groups[0]), int(groups[-1])
        raw = stored.source.read(
            stored.offset + first // per * width * 4, (last - first) // per * width * 4
        )
        words = raw.view("<u4").reshape(-1, width)
        if not words.flags.aligned:
            words = words.copy()
        if layout.form is Form.LANES:
            lanes = np.array(layout.lanes)
            flags = kernels.scan_lanes(words, groups - groups[0], lanes)
        else:
            columns = index.columns[groups[0] : groups[-1]]
            if index.natural:
                columns = columns - first
            flags = kernels.scan_columns(words, columns, groups - groups[0], index.natural)
        return Slab(layer, layout, index, start, length, flags, words)
    nibbles = layout.form is Form.NIBBLES
    width = layer.columns // 2 if nibbles else layer.columns
    rows = stored.source.read(stored.offset + start * width, length * width).reshape(-1, width)
    if nibbles:
        flags = kernels.scan_nibbles(rows, layer.group // 2, layout.floats)
    else:
        size = min(layer.group, width)
        flags = kernels.scan_bytes(rows, size, layout.floats, layout.top, layout.nan)
    return Slab(layer, layout, index, start, length, flags, rows)


def _unpacked(layer: Layer, index: GroupIndex, start: int, length: int) -> Slab:
    """Unpack a slab of rows by the family, and flag its segments: a blank one is one of zeros."""
    canonical = layer.encoding.unpack(layer, start, start + length)
    flags = np.zeros((length, layer.groups), np.uint8)
    zero = canonical.centred() == 0
    if canonical.table is None:
        signed = canonical.codes.dtype.kind == "i"
        ends = (-128, -127, 127) if signed else (0, (1 << layer.bits) - 1)
        full = np.isin(canonical.codes, ends)
    else:
        sizes = np.abs(canonical.table)
        top = np.max(sizes, initial=0, where=np.isfinite(sizes))
        full = sizes[canonical.codes] == top
    filled = np.flatnonzero(np.diff(index.starts) > 0)
    if filled.size:
        starts = index.starts[filled]
        for flag, chosen in ((BLANK, zero), (FULL, full)):
            ordered = chosen if index.natural else chosen[:, index.columns]
            whole = np.logical_and.reduceat(ordered, starts, axis=1)
            flags[:, filled] |= (whole * flag).astype(np.uint8)
    return Slab(layer, None, index, start, length, flags.reshape(-1), canonical.codes, canonical)


def blank_codes(slab: Slab, rows: Index, groups: Index) -> npt.NDArray[np.uint8]:
    """Return the stored code, as an unsigned integer, that stands for zero in some groups."""
    layout = slab.layout
    assert layout is not None  # noqa: S101 - without one, blank means zero
    if layout.zeros is None:
        return np.full(rows.size, layout.zero, np.uint8)
    return _zero_points(slab.layer, layout.zeros, rows // slab.layer.group_rows, groups)


def _zero_points(layer: Layer, zeros: Zeros, rows: Index, groups: Index) -> npt.NDArray[np.uint8]:
    stored = layer.array(zeros.part)
    if zeros.bits == 8:
        signed = stored.reshape(-1, layer.groups)[rows, groups].astype(np.int64)
        return np.asarray((signed + zeros.offset) & 0xFF, np.uint8)
    nibble = np.argsort(zeros.lanes)[rows % 8]
    words = stored[groups, rows // 8] if zeros.by_group else stored[rows // 8, groups]
    values = words.astype(np.int64) >> (4 * nibble)
    return np.asarray((values + zeros.offset) & 15, np.uint8)
