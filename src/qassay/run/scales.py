"""The scale-storage experiment over a source: every way of storing, and one block worked out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.encodings.base import Floats
from qassay.run.scales_sources import BLOCK, ScalesSource, Weights
from qassay.runtimes.scale_storage import Outcome, Scheme, compare, worked


@dataclass(frozen=True, slots=True, eq=False)
class WorkedBlock:
    """One block, quantized step by step.

    Attributes:
        tensor: Its tensor; "" where the source is one array.
        block: Index of the block in the whole tensor, in file order.
        row: Row of the tensor.
        scheme: How it was quantized.
        weights: Float32 `[32]`.
        exact: The scale as computed.
        stored: The scale as read back.
        codes: Of each weight.
        decoded: `codes * stored`.
    """

    tensor: str
    block: int
    row: int
    scheme: Scheme
    weights: Floats
    exact: float
    stored: float
    codes: list[int]
    decoded: Floats

    @property
    def errors(self) -> list[float]:
        """Decoded minus original."""
        with np.errstate(all="ignore"):
            difference = self.decoded.astype(np.float64) - self.weights
        return [float(error) for error in difference]


@dataclass(frozen=True, slots=True)
class ScalesResult:
    """What the experiment gave.

    Attributes:
        source: What was tried.
        tensor: The only tensor that was asked for.
        block: The only block that was asked for, in its tensor.
        tried: Names of the tensors.
        outcomes: By way of storing, in the order asked for.
        scales: The worked block's scale as each way stores it.
        worked: The worked block.
    """

    source: ScalesSource
    tensor: str | None
    block: int | None
    tried: tuple[str, ...]
    outcomes: tuple[Outcome, ...]
    scales: tuple[float, ...]
    worked: WorkedBlock


def try_scales(
    source: ScalesSource,
    storages: Sequence[str],
    like: Scheme,
    *,
    work_out: str | None = None,
    tensor: str | None = None,
    block: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> ScalesResult:
    """Try ways to store scales on a block, a tensor or a model.

    Args:
        source: What to try them on.
        storages: Names of ways to store.
        like: Where codes are taken from and how they are rounded.
        work_out: How the worked block's scale is stored; by default the first of `storages`.
        tensor: The tensor that `source` was opened for, if one.
        block: Only this block of the one tensor; its index in file order.
        progress: Called with the number of bytes just read, as float32.

    Raises:
        UsageError: A way to store is unknown, or there is no such block.
    """
    names = tuple(dict.fromkeys(storages))
    schemes = [replace(like, storage=name) for name in (*names, work_out or names[0])]
    if block is not None:
        chosen = _only(source, block)
        weights = chosen.read(block * BLOCK, BLOCK)
        outcomes = compare(weights, names, like=like)
        place = _Place(chosen, block, weights, 0)
    else:
        place = _first_live(source)
        outcomes = compare(_all(source, progress), names, like=like)
    steps = [worked(place.row, scheme) for scheme in schemes]
    within, last = place.within, steps.pop()
    first = WorkedBlock(
        tensor=place.weights.name,
        block=place.block,
        row=place.block * BLOCK // place.weights.row,
        scheme=schemes[-1],
        weights=last.weights[0, within],
        exact=float(last.exact[0, within]),
        stored=float(last.stored[0, within]),
        codes=[int(code) for code in last.codes[0, within]],
        decoded=last.decoded[0, within],
    )
    return ScalesResult(
        source=source,
        tensor=tensor,
        block=block,
        tried=tuple(weights.name for weights in source.tensors),
        outcomes=tuple(outcomes),
        scales=tuple(float(step.stored[0, within]) for step in steps),
        worked=first,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A block and what is needed to work it out.

    Attributes:
        weights: Its tensor.
        block: Its index there.
        row: The weights among whose scales its own is stored.
        within: Its index among the blocks of `row`.
    """

    weights: Weights
    block: int
    row: Floats
    within: int


def _only(source: ScalesSource, block: int) -> Weights:
    if len(source.tensors) != 1:
        raise UsageError(
            "--block needs one tensor",
            path=source.path,
            found=f"{len(source.tensors)} tensors",
            hint="name it with --tensor",
        )
    (weights,) = source.tensors
    blocks = weights.size // BLOCK
    if block >= blocks:
        raise UsageError(
            f"tensor '{safe(weights.name)}' has no block {block}"
            if weights.name
            else f"there is no block {block}",
            path=source.path,
            expected=f"0 to {blocks - 1}",
        )
    return weights


def _first_live(source: ScalesSource) -> _Place:
    """Return the first block of finite weights that holds something; block 0 if there is none."""
    for weights in source.tensors:
        rows = next(weights.pieces())
        blocks = rows.reshape(-1, BLOCK)
        live = np.isfinite(blocks).all(axis=1) & blocks.any(axis=1)
        if live.any():
            return _at(weights, int(live.argmax()), rows)
    first = source.tensors[0]
    return _at(first, 0, next(first.pieces()))


def _at(weights: Weights, block: int, rows: Floats) -> _Place:
    per_row = rows.shape[1] // BLOCK
    return _Place(weights, block, rows[block // per_row], block % per_row)


def _all(source: ScalesSource, progress: Callable[[int], None] | None) -> Iterator[Floats]:
    for weights in source.tensors:
        for piece in weights.pieces():
            yield piece
            if progress is not None:
                progress(piece.nbytes)
