"""The scales of a layer: where they lie, what their bits mean, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.container import StoredTensor
from qassay.core.source import Bytes
from qassay.core.stats import Histogram, Offence, ScaleStats, TensorStats, merge_tallies
from qassay.encodings.fields import Health, ScaleField
from qassay.encodings.layers.base import Layer, Role
from qassay.kernels.layer_chunk import LayerChunk
from qassay.kernels.layer_geometry import Entries, LayerGeometry
from qassay.kernels.select import Kernels
from qassay.kernels.summary import summarize

Index = npt.NDArray[np.int64]
Patterns = npt.NDArray[np.unsignedinteger[Any]]

_FORMATS = {
    "F16": (2, "f16"), "BF16": (2, "bf16"), "F32": (4, "f32"), "F64": (8, "f32"),
    "F8_E4M3": (1, "e4m3"), "F8_E8M0": (1, "mx"), "U8": (1, "mx"),
}  # fmt: skip
"""Bytes, and how the bits are to be read, by dtype of a part that holds scales."""

_AT_ONCE = 1 << 18


def scale_field(name: str, dtype: str) -> ScaleField | None:
    """Return a part of scales as the field whose bits can be judged; None for another dtype.

    Sound files hold subnormal values in E4M3 scales as a rule: a scale of the tensor multiplies
    them further.
    """
    known = _FORMATS.get(dtype)
    if known is None:
        return None
    width, form = known
    return ScaleField(name, width, format=form, subnormal_is_normal=form == "e4m3")


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """One part that holds a scale for every group, or block of groups.

    Attributes:
        geometry: How the layer's groups lie.
        stored: The part.
        field: What its bits mean.
        rows: Rows of scales, those of all experts together.
        width: Stored scales a row; those behind the layer's groups are padding.
    """

    geometry: LayerGeometry
    stored: StoredTensor
    field: ScaleField
    rows: int
    width: int

    @property
    def whole(self) -> bool:
        """Whether each is a scale of a whole matrix."""
        layer = self.geometry.layer
        return layer.groups == 1 and layer.group_rows >= layer.rows

    @property
    def shared(self) -> bool:
        """Whether all experts share one scale."""
        return self.rows == 1 and self.geometry.layer.total_rows > 1 and self.whole

    def read(self, start: int, stop: int) -> Cut:
        """Return rows (or groups, if they are the slow axis) `start` to `stop` of scales."""
        layer, size = self.geometry.layer, self.field.nbytes
        across = layer.total_rows if self.geometry.by_group else self.width
        used = across if self.geometry.by_group else layer.groups
        raw = self.stored.source.read(
            self.stored.offset + start * across * size, (stop - start) * across * size
        )
        grid = raw.reshape(stop - start, across, size)[:, :used]
        return Cut(self, np.ascontiguousarray(grid).reshape(-1, size), start, 0, used)

    def read_across(self, start: int, stop: int) -> Cut:
        """Return the scales of rows `start` to `stop` where groups are the slow axis."""
        layer, size = self.geometry.layer, self.field.nbytes
        grid = self.stored.raw().reshape(layer.groups, layer.total_rows, size)[:, start:stop]
        return Cut(self, np.ascontiguousarray(grid).reshape(-1, size), 0, start, stop - start)

    def first_rows(self, rows: Index) -> Index:
        """Return the first row of the matrix that rows of scales are for."""
        layer = self.geometry.layer
        if self.shared:
            return np.zeros_like(rows)
        per_expert = -(-layer.rows // layer.group_rows)
        expert, inside = np.divmod(rows, per_expert)
        return np.asarray(expert * layer.rows + inside * layer.group_rows)

    def patterns(self, raw: Bytes) -> Patterns:
        """Return bits as the field's tables take them: of a wide float the upper half."""
        if self.field.nbytes <= 2:
            return raw.reshape(-1).view(f"<u{self.field.nbytes}")
        bits = self.values(raw).view(np.uint32)
        top = (bits >> 16).astype(np.uint16)
        # What is not zero must not look like it without its lower half.
        return np.where((top & 0x7FFF == 0) & (bits & 0x7FFFFFFF != 0), top | 1, top)

    def values(self, raw: Bytes) -> npt.NDArray[np.float32]:
        """Return scales as float32 (F64 rounded)."""
        if self.field.nbytes <= 2:
            return self.field.values[self.patterns(raw)]
        with np.errstate(over="ignore", invalid="ignore"):
            return raw.reshape(-1).view(f"<f{self.field.nbytes}").astype(np.float32)

    def summary(self, histogram: Histogram, extremes: tuple[float, float] | None) -> ScaleStats:
        """Return what the part holds; the median of 32-bit scales is exact to 8 bits."""
        stats = summarize(histogram, self.field)
        if extremes is None:
            return stats
        return replace(stats, min_nonzero=extremes[0], max=extremes[1])

    def first_at_least(self, least: float) -> LayerChunk:
        """Return the place of the first scale of a magnitude of `least` or more."""
        layer = self.geometry.layer
        slow = layer.groups if self.geometry.by_group else self.rows
        fast = layer.total_rows if self.geometry.by_group else layer.groups
        step = max(1, _AT_ONCE // fast)
        chunk = LayerChunk()
        for start in range(0, slow, step):
            cut = self.read(start, min(start + step, slow))
            sizes = np.abs(self.values(cut.raw))
            at = np.flatnonzero((sizes >= least) & np.isfinite(sizes))
            if at.size:
                cut.add(chunk, Offence.LARGEST_SCALE, at[:1])
                break
        return chunk


@dataclass(slots=True, eq=False)
class Cut:
    """Some scales of a part, as stored.

    Attributes:
        scales: The part.
        raw: Their bytes, `[n, bytes]`.
        slow: The row of scales (or the group) of the first.
        fast: The group (or the row of the matrix) of the first.
        width: How many there are before the next row (or group).
    """

    scales: Scales
    raw: Bytes
    slow: int
    fast: int
    width: int
    patterns: Patterns = field(init=False)
    histogram: Histogram = field(init=False)

    def __post_init__(self) -> None:
        self.patterns = self.scales.patterns(self.raw)

    def entries(self, at: Index) -> Entries:
        """Return where scales are, told by position."""
        part, layer = self.scales, self.scales.geometry.layer
        slow, fast = np.divmod(at, self.width)
        slow, fast = slow + self.slow, fast + self.fast
        if part.geometry.by_group:
            stored, row, group = slow * layer.total_rows + fast, fast, slow
        else:
            stored, row, group = slow * part.width + fast, part.first_rows(slow), fast
        return Entries(stored, row, group, part.stored.offset + stored * part.field.nbytes)

    def having(self, flag: Health) -> Index:
        """Return the positions of scales that have `flag`; after `collect`."""
        chosen = (self.scales.field.health & int(flag)) > 0
        if not chosen[self.histogram.patterns].any():
            return np.zeros(0, np.int64)
        return np.flatnonzero(chosen[self.patterns])

    def collect(self, chunk: LayerChunk, kernels: Kernels) -> None:
        """Add a histogram of the scales, and what is wrong with them by themselves."""
        known = self.scales.field
        dense = kernels.count_bytes if self.patterns.itemsize == 1 else kernels.count_words
        self.histogram = Histogram.of_dense(dense(self.patterns))
        chunk.histograms[known.name] = self.histogram
        if known.nbytes > 2:
            sizes = np.abs(self.scales.values(self.raw))
            sizes = sizes[np.isfinite(sizes) & (sizes != 0)]
            if sizes.size:
                chunk.extremes[known.name] = float(sizes.min()), float(sizes.max())
        wanted = {
            Health.NOT_FINITE: Offence.SCALE_NOT_FINITE,
            Health.NEGATIVE: Offence.NEGATIVE_SCALE,
        }
        if not known.subnormal_is_normal:
            wanted[Health.SUBNORMAL] = Offence.SUBNORMAL_SCALE
        for flag, offence in wanted.items():
            self.add(chunk, offence, self.having(flag))

    def add(self, chunk: LayerChunk, kind: Offence, at: Index) -> None:
        """Tally scales at some positions."""
        if at.size == 0:
            return
        part = self.scales
        tallies = part.geometry.tally(
            kind,
            self.entries(at),
            field=part.field.name,
            read=lambda some: part.values(self.raw[at[some]]),
            whole_tensor=part.whole,
        )
        merge_tallies(chunk.tallies, tallies)


def scales_of(geometry: LayerGeometry) -> tuple[list[Scales], list[str]]:
    """Return the parts that hold a scale a group, and the names of those of another form."""
    layer = geometry.layer
    found, others = [], []
    for name, stored in layer.parts.items():
        if layer.encoding.part(name).role is not Role.SCALE:
            continue
        known = scale_field(name, str(stored.type.label))
        shape = _rows_and_width(layer, stored)
        if known is None or shape is None:
            others.append(name)
        else:
            found.append(Scales(geometry, stored, known, *shape))
    return found, others


def _rows_and_width(layer: Layer, stored: StoredTensor) -> tuple[int, int] | None:
    """Return how many rows of scales a part has, and how many a row; None where it fits not."""
    rows = (layer.experts or 1) * -(-layer.rows // layer.group_rows)
    if stored.size == 1:
        return 1, 1
    if layer.encoding.scales_by_group:
        exact = stored.size == layer.total_rows * layer.groups
        return (layer.total_rows, layer.groups) if exact else None
    width, rest = divmod(stored.size, rows)
    return None if rest or width < layer.groups else (rows, width)


def summary_of(name: str, layers: Iterable[tuple[Layer, TensorStats]]) -> ScaleStats:
    """Return what one part holds over several layers; where dtypes differ, there is no median."""
    grouped: dict[str, list[TensorStats]] = {}
    for layer, stats in layers:
        grouped.setdefault(str(layer.parts[name].type.label), []).append(stats)
    found = []
    for dtype, members in grouped.items():
        known = scale_field(name, dtype)
        assert known is not None  # noqa: S101 - it has been read
        summed = summarize(Histogram.sum([stats.histograms[name] for stats in members]), known)
        own = [stats.scales[name] for stats in members]
        found.append(_with_extremes(summed, own))
    if len(found) == 1:
        return found[0]
    added = {
        part: sum(getattr(each, part) for each in found)
        for part in ("blocks", "zero", "subnormal", "nonfinite", "negative")
    }
    return _with_extremes(replace(found[0], median=None, **added), found)


def _with_extremes(stats: ScaleStats, own: list[ScaleStats]) -> ScaleStats:
    least = [each.min_nonzero for each in own if each.min_nonzero is not None]
    most = [each.max for each in own if each.max is not None]
    return replace(stats, min_nonzero=min(least, default=None), max=max(most, default=None))
