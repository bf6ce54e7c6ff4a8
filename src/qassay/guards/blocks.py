"""What a block encoding would do to an array, block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.core.finding import Finding, Location, Severity
from qassay.encodings.base import BlockEncoding, Floats
from qassay.guards.floats import Array
from qassay.guards.tally import Spot
from qassay.kernels.select import choose
from qassay.runtimes.preflight import (
    COARSE_STEPS,
    Preflight,
    extremes,
    measurable,
    preflight,
    published_message,
    shortest,
)
from qassay.runtimes.registry import engine

_PIECE = 1 << 18
"""Weights looked at together, at least one row."""

_LEAST_OF_TENSOR = 2.0**-30
"""Part of the tensor's largest weight below which a lost block is worth no more than a note."""

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """Some whole rows as blocks.

    Attributes:
        first: Index in the tensor of the first block.
        per_row: Blocks in a row.
        blocks: Float32 `[n, block]`.
        array: Where they come from.
    """

    first: int
    per_row: int
    blocks: Floats
    array: Array

    def place(self, block: int, value: float | str, element: int = 0) -> Location:
        """Return where an element of a block of this piece is."""
        number = self.first + block
        size = self.blocks.shape[1]
        return Location(
            row=number // self.per_row,
            column=number % self.per_row * size + element,
            block=number,
            value=value,
        )

    def where(self, block: int) -> str:
        """Return the same in words."""
        number = self.first + block
        return f"block {number} (row {number // self.per_row})"

    def rows(self, chosen: Bools) -> Bools:
        """Return what holds of blocks by row and block of it."""
        return chosen.reshape(-1, self.per_row)


def _pieces(array: Array, block: int) -> Iterator[_Piece]:
    row = array.shape[-1] if array.shape else 1
    step = max(1, _PIECE // row) * row
    for start in range(0, array.size, step):
        weights = array.floats(start, min(step, array.size - start))
        yield _Piece(start // block, row // block, weights.reshape(-1, block), array)


def look(array: Array, to: type[BlockEncoding], name: str) -> list[Finding]:
    """Return what `to` would damage in an array."""
    spots = {code: Spot(code) for code in ("Q501", "Q502", "Q503", "Q504")}
    largest = lost = 0.0
    lost_row = False
    for piece in _pieces(array, to.block):
        facts = _known(piece, to) if measurable(to) else _measured(piece, to)
        largest = max(largest, float(facts.amax.max()))
        lost = max(lost, float(facts.amax[facts.lost].max(initial=0.0)))
        rows = piece.rows(facts.live), piece.rows(facts.lost)
        lost_row |= bool((rows[0].any(axis=1) & (rows[0] == rows[1]).all(axis=1)).any())
        _not_finite(spots["Q504"], piece, facts)
        _count(spots["Q501"], piece, facts.overflows, facts.says_overflow)
        _count(spots["Q502"], piece, facts.lost, facts.says_lost)
        _count(spots["Q503"], piece, facts.coarse, facts.says_coarse)
    if not lost_row:
        small = lost < _LEAST_OF_TENSOR * largest
        spots["Q502"].severity = Severity.INFO if small else Severity.WARNING
    spots["Q502"].data = {"largest_lost": lost, "largest": largest, "whole_rows": lost_row}
    found = sorted((spot for spot in spots.values() if spot.count), key=lambda spot: spot.first)
    return [spot.finding(name) for spot in found]


@dataclass(frozen=True, slots=True, eq=False)
class _Facts:
    """What becomes of the blocks of a piece; arrays `[n]`.

    Attributes:
        amax: Largest finite magnitude.
        live, lost, overflows, coarse: As in `Preflight`.
        nan, inf, first: As in `Preflight`.
        known: The preflight, where scales follow from the weights.
        flattened: For others, sub-blocks that decode to zero though they hold something, and
            those that hold something.
    """

    amax: Floats
    live: Bools
    lost: Bools
    overflows: Bools
    coarse: Bools
    nan: npt.NDArray[np.int64]
    inf: npt.NDArray[np.int64]
    first: npt.NDArray[np.int64]
    known: Preflight | None = None
    flattened: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None

    def says_overflow(self, block: int) -> str:
        """Return the words for a block that overflows."""
        amax = shortest(self.amax[block])
        if self.known is None:
            return f"amax {amax} gives weights that are not finite"
        if not np.isfinite(self.known.stored_offset[block]):
            return f"its minimum {shortest(self.known.offset[block])} becomes infinite in f16"
        scale = shortest(abs(self.known.exact[block]))
        return f"amax {amax}, scale {scale} becomes infinite in f16; expected less than 65520"

    def says_lost(self, block: int) -> str:
        """Return the words for a block that is lost."""
        amax = shortest(self.amax[block])
        if self.known is None:
            return f"amax {amax}, and every weight decodes to zero"
        scale = shortest(abs(self.known.exact[block]))
        return f"amax {amax}, scale {scale} is stored as 0 in f16"

    def says_coarse(self, block: int) -> str:
        """Return the words for a block with a coarse scale."""
        amax = shortest(self.amax[block])
        if self.known is None:
            assert self.flattened is not None  # noqa: S101
            zeroed, live = (int(part[block]) for part in self.flattened)
            return f"amax {amax} is so far out that {zeroed} of {live} sub-blocks decode to zero"
        scale, stored = (shortest(abs(one[block])) for one in (self.known.exact, self.known.stored))
        moved = max(self.known.steps[block], self.known.offset_steps[block])
        return (
            f"amax {amax}, scale {scale} is stored as {stored} in f16, which moves weights by"
            f" {moved:.3g} steps; expected at most {COARSE_STEPS}"
        )


def _known(piece: _Piece, to: type[BlockEncoding]) -> _Facts:
    facts = preflight(piece.blocks, to)
    return _Facts(
        facts.amax,
        facts.live,
        facts.lost,
        facts.overflows,
        facts.coarse,
        facts.nan,
        facts.inf,
        facts.first,
        known=facts,
    )


@np.errstate(all="ignore")
def _measured(piece: _Piece, to: type[BlockEncoding]) -> _Facts:
    """Quantize with the C reference's arithmetic, decode, and look.

    A block with elements that are not finite is judged by those alone.
    """
    quantizer = engine("ggml")
    if to.id not in quantizer.routes:
        raise UsageError(
            f"what {to.id} would do to weights cannot be told",
            expected=", ".join(sorted(quantizer.routes)),
        )
    facts = extremes(piece.blocks)
    sound = np.where((facts.first >= 0)[:, None], np.float32(0), piece.blocks)
    raw = quantizer.quantize(sound, to, kernels=choose(sound.nbytes).name)
    back = to.dequantize(raw.reshape(-1)).reshape(sound.shape)
    live: Bools = np.any(sound, axis=1)
    overflows: Bools = np.any(~np.isfinite(back), axis=1)
    lost: Bools = live & ~np.any(back, axis=1)
    groups = (sound.shape[0], to.block // to.group, to.group)
    live_parts = sound.reshape(groups).any(axis=2)
    zeroed = live_parts & ~back.reshape(groups).any(axis=2)
    flattened = zeroed.sum(axis=1), live_parts.sum(axis=1)
    half = (2 * flattened[0] >= flattened[1]) & (flattened[0] > 0)
    return _Facts(
        np.abs(facts.extreme),
        live,
        lost,
        overflows,
        half & ~lost & ~overflows,
        facts.nan,
        facts.inf,
        facts.first,
        flattened=flattened,
    )


def _not_finite(spot: Spot, piece: _Piece, facts: _Facts) -> None:
    bad = facts.first >= 0
    if not bad.any():
        return
    spot.count += int(facts.nan.sum() + facts.inf.sum())
    spot.data["nan"] = spot.data.get("nan", 0) + int(facts.nan.sum())
    spot.data["inf"] = spot.data.get("inf", 0) + int(facts.inf.sum())
    for block in np.flatnonzero(bad):
        for element in np.flatnonzero(~np.isfinite(piece.blocks[block])):
            if spot.full:
                return
            value = float(piece.blocks[block, element])
            flat = (piece.first + int(block)) * piece.blocks.shape[1] + int(element)
            what = _name_of(value)
            if np.isinf(value) and not piece.array.infinite_already(flat):
                what = f"{what} as float32, and finite before"
            place = piece.place(int(block), value, int(element))
            message = f"{piece.where(int(block))}: element {element} is {what}"
            spot.add(place, message, piece.first + int(block))


def _name_of(value: float) -> str:
    return "NaN" if np.isnan(value) else "inf" if value > 0 else "-inf"


def _count(spot: Spot, piece: _Piece, chosen: Bools, says: Callable[[int], str]) -> None:
    spot.count += int(chosen.sum())
    for block in np.flatnonzero(chosen)[:16]:
        if spot.full:
            return
        value = float(np.abs(piece.blocks[block]).max())
        spot.add(
            piece.place(int(block), value),
            f"{piece.where(int(block))}: {says(int(block))}",
            piece.first + int(block),
        )


def look_literally(array: Array, to: type[BlockEncoding], name: str) -> list[Finding]:
    """Return what the check published for candle's Q8_0 says, in its words."""
    spots = {code: Spot(code, data={"messages": []}) for code in ("Q501", "Q502", "Q503", "Q504")}
    for piece in _pieces(array, to.block):
        facts = preflight(piece.blocks, to)
        refused = facts.refused_by_published_check
        codes = np.select(
            [facts.not_finite, np.abs(facts.exact) > 65504, facts.stored == 0],
            [504, 501, 502],
            503,
        )
        for code, spot in spots.items():
            chosen = np.flatnonzero(refused & (codes == int(code[1:])))
            spot.count += chosen.size
            for block in chosen[:16]:
                if spot.full:
                    break
                element = max(int(facts.first[block]), 0)
                message = published_message(facts, piece.blocks, int(block)) or ""
                # The published words number blocks from the beginning of what they are given.
                message = message.replace(f"block {block}:", f"block {piece.first + block}:", 1)
                value = float(piece.blocks[block, element] if code == "Q504" else facts.amax[block])
                spot.add(piece.place(int(block), value, element), message, piece.first + int(block))
                spot.data["messages"].append(message)
    found = sorted((spot for spot in spots.values() if spot.count), key=lambda spot: spot.first)
    return [spot.finding(name, literal=True) for spot in found]
