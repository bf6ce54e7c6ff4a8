"""Reading every tensor of a container once and summarising it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from qassay.core.container import Container, Skipped, StoredTensor
from qassay.core.errors import QassayError
from qassay.core.stats import Offence, TensorStats, merge_tallies
from qassay.encodings.base import BlockEncoding, Encoding
from qassay.encodings.registry import assembled, for_stored_type
from qassay.kernels.chunk import Accumulator, ChunkStats, Front
from qassay.kernels.collect import BlockCollector, ValueCollector, make_collector
from qassay.kernels.geometry import Geometry, geometry_of
from qassay.kernels.select import Kernels, choose
from qassay.kernels.summary import summarize
from qassay.rules.base import ModelFacts, TensorFacts
from qassay.run.options import CheckOptions
from qassay.run.plan import Chunk, chunks_of

if TYPE_CHECKING:
    from qassay.encodings.layers import Assembly, Layer
    from qassay.run.audit_layers import LayerReading
    from qassay.runtimes.preflight_collect import PreflightCollector
    from qassay.runtimes.preflight_stats import PreflightStats
    from qassay.runtimes.targets import Choice

    Yield = tuple[ChunkStats, dict[str, PreflightStats]]
"""What one chunk gives: what it holds, and what each target would do to it."""

_BESIDE = frozenset({"k_scale", "v_scale", "q_scale", "kv_scale", "input_scale",
                     "input_global_scale"})  # fmt: skip
"""Scales of activations by themselves; other names that end so may be learned weights."""


@dataclass(slots=True)
class _Reading:
    """One tensor while it is read."""

    stored: StoredTensor
    encoding: type[Encoding]
    geometry: Geometry
    collector: BlockCollector | ValueCollector
    accumulator: Accumulator
    choices: tuple[Choice, ...] = ()
    preflight: PreflightCollector | None = None
    preflights: dict[str, PreflightStats] = field(default_factory=dict)

    partial: bool = False

    @property
    def names(self) -> list[str]:
        """Tensors that are not checked if it cannot be read."""
        return [self.stored.name]

    def chunks(self, number: int, chunk_bytes: int) -> Iterator[Chunk]:
        """Yield what is to be read, in the order of the file."""
        # With a target, a part of a row has to hold a whole number of what is judged together.
        alignment = 1 if self.preflight is None else self.preflight.alignment
        return chunks_of(number, self.geometry, chunk_bytes, alignment)

    def bytes_of(self, chunk: Chunk) -> int:
        """Return the number of bytes of a chunk."""
        return chunk.units * self.encoding.block_bytes

    def read(self, chunk: Chunk) -> Yield:
        """Collect one chunk."""
        size = self.encoding.block_bytes
        raw = self.stored.source.read(self.stored.offset + chunk.start * size, chunk.units * size)
        if self.preflight is None or isinstance(self.collector, BlockCollector):
            return self.collector.collect(raw, chunk.start), {}
        runs = self.preflight.place_for_runs(raw)
        found = self.collector.collect(raw, chunk.start, runs)
        return found, self.preflight.collect(raw, chunk.start, runs)

    def add(self, found: Yield) -> None:
        """Add what a chunk gave; the order does not matter."""
        self.accumulator.add(found[0])
        for name, stats in found[1].items():
            known = self.preflights.setdefault(name, stats)
            if known is not stats:
                known.merge(stats)

    def finish(self) -> TensorFacts:
        """Return what the tensor holds."""
        stats = _finish(self)
        return TensorFacts(
            self.stored, self.encoding, stats, self.choices, self.preflights, partial=self.partial
        )


def why_not_read(stored: StoredTensor) -> tuple[type[Encoding] | None, str]:
    """Return a tensor's encoding, or None and the reason why its bytes cannot be judged."""
    encoding = for_stored_type(stored.type)
    if encoding is None:
        return None, stored.type.note or f"encoding {stored.type.name} is not read by this version"
    if not stored.readable or stored.nbytes is None:
        return None, "its shape or place in the file is not sound"
    return encoding, ""


def audit(container: Container, options: CheckOptions) -> ModelFacts:
    """Read every tensor that can be read; see `ModelFacts`."""
    assembly = assembled(container)
    facts = ModelFacts(container, unread=list(container.skipped), assembly=assembly)
    wanted: list[tuple[StoredTensor, type[Encoding], bool]] = []
    for stored, part_of in _single(container, assembly):
        encoding, reason = why_not_read(stored)
        if encoding is None:
            facts.unread.append(Skipped(stored.name, reason))
        elif part_of and encoding.kind == "integer":
            facts.unread.append(Skipped(stored.name, part_of))
        else:
            if part_of:  # its values are looked at, and yet that is not all there is to it
                facts.unread.append(Skipped(stored.name, part_of))
            wanted.append((stored, encoding, bool(part_of)))
    layers = assembly.layers if assembly is not None else []
    size = sum(stored.nbytes or 0 for stored, _, _ in wanted)
    kernels = choose(size + sum(layer.nbytes for layer in layers))
    single = [_reading(*one, kernels, options) for one in wanted]
    if options.targets:
        _aim(single, options)
    readings: list[_Reading | LayerReading] = list(single)
    if layers:
        readings += _layers(layers, facts, kernels, options)
    order = {id(stored): at for at, stored in enumerate(container.tensors)}
    readings.sort(key=lambda reading: order[id(_stored(reading))])
    chunks = (
        chunk
        for number, reading in enumerate(readings)
        for chunk in reading.chunks(number, options.chunk_bytes)
    )
    failed = _run(readings, chunks, options)
    for number, reading in enumerate(readings):
        if number in failed:
            facts.unread.extend(Skipped(name, failed[number]) for name in reading.names)
        else:
            facts.tensors.append(reading.finish())
    return facts


def _stored(reading: _Reading | LayerReading) -> StoredTensor:
    return reading.stored if isinstance(reading, _Reading) else reading.layer.codes


def _single(container: Container, assembly: Assembly | None) -> Iterator[tuple[StoredTensor, str]]:
    """Yield the tensors that are no parts of a layer, and why one cannot be judged by itself."""
    if assembly is None:
        yield from ((stored, stored.part_of) for stored in container.tensors)
        return
    parts = {id(part) for layer in assembly.layers for part in layer.parts.values()}
    alone = [stored for stored in container.tensors if id(stored) not in parts]
    for stored, judged in zip(alone, assembly.loose, strict=True):
        yield stored, judged.part_of


def _layers(
    layers: list[Layer], facts: ModelFacts, kernels: Kernels, options: CheckOptions
) -> list[LayerReading]:
    from qassay.run.audit_layers import reading_of  # noqa: PLC0415

    readings = []
    for layer in layers:
        reading = reading_of(layer, kernels, options)
        if isinstance(reading, str):
            facts.unread.extend(Skipped(part.name, reading) for part in layer.parts.values())
        else:
            readings.append(reading)
    return readings


def _reading(
    stored: StoredTensor,
    encoding: type[Encoding],
    partial: bool,
    kernels: Kernels,
    options: CheckOptions,
) -> _Reading:
    geometry = geometry_of(stored, encoding)
    collector = make_collector(encoding, geometry, kernels, Front(), all_codes=options.full_stats)
    total = Accumulator(geometry)
    return _Reading(stored, encoding, geometry, collector, total, partial=partial)


def _aim(readings: list[_Reading], options: CheckOptions) -> None:
    """Let the tensors be looked at for what the targets would do to them, too."""
    # An audit without a target does not pay for these imports.
    from qassay.runtimes.preflight_collect import PreflightCollector  # noqa: PLC0415
    from qassay.runtimes.targets import choices_for  # noqa: PLC0415

    wanted = [(reading.stored, reading.encoding) for reading in readings]
    for reading, choices in zip(readings, choices_for(options.targets, wanted), strict=True):
        reading.choices = choices
        reading.preflight = PreflightCollector.of(reading.encoding, reading.geometry, choices)


def _run(
    readings: Sequence[_Reading | LayerReading], chunks: Iterable[Chunk], options: CheckOptions
) -> dict[int, str]:
    """Read all chunks, adding up as they come; return the tensors that could not be read."""
    failed: dict[int, str] = {}

    def take(chunk: Chunk, yielded: Any) -> None:
        reading = readings[chunk.tensor]
        if isinstance(yielded, QassayError):
            failed[chunk.tensor] = yielded.message
        else:
            reading.add(yielded)
        if options.progress is not None:
            options.progress(reading.bytes_of(chunk))

    def read(chunk: Chunk) -> Any:
        try:
            return readings[chunk.tensor].read(chunk)
        except QassayError as error:
            return error

    for chunk, yielded in _in_threads(read, chunks, options.threads):
        take(chunk, yielded)
    return failed


def _in_threads(
    read: Callable[[Chunk], Any], chunks: Iterable[Chunk], threads: int
) -> Iterator[tuple[Chunk, Any]]:
    """Yield chunks with what reading them gave, in whatever order they finish.

    Few chunks are in flight at a time, so memory does not grow with the size of the model.
    """
    source = iter(chunks)
    if threads == 1:
        for chunk in source:
            yield chunk, read(chunk)
        return
    with ThreadPoolExecutor(threads) as pool:
        pending: dict[Future[Any], Chunk] = {
            pool.submit(read, chunk): chunk for chunk in islice(source, 2 * threads)
        }
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                yield pending.pop(future), future.result()
            for chunk in islice(source, len(done)):
                pending[pool.submit(read, chunk)] = chunk


def _scale_beside(stored: StoredTensor, encoding: type[Encoding]) -> dict[str, tuple[float, ...]]:
    """Return the values of a scale that stands by itself, such as that of a KV cache."""
    part = stored.name.rpartition(".")[2]
    if part not in _BESIDE or encoding.kind != "float" or stored.size != 1:
        return {}
    try:
        return {part: tuple(encoding.dequantize(stored.raw()).astype(float).tolist())}
    except QassayError:  # the file was cut short since
        return {}


def _finish(reading: _Reading) -> TensorStats:
    stats = reading.accumulator.finish()
    stats.scalars = _scale_beside(reading.stored, reading.encoding)
    for harms in reading.preflights.values():
        harms.close_rows(reading.geometry)
    if issubclass(reading.encoding, BlockEncoding):
        fields = reading.encoding.scale_fields
        stats.scales = {
            name: summarize(histogram, fields[name]) for name, histogram in stats.histograms.items()
        }
        for name, (_, unit, pattern) in reading.accumulator.total.largest.items():
            value = fields[name].magnitudes[[pattern]]
            largest = reading.geometry.tally(
                Offence.LARGEST_SCALE,
                np.array([unit], np.int64),
                field=name,
                into=fields[name].offset,
                read=value.__getitem__,
            )
            merge_tallies(stats.tallies, largest)
    return stats
