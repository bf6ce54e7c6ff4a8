"""`qassay layout`: scales and zero points into the device's order, and out of it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qassay.containers.new_file import check_destination
from qassay.containers.opening import display_name
from qassay.core.errors import UsageError
from qassay.core.finding import Finding
from qassay.core.text import safe
from qassay.run.layout_files import Array, ArrayFile, open_arrays
from qassay.run.layout_pairs import Asked, Pair, named_pair, pairs_of
from qassay.run.rejections import rejection
from qassay.runtimes.sophgo.chips import Behaviour, Branch
from qassay.runtimes.sophgo.layout import ABORT_TEXT, Reordered, collect, deal, reorder, restore
from qassay.runtimes.sophgo.mlir import read_mlir


@dataclass(slots=True)
class Moved:
    """A pair that was moved.

    Attributes:
        pair: Which.
        acts: What the compiler does with it.
        shapes: Of the scale (or the only array) before and after.
    """

    pair: Pair
    acts: Behaviour
    shapes: tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(slots=True)
class LayoutResult:
    """What came of it.

    Attributes:
        asked: What was asked for.
        path: The file that was read, as reports name it.
        nbytes: Its bytes.
        destination: The new file, as reports name it; "" where nothing was written.
        moved: In file order.
        findings: Q701 for layers that the device's order does not exist for.
    """

    asked: Asked
    path: str
    nbytes: int
    destination: str = ""
    moved: list[Moved] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def layout(source: Path, destination: Path, asked: Asked, mlir: Path | None) -> LayoutResult:
    """Write `source` as the new file `destination` with scales and zero points moved.

    Nothing is written where a layer's channels cannot be dealt to the lanes.

    Raises:
        InputError: A file cannot be read.
        UsageError: It does not say which arrays are meant, or they have other types or shapes.
    """
    if source.suffix.lower() != destination.suffix.lower():
        raise UsageError(
            "both files have to be of one kind",
            expected=f"a name that ends in {source.suffix}",
            found=safe(display_name(destination)),
        )
    try:
        target = destination.resolve()
    except (OSError, RuntimeError) as error:  # links that lead in circles
        raise UsageError(f"the new file cannot be written: {safe(str(error), 200)}") from error
    sources = [source] if mlir is None else [source, mlir]
    check_destination(target, sources, overwrite=False, force=False)
    with closing(open_arrays(source)) as file:
        result = LayoutResult(asked, file.path, file.nbytes)
        if mlir is not None:
            pairs = pairs_of(read_mlir(mlir), asked, file)
        else:
            pairs = [named_pair(file, asked)]
        result.findings = _refused(pairs, result)
        if result.findings:
            return result
        new: dict[str, Array | None] = {}
        for pair in pairs:
            new.update(_move(pair, file, result))
        file.write(target, new)
        result.destination = display_name(destination)
    return result


def _refused(pairs: list[Pair], result: LayoutResult) -> list[Finding]:
    """Return one finding for all layers whose channels the lanes do not divide."""
    asked = result.asked
    lanes = asked.aimed.chip.lanes
    bad = [
        one for one in pairs if one.acts(asked).branch is not Branch.NONE and one.shape[0] % lanes
    ]
    if not bad:
        return []
    counts = sorted({one.shape[0] for one in bad})
    shown = ", ".join(map(str, counts[:8]))
    return [
        rejection(
            f"{ABORT_TEXT}: the {lanes} lanes do not divide N = {shown} "
            f"(layers concerned: {len(bad)} of {len(pairs)}); there is no such order for them",
            path=result.path,
            count=len(bad),
            help=f"pad N to {-(-counts[0] // lanes) * lanes} (`qassay pad`), or keep these layers"
            " at 16 bits; another group size changes K/g only",
            data={
                "stage": "compile",
                "step": "weight-reorder",
                "error": ABORT_TEXT,
                "condition": "N % P == 0",
                "lanes": lanes,
                "chip": asked.aimed.chip.id,
                "version": asked.aimed.version,
                "layers": [one.layer for one in bad],
                "shapes": [list(one.shape) for one in bad],
            },
        )
    ]


def _move(pair: Pair, file: ArrayFile, result: LayoutResult) -> dict[str, Array | None]:
    """Return the new arrays of one pair, proven to lead back to the old ones."""
    acts = pair.acts(result.asked)
    if result.asked.inverse:
        new, shapes = _out_of(pair, file, acts)
    else:
        new, shapes = _into(pair, file, acts)
    result.moved.append(Moved(pair, acts, shapes))
    return new


Shapes = tuple[tuple[int, ...], tuple[int, ...]]
New = tuple[dict[str, "Array | None"], Shapes]


def _into(pair: Pair, file: ArrayFile, acts: Behaviour) -> New:
    lanes, branch = acts.chip.lanes, acts.branch
    if pair.alone:
        _only_plain(acts)
        old = _shaped(file, pair.first, pair.shape)
        if branch is Branch.NONE:
            return {pair.first: old}, (old.shape, old.shape)
        new = deal(old, lanes)
        _proven(collect(new), old)
        return {pair.first: new}, (old.shape, new.shape)
    scales = _shaped(file, pair.first, pair.shape)
    zeros = _shaped(file, pair.zeros, pair.shape)
    made = reorder(scales, zeros, lanes=lanes, branch=branch, half=pair.half)
    back = restore(made, half=pair.half)
    _proven(back[0], scales)
    _proven(back[1], zeros)
    return {pair.first: made.scales, pair.zeros: made.zeros}, (scales.shape, made.scales.shape)


def _out_of(pair: Pair, file: ArrayFile, acts: Behaviour) -> New:
    lanes, branch = acts.chip.lanes, acts.branch
    n, w = pair.shape
    dealt = (n, w) if branch is Branch.NONE else (lanes, n // lanes, w)
    if pair.alone:
        _only_plain(acts)
        old = _shaped(file, pair.first, dealt)
        new = old if branch is Branch.NONE else collect(old)
        _proven(new if branch is Branch.NONE else deal(new, lanes), old)
        return {pair.first: new}, (old.shape, new.shape)
    if branch in (Branch.PLAIN, Branch.NONE):
        held = Reordered(_shaped(file, pair.first, dealt), _shaped(file, pair.zeros, dealt), branch)
    else:
        held = Reordered(_shaped(file, pair.first, (*dealt[:2], 2 * w)), None, branch)
    scales, zeros = restore(held, half=pair.half)
    again = reorder(scales, zeros, lanes=lanes, branch=branch, half=pair.half)
    _proven(again.scales, held.scales)
    if held.zeros is not None and again.zeros is not None:
        _proven(again.zeros, held.zeros)
    return {pair.first: scales, pair.zeros: zeros}, (held.scales.shape, scales.shape)


def _only_plain(acts: Behaviour) -> None:
    if acts.branch in (Branch.INTERLEAVED, Branch.INTERLEAVED_IN_ORDER):
        raise UsageError(
            f"{acts.chip.id} keeps scales and zero points in one tensor: both are needed",
            hint="name a file that holds both, and say --scale and --zero-point",
        )


def _proven(one: Array, other: Array) -> None:
    if one.dtype != other.dtype or not np.array_equal(one, other):
        raise AssertionError("the inverse of the reorder does not restore what was moved")


def _shaped(file: ArrayFile, name: str, shape: tuple[int, ...]) -> Array:
    """Return an array in a shape; flat ones, as the compiler writes them, are given it."""
    found = file.shape(name)
    count = 1
    for axis in shape:
        count *= axis
    flat = len(found) == 1 and found[0] == count
    if found != shape and not flat:
        raise UsageError(
            f"{safe(name, 80)} has another shape",
            path=file.path,
            expected=f"{list(shape)}, or {count} values in a row",
            found=str(list(found)),
        )
    return file.read(name).reshape(shape)
