"""Dumps of a whole model from two sides: which tensor is the first that is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qassay.comparison.dumps import USUAL_LIMIT, DumpComparison, TensorPair, compare_tensor
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Finding
from qassay.core.text import safe
from qassay.rules.dumping import CODES, findings_of
from qassay.rules.registry import rule
from qassay.run.diagnose_arrays import as_floats
from qassay.run.dumps import Array, Dump, open_dump
from qassay.run.options import CheckOptions
from qassay.runtimes.sophgo.mlir import read_mlir

# What tpu-mlir puts behind the name of a tensor that it casts: `linear0_f32`.
_CAST = re.compile(r"_(?:f32|f16|bf16|f8e4m3|f8e5m2|s?i8|u?i8|si16|ui16|si32|ui32)$")


@dataclass(slots=True)
class DumpsResult:
    """What came of it.

    Attributes:
        comparison: All tensors.
        findings: In order.
        nbytes: Size of both dumps' arrays, about.
        formats: Of both.
        crashed: Codes of rules that failed.
    """

    comparison: DumpComparison
    findings: list[Finding] = field(default_factory=list)
    nbytes: tuple[int, int] = (0, 0)
    formats: tuple[str, str] = ("npz", "npz")
    crashed: list[str] = field(default_factory=list)


def diagnose_dumps(
    reference: Path,
    device: Path,
    *,
    graph: Path | None = None,
    limit: float | None = None,
    options: CheckOptions | None = None,
    tell: Callable[[int], None] | None = None,
) -> DumpsResult:
    """Compare every tensor of two dumps, one at a time, and find the first bad one.

    Args:
        reference: Tensors as they should be.
        device: Tensors as they came out.
        graph: The `.mlir` of the device's model, whose order counts.
        limit: Relative error (RMS, as a share of the reference's) beyond which a tensor is bad.
        options: Rules to run.
        tell: Called with the number of bytes done.

    Raises:
        InputError: A file cannot be read.
        UsageError: No tensor is in both.
    """
    options = options or CheckOptions()
    if limit is not None and not 0 <= limit < float("inf"):  # nothing is beyond NaN
        raise UsageError("--limit is no share", expected="a number of 0 or more, 0.5 for a half",
                         found=str(limit))  # fmt: skip
    names = read_mlir(graph).results if graph is not None else ()
    one = open_dump(reference)
    try:
        two = open_dump(device)
        try:
            done = _compared(one, two, names, limit, tell)
        finally:
            two.close()
    finally:
        one.close()
    done.formats = (_format(reference), _format(device))
    for code in CODES:
        if not options.runs(code):
            continue
        try:
            found = list(findings_of(rule(code)(), done.comparison))
        except Exception:  # noqa: BLE001 - a broken rule must not hide the others
            done.crashed.append(code)
            continue
        wanted = options.severities.get(code)
        done.findings += [each if wanted is None else each.with_severity(wanted) for each in found]
    return done


def _compared(
    one: Dump,
    two: Dump,
    graph: Sequence[str],
    limit: float | None,
    tell: Callable[[int], None] | None,
) -> DumpsResult:
    done = DumpComparison(
        (one.path, two.path),
        limit=USUAL_LIMIT if limit is None else limit,
        chosen=limit is not None,
        order="graph" if graph else "dump",
    )
    partners = matched(one.names(), two.names())
    if not partners:
        raise UsageError(
            "no tensor is in both dumps",
            expected=f"names of {one.path}: {_some(one.names())}",
            found=f"names of {two.path}: {_some(two.names())}",
        )
    place = {name: at for at, name in enumerate(graph)}
    lacking = [name for name in one.names() if name not in partners]
    known = {*place, *(_CAST.sub("", name) for name in place)}
    done.fused = [name for name in lacking if graph and name not in known]
    done.missing = [name for name in lacking if not graph or name in known]
    taken = set(partners.values())
    done.extra = [name for name in two.names() if name not in taken]
    first = {name: at for at, name in enumerate(one.names())}
    done.pairs = [TensorPair(name, other) for name, other in partners.items()]
    # What the graph does not name keeps its place in the dump, behind all that it names.
    done.pairs.sort(key=lambda pair: (_place(pair, place), first[pair.name]))
    sizes = [0, 0]
    for order, pair in enumerate(done.pairs):
        pair.order = order
        _one(pair, one, two, done.limit)
        both = one.nbytes(pair.name), two.nbytes(pair.other)
        sizes = [sizes[0] + both[0], sizes[1] + both[1]]
        if tell is not None:
            tell(sum(both))
    return DumpsResult(done, nbytes=(sizes[0], sizes[1]))


def _one(pair: TensorPair, one: Dump, two: Dump, limit: float) -> None:
    try:
        a, b = _numbers(one.read(pair.name), pair.name), _numbers(two.read(pair.other), pair.other)
    except (InputError, UsageError) as error:
        parts = (("expected ", error.expected), ("found ", error.found), ("", error.hint))
        pair.why = "; ".join([error.message, *(word + text for word, text in parts if text)])
        return
    if not a.size and not b.size:
        pair.why = "it holds no values"
        return
    compare_tensor(pair, a, b, limit)


def _numbers(array: Array, name: str) -> Array:
    """Return an array as it is where it holds floats; else as float32."""
    if array.dtype.kind == "f" and array.dtype.itemsize <= 8:
        return np.asarray(array)
    if array.dtype.kind in "iu" and array.dtype != np.uint16:
        return np.asarray(array)
    return as_floats(array, safe(name, 80))


def _place(pair: TensorPair, place: dict[str, int]) -> int:
    for name in (pair.name, pair.other, _CAST.sub("", pair.name)):
        if name in place:
            return place[name]
    return len(place)


def matched(reference: Sequence[str], device: Sequence[str]) -> dict[str, str]:
    """Return the device's name of each tensor: the same, or the same but for a cast."""
    there = set(device)
    found = {name: name for name in reference if name in there}
    left: dict[str, list[str]] = {}
    for name in device:
        if name not in found:
            left.setdefault(_CAST.sub("", name), []).append(name)
    bare: dict[str, list[str]] = {}
    for name in reference:
        if name not in found:
            bare.setdefault(_CAST.sub("", name), []).append(name)
    for stem, names in bare.items():
        if len(names) == 1 and len(left.get(stem, ())) == 1:
            found[names[0]] = left[stem][0]
    return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(safe(name, 40) for name in names[:6]) + (", ..." if len(names) > 6 else "")


def _format(path: Path) -> str:
    return "folder" if path.is_dir() else path.suffix.lower().lstrip(".") or "unknown"
