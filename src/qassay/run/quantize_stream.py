"""Turning tensors into new bytes, chunk by chunk on threads, handed out in file order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from qassay.core.errors import InputError
from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Encoding, Floats, PlainEncoding
from qassay.kernels.select import Kernels
from qassay.run.quantize_error import UNIT, RoundTrip, measure, measure_each
from qassay.run.quantize_plan import Planned

SMALL = 1 << 13
"""Tensors of at most so many weights are converted together."""

CHUNK_WEIGHTS = 1 << 20
"""Weights converted at a time: a few MB as float32, so that memory stays small."""


class LostError(Exception):
    """A tensor cannot be read any more, though it could when it was checked.

    Args:
        planned: What it was to become.
        error: Why.
    """

    def __init__(self, planned: Planned, error: InputError) -> None:
        super().__init__(error.message)
        self.planned = planned
        self.error = error


@dataclass(frozen=True, slots=True)
class Part:
    """A run of weights of one tensor.

    Attributes:
        tensor: Index of the tensor in the plan.
        start: Flat index of its first weight.
        weights: How many.
    """

    tensor: int
    start: int
    weights: int


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What became of a part.

    Attributes:
        part: The part.
        data: Its new bytes.
        error: Their error; None for integers.
        read: Bytes of the source that it took.
    """

    part: Part
    data: Bytes
    error: RoundTrip | None
    read: int


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts parts of planned tensors; safe to call from several threads.

    Attributes:
        planned: The plan.
        kernels: Decode with these, and quantize with their counterparts.
    """

    planned: list[Planned]
    kernels: Kernels

    def __call__(self, parts: Sequence[Part]) -> list[Piece]:
        """Return the new bytes of `parts` and their measured errors.

        Several parts are whole tensors that become the same; they are converted at once, as
        models of many small tensors would spend their time between calls otherwise.

        Raises:
            LostError: The source cannot be read any more.
        """
        one = self.planned[parts[0].tensor]
        source = one.source
        raws = [self._read(part) for part in parts]
        raw = raws[0] if len(raws) == 1 else np.concatenate(raws)
        if source.kind == "integer":
            return [Piece(parts[0], raw, None, raw.size)]
        values = self._decode(raw, source)
        data = raw if one.copied else self._encode(values, one, parts)
        back = values if one.copied else self._decode(data, one.target)
        # A double that float32 cannot hold must not count as the infinity it is rounded to.
        exact = raw.view("<f8") if source.id == "f64" else values
        if len(parts) == 1:
            error = measure(exact, back, data, one.target, unit_of(one))
            return [Piece(parts[0], data, error, raw.size)]
        sizes = [part.weights for part in parts]
        errors = measure_each(exact, back, data, one.target, sizes)
        ends = np.cumsum(sizes)[:-1] // one.target.block * one.target.block_bytes
        return [
            Piece(part, made, error, read.size)
            for part, made, error, read in zip(
                parts, np.split(data, ends), errors, raws, strict=True
            )
        ]

    def _read(self, part: Part) -> Bytes:
        one = self.planned[part.tensor]
        source = one.source
        first = one.stored.offset + part.start // source.block * source.block_bytes
        try:
            return one.stored.source.read(first, part.weights // source.block * source.block_bytes)
        except InputError as lost:
            raise LostError(one, lost) from lost

    def _decode(self, raw: Bytes, encoding: type[Encoding]) -> npt.NDArray[np.floating]:
        if issubclass(encoding, BlockEncoding):
            return self.kernels.dequantize(raw, encoding)
        if issubclass(encoding, PlainEncoding) and encoding.id == "f64":
            return raw.view("<f8")
        return encoding.dequantize(raw)

    def _encode(
        self, values: npt.NDArray[np.floating], one: Planned, parts: Sequence[Part]
    ) -> Bytes:
        with np.errstate(over="ignore", invalid="ignore"):
            floats = np.ascontiguousarray(values, "<f4")
        if one.engine is None:
            return floats.view(np.uint8)
        row = _row_of(one) if len(parts) == 1 else 0
        rows = floats.reshape(-1, row) if row else floats.reshape(1, -1)
        made = [
            one.engine.quantize(part, one.target, importance, kernels=self.kernels.name)
            for part, importance in _by_expert(rows, one, parts[0].start)
        ]
        joined = made[0] if len(made) == 1 else np.concatenate(made)
        return np.ascontiguousarray(joined).reshape(-1)


def _by_expert(rows: Floats, one: Planned, start: int) -> Iterator[tuple[Floats, Floats | None]]:
    """Yield rows that share their importance with it; `start` is the first weight's flat index."""
    if one.importance is None:
        yield rows, None
        return
    first, each = start // one.shape[-1], one.shape[-2]
    for expert in range(first // each, (first + len(rows) - 1) // each + 1):
        begin, end = (expert * each - first, (expert + 1) * each - first)
        yield rows[max(begin, 0) : end], one.importance[expert]


def _row_of(one: Planned) -> int:
    """Return the row length that the engine sees, 0 where rows do not matter.

    Blocks lie within rows, and without an importance matrix nothing but a block decides over its
    bytes; so rows too long to hold at once may be cut between blocks.
    """
    row = one.shape[-1]
    if one.importance is not None:
        return row
    return row if one.target.kind == "block" and row <= UNIT else 0


def unit_of(one: Planned) -> int:
    """Return how many weights of a tensor are summed at once: whole rows where they fit."""
    row = _row_of(one)
    return max(1, UNIT // row) * row if row else UNIT


def parts_of(tensor: int, one: Planned, chunk_weights: int) -> Iterator[Part]:
    """Yield the parts of one tensor, whole units each, in file order."""
    unit = unit_of(one)
    step = max(1, chunk_weights // unit) * unit
    for start in range(0, one.stored.size, step):
        yield Part(tensor, start, min(step, one.stored.size - start))


def converted(
    planned: list[Planned], kernels: Kernels, threads: int, chunk_weights: int = CHUNK_WEIGHTS
) -> Generator[Piece, None, None]:
    """Yield the pieces of all tensors in file order; few are held at a time."""
    parts = (
        part for number, one in enumerate(planned) for part in parts_of(number, one, chunk_weights)
    )
    convert, batches = Converter(planned, kernels), _batches(planned, parts)
    made = map(convert, batches) if threads == 1 else _in_order(convert, batches, threads)
    with closing(made) if isinstance(made, Generator) else nullcontext():
        for pieces in made:
            yield from pieces


def _batches(planned: list[Planned], parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Yield parts one by one, and small tensors of one kind that follow each other together.

    Which are taken together depends on nothing but the plan.
    """
    batch: list[Part] = []
    kind: object = None
    total = 0
    for part in parts:
        one = planned[part.tensor]
        small = part.weights == one.stored.size and part.weights <= SMALL
        alone = not small or one.importance is not None or one.source.kind == "integer"
        own = None if alone else (one.source, one.target, one.engine)
        if batch and (own is None or own != kind or total + part.weights > UNIT):
            yield batch
            batch, total = [], 0
        batch.append(part)
        kind, total = own, total + part.weights
    if batch:
        yield batch


def _in_order(
    convert: Callable[[Sequence[Part]], list[Piece]], parts: Iterable[Sequence[Part]], threads: int
) -> Generator[list[Piece], None, None]:
    source = iter(parts)
    pool = ThreadPoolExecutor(threads)
    try:
        waiting: deque[Future[list[Piece]]] = deque(
            pool.submit(convert, part) for part in islice(source, threads + 2)
        )
        while waiting:
            piece = waiting.popleft().result()
            waiting.extend(pool.submit(convert, part) for part in islice(source, 1))
            yield piece
    finally:
        # Whoever stops in the middle does not wait for work that nobody wants any more.
        pool.shutdown(wait=True, cancel_futures=True)
