"""Rows of the float side, and rows of the quantized side with the grid of their codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.forms import Form
from qassay.comparison.weights import BlockWeight, Plain, Weight, row_factors, rows_of, slabs
from qassay.kernels import cost as reference
from qassay.kernels.cost import Doubles, Floats, Grid
from qassay.kernels.select import choose

Order = npt.NDArray[np.int64]
Undo = Callable[[Form], Form]
Piece = tuple[int, Doubles]

THREADS = 2
_MAPPED = 4
"""How many times as many weights are measured at a time where neither side is copied first."""


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """A float weight and a quantized one, read in step.

    Attributes:
        ref: The float side.
        weight: The quantized side.
        order: Which row of `ref` each row of `weight` is set against; None: its own.
        columns: The same of columns.
        undo: What is done to codes, zero points or scales first.
        factors: What columns of the float side are multiplied by, float32 `[K]`.
        row_factors: What its rows are multiplied by, float32 `[N]`.
    """

    ref: Plain
    weight: Weight
    order: Order | None = None
    columns: Order | None = None
    undo: Undo | None = None
    factors: Floats | None = None
    row_factors: Floats | None = None

    @property
    def rows(self) -> int:
        """Rows of all experts together."""
        return rows_of(self.weight)

    @property
    def width(self) -> int:
        """Columns."""
        return self.weight.shape[-1]

    @property
    def plain(self) -> bool:
        """Whether codes are decoded as they are stored."""
        return self.undo is None

    def source(self, start: int, stop: int) -> Floats:
        """Return rows of the float side in the order of the quantized one, float32 `[n, K]`."""
        if self.order is None:
            found = read_rows(self.ref, start, stop, self.width)
        else:
            wanted = self.order[start:stop]
            found = np.empty((wanted.size, self.width), np.float32)
            for first, last, at in _runs(wanted):
                rows = read_rows(self.ref, first, last, self.width)
                found[at : at + last - first] = rows
        if self.columns is not None:
            found = found[:, self.columns]
        with np.errstate(over="ignore", invalid="ignore"):
            if self.factors is not None:
                found = found * self.factors
            if self.row_factors is not None:
                found = found * self.row_factors[start:stop, None]
        return found

    def form(self, start: int, stop: int) -> Form:
        """Return rows of the quantized side, the scale of the whole tensor in their scales."""
        form = self.weight.form(start, stop, local=False)
        return form if self.undo is None else self.undo(form)


def read_rows(plain: Plain, start: int, stop: int, columns: int) -> Floats:
    """Return rows of a plain tensor as float32; what is beyond its range becomes infinite.

    What is stored as float32 is not copied: those rows cannot be written to.
    """
    if _is_float32(plain):
        source, offset = plain.stored.source, plain.stored.offset
        at, length = offset + start * columns * 4, (stop - start) * columns * 4
        raw = source.read(at, length)
        return np.require(raw.view("<f4"), np.float32, "A").reshape(-1, columns)
    values = plain.read(start * columns, stop * columns)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, np.float32).reshape(-1, columns)


def _is_float32(plain: Plain) -> bool:
    stored = getattr(plain.encoding, "dtype", "")
    return type(plain) is Plain and plain.step == 1 and stored == "<f4"


def _runs(wanted: Order) -> Iterator[tuple[int, int, int]]:
    """Yield first row, end and place of each run of consecutive rows."""
    cuts = np.flatnonzero(np.diff(wanted) != 1) + 1
    at = 0
    for run in np.split(wanted, cuts):
        if run.size:
            yield int(run[0]), int(run[-1]) + 1, at
        at += run.size


def grid_of(form: Form, bits: int) -> tuple[Grid, Order | None]:
    """Return the grid of some rows, and the order that puts columns of one group together."""
    groups = form.groups
    order = None
    if groups.size and (np.diff(groups) < 0).any():
        order = np.argsort(groups, kind="stable").astype(np.int64)
        groups = groups[order]
    starts = np.flatnonzero(np.append(True, np.diff(groups) != 0))
    bounds = np.append(starts, groups.size).astype(np.int64)
    kept = groups[starts]
    steps = np.ascontiguousarray(form.scales[:, kept])
    table = np.zeros(0, np.float32)
    begin = np.zeros_like(steps)
    symmetric = np.zeros(steps.shape, np.uint8)
    if form.table is not None:
        table = np.unique(form.table[np.isfinite(form.table)]).astype(np.float32)
        if table.size < 2:
            table = np.array([0, 1], np.float32)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            if form.zeros is not None:
                zeros = form.zeros[:, kept]
                begin = (-zeros.astype(np.float32)) * steps
                symmetric = (zeros == 1 << (bits - 1)).astype(np.uint8)
            if form.minimums is not None:
                begin = begin + form.minimums[:, kept]
                symmetric = np.zeros(steps.shape, np.uint8)
    grid = Grid(steps, np.asarray(begin, np.float32), bounds, 1 << bits, symmetric, table)
    return grid, order


def measure(sides: Sides, start: int, stop: int, *, fast: bool) -> Doubles:
    """Return what `kernels.cost.Of` names for each of some rows."""
    ref = sides.source(start, stop)
    weight = sides.weight
    if fast and sides.plain and isinstance(weight, BlockWeight):
        from qassay.kernels.cost_fast import measure_blocks  # noqa: PLC0415 - imports Numba

        row_bytes = weight.nbytes // max(1, sides.rows)
        raw = weight.stored.source.read(
            weight.stored.offset + start * row_bytes, (stop - start) * row_bytes
        )
        return measure_blocks(ref, raw, weight.encoding, row_factors(weight, start, stop))
    form = sides.form(start, stop)
    grid, order = grid_of(form, weight.bits)
    new = form.values()
    if order is not None:
        ref, new = ref[:, order], new[:, order]
    if fast:
        from qassay.kernels import cost_fast  # noqa: PLC0415 - imports Numba

        found = cost_fast.measure_rows(ref, new, grid)
    else:
        found = reference.measure_rows(ref, new, grid)
    if order is not None:
        for column in (reference.Of.LARGEST_AT, reference.Of.STEPS_AT, reference.Of.GROUP_AT):
            found[:, column] = order[found[:, column].astype(np.int64)]
    return found


def _fast(sides: Sides) -> bool:
    return choose(sides.weight.nbytes + sides.rows * sides.width * 4).name == "fast"


def _in_place(sides: Sides) -> bool:
    return sides.plain and _is_float32(sides.ref) and isinstance(sides.weight, BlockWeight)


def measured(sides: Sides, threads: int = THREADS) -> Iterator[Piece]:
    """Yield first row and measures of each piece, in order; pieces are the same for any threads."""
    fast = _fast(sides)
    if not fast or threads < 2:
        for start, stop in slabs(sides.weight):
            yield start, measure(sides, start, stop, fast=fast)
        return
    with Ahead(threads) as ahead:
        ahead.start(sides)
        yield from ahead.pieces(sides.ref, sides.weight) or ()


class Ahead:
    """Measures of the weights that are asked for next, taken while another is judged.

    So no thread waits for the last piece of a weight, nor for what is said of it.
    """

    def __init__(self, threads: int = THREADS) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[tuple[int, int], list[tuple[int, Future[Doubles]]]] = {}

    def __enter__(self) -> Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def start(self, sides: Sides) -> None:
        """Begin to measure a weight, where it is large enough for kernels that need no GIL."""
        if not _fast(sides):
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        self._begun[id(sides.ref), id(sides.weight)] = [
            (start, self._pool.submit(measure, sides, start, stop, fast=True))
            for start, stop in slabs(sides.weight, _MAPPED if _in_place(sides) else 1)
        ]

    def pieces(self, ref: Plain, weight: Weight) -> Iterator[Piece] | None:
        """Return first row and measures of each piece, in order; None for what was not begun."""
        begun = self._begun.pop((id(ref), id(weight)), None)
        if begun is None:
            return None
        wait(done for _, done in begun)  # to wake up for each would take time from those at work
        return ((start, done.result()) for start, done in begun)


def sample(sides: Sides, rows: Order) -> tuple[Floats, Form]:
    """Return chosen rows (ascending) of both sides."""
    pieces = [sides.form(first, last) for first, last, _ in _runs(rows)]
    refs = [sides.source(first, last) for first, last, _ in _runs(rows)]
    form = pieces[0]
    if len(pieces) > 1:

        def together(name: str) -> Any:
            parts = [piece.part(name) for piece in pieces]
            return None if parts[0] is None else np.concatenate([p for p in parts if p is not None])

        form = replace(
            form,
            codes=together("codes"),
            scales=together("scales"),
            zeros=together("zeros"),
            minimums=together("minimums"),
        )
    return np.concatenate(refs), form
