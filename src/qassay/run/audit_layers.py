"""Reading the weights that are kept in several tensors; imported only where there are some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from qassay.core.container import StoredTensor
from qassay.core.errors import QassayError
from qassay.core.finding import Location
from qassay.core.stats import (
    CodeStats,
    Histogram,
    Offence,
    Tally,
    TensorStats,
    merge_tallies,
)
from qassay.encodings.layers import Layer, Role
from qassay.encodings.registry import for_stored_type
from qassay.kernels.geometry import MOST_EXPERTS
from qassay.kernels.layer_chunk import LayerChunk, LayerTotal
from qassay.kernels.layer_collect import LayerCollector
from qassay.kernels.layer_geometry import Entries, LayerGeometry
from qassay.kernels.layer_index import index_of
from qassay.kernels.layer_moments import FULL_SAMPLE, MOST_COLUMNS, SAMPLE, moments
from qassay.kernels.layer_scales import Scales, scales_of
from qassay.kernels.select import Kernels
from qassay.rules.base import TensorFacts
from qassay.run.options import CheckOptions
from qassay.run.plan import Chunk

_SUMMARY = -1
"""Start of the chunk that stands for all that is small, or looked at in a sample."""
_KEPT = 16
_AT_ONCE = 1 << 18
_STANDS_OUT = 16.0
"""How many times the median the largest scale must be for its place to be looked for."""


@dataclass(slots=True)
class LayerReading:
    """One layer while it is read.

    Attributes:
        layer: The layer.
        collector: Reads its slabs.
        full_stats: Whether all codes are counted.
        total: What was read so far.
    """

    layer: Layer
    collector: LayerCollector
    full_stats: bool
    total: LayerTotal = field(init=False)

    def __post_init__(self) -> None:
        self.total = LayerTotal(self.layer.total_rows)

    @property
    def names(self) -> list[str]:
        """Tensors that are not checked if it cannot be read."""
        return [part.name for part in self.layer.parts.values()]

    def chunks(self, number: int, chunk_bytes: int) -> Iterator[Chunk]:
        """Yield what is to be read, in the order of the file."""
        for start, length in self.collector.slabs(chunk_bytes):
            yield Chunk(number, start, length)
        # Last, for a sample of a mapped file costs little once its pages have been touched.
        yield Chunk(number, _SUMMARY, 0)

    def bytes_of(self, chunk: Chunk) -> int:
        """Return about how many bytes a chunk stands for, all parts together."""
        whole = self.layer.groups if self.collector.by_group else self.layer.total_rows
        return self.layer.nbytes * chunk.units // whole

    def read(self, chunk: Chunk) -> LayerChunk:
        """Collect one chunk."""
        if chunk.start != _SUMMARY:
            return self.collector.collect(chunk.start, chunk.units)
        found = LayerChunk(tallies=dict(self.collector.index.outside))
        for name, part in self.layer.parts.items():
            role = self.layer.encoding.part(name).role
            if role in (Role.GLOBAL, Role.ACTIVATION):
                found.scalars[name] = _scalars(found, self.layer, part, name, role)
        most = FULL_SAMPLE if self.full_stats else SAMPLE
        collector = self.collector
        found.moments = moments(
            self.layer, collector.layout, collector.index, collector.kernels, most
        )
        return found

    def add(self, found: LayerChunk) -> None:
        """Add what a chunk gave; the order does not matter."""
        self.total.add(found)

    def finish(self) -> TensorFacts:
        """Return what the layer holds."""
        total, histograms = self.total.total, self.total.histograms()
        stats = TensorStats(
            units=total.units,
            rows=self.layer.total_rows,
            histograms=histograms,
            tallies=dict(total.tallies),
            scalars=total.scalars,
        )
        _settle_rows(stats, self.layer, self.total, self.collector.geometry)
        for part in self.collector.scales:
            name = part.field.name
            stats.scales[name] = part.summary(histograms[name], total.extremes.get(name))
            _largest(stats, part)
        if total.moments is not None:
            stats.layer, counts = total.moments
            groups, complete = stats.layer.groups, stats.layer.complete
            if total.codes is not None:
                counts, groups, complete = total.codes, total.units, True
            stats.codes = CodeStats(Histogram.of_dense(counts), groups, complete)
        return TensorFacts(self.layer.codes, self.layer.encoding, stats, layer=self.layer)


def _settle_rows(
    stats: TensorStats, layer: Layer, total: LayerTotal, geometry: LayerGeometry
) -> None:
    """Tally rows that are zero as a whole, and scales of whole matrices that are zero."""
    dead = np.zeros(0, np.int64)
    if total.dead is not None and layer.total_rows > 1:
        dead = np.flatnonzero(total.dead == layer.groups)
        entries = Entries(dead, dead, np.zeros_like(dead), _row_offsets(layer, dead))
        tallies = geometry.tally(Offence.DEAD_ROW, entries, whole_rows=True)
        merge_tallies(stats.tallies, tallies)
    for key, tally in total.total.wiped.items():
        _, _, expert = key
        rows = layer.total_rows if expert is None else layer.rows
        mine = dead.size if expert is None else int((dead // layer.rows == expert).sum())
        if mine < rows:
            merge_tallies(stats.tallies, [(key, tally)])


def _row_offsets(layer: Layer, rows: np.ndarray) -> np.ndarray | None:
    """Return where rows begin in the file of the codes; None where they are dealt out."""
    if layer.encoding.scales_by_group:
        return None
    width, rest = divmod(layer.codes.nbytes or 0, layer.total_rows)
    return None if rest else layer.codes.offset + rows * width


def _largest(stats: TensorStats, part: Scales) -> None:
    """Find the first of the largest scales, if it stands out enough to matter."""
    scales = stats.scales[part.field.name]
    if not scales.median or scales.max is None or scales.max < _STANDS_OUT * scales.median:
        return
    found = part.first_at_least(scales.max)
    merge_tallies(stats.tallies, found.tallies.items())


def _scalars(
    found: LayerChunk, layer: Layer, part: StoredTensor, name: str, role: Role
) -> tuple[float, ...]:
    """Return the first values of a part; tally what is wrong with scales of whole tensors."""
    known = for_stored_type(part.type)
    if known is None or part.size == 0:
        return ()
    kept: tuple[float, ...] = ()
    for begin in range(0, part.size, _AT_ONCE):
        count = min(_AT_ONCE, part.size - begin)
        size = known.block_bytes
        values = known.dequantize(part.source.read(part.offset + begin * size, count * size))
        if begin == 0:
            with np.errstate(invalid="ignore"):  # a signalling NaN is an answer, not a fault
                kept = tuple(values[:_KEPT].astype(float).tolist())
        if role is Role.GLOBAL:
            for kind, chosen in (
                (Offence.SCALE_NOT_FINITE, ~np.isfinite(values)),
                (Offence.ZERO_SCALE_LIVE_CODES, values == 0),
                (Offence.NEGATIVE_SCALE, values < 0),
            ):
                at = np.flatnonzero(chosen)
                _add_scalars(found, kind, layer, part, name, values, at, begin, size)
    return kept


def _add_scalars(
    found: LayerChunk,
    kind: Offence,
    layer: Layer,
    part: StoredTensor,
    name: str,
    values: np.ndarray,
    at: np.ndarray,
    begin: int,
    size: int,
) -> None:
    for index in at.tolist():
        expert = begin + index if layer.experts == part.size else None
        offset = part.offset + (begin + index) * size
        place = Location(field=name, byte_offset=offset, value=float(values[index]))
        tally = Tally(count=1, places=[(begin + index, place)])
        merge_tallies(found.tallies, [((kind, name, expert), tally)])


def reading_of(layer: Layer, kernels: Kernels, options: CheckOptions) -> LayerReading | str:
    """Return how to read a layer, or why that cannot be done."""
    try:
        index = index_of(layer)
    except QassayError as error:
        return error.message
    geometry = LayerGeometry(layer, index.first)
    layout = layer.encoding.layout(layer)
    if layout is None and layer.columns > MOST_COLUMNS:
        return f"its rows of {layer.columns:,} weights are too long to be unpacked"
    scales, others = scales_of(geometry)
    if others:
        return f"its {others[0]} is of a shape or type whose numbers are not judged"
    experts = layer.experts or 1
    if experts > MOST_EXPERTS and (layer.group_rows > 1 or any(part.whole for part in scales)):
        return f"its {experts:,} experts are too many to be read one by one"
    if layout is not None and layout.form.value in ("nibbles", "bytes") and not index.natural:
        layout = None
    collector = LayerCollector(geometry, layout, index, scales, kernels, options.full_stats)
    return LayerReading(layer, collector, options.full_stats)
