"""From what `run.pad` did to the document, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from qassay.core.text import safe
from qassay.report.document import Coverage, NotChecked, Report
from qassay.report.inputs import input_of
from qassay.report.page import Column, Lines, Pairs, Section, Table
from qassay.report.words import count, number, plain, shape, size
from qassay.run.pad import CROPS, Left, PaddedLayer, PadResult, shapes_of
from qassay.run.pad_files import LeftOut

_ROWS = 40
_PATHS = 4


def report_of(done: PadResult) -> Report:
    """Return the report of one padding."""
    path = done.container.path
    judged = done.fitting + len(done.padded) + len(done.refused)
    return Report(
        "pad",
        inputs=(input_of(done.container),),
        coverage=Coverage(
            tensors=judged,
            checked=judged - len(done.refused),
            skipped=(
                *(
                    NotChecked(one.name, path, f"cannot be padded: {one.reason}")
                    for one in done.refused
                ),
                *(
                    NotChecked(one.path, path, f"cannot be copied: {one.reason}")
                    for one in done.others.lost
                ),
            ),
            bytes=sum(one.nbytes or 0 for one in done.container.tensors) if done.proof else 0,
        ),
        result=_result(done),
        sections=tuple(_sections(done)),
        judged=False,
    )


def _result(done: PadResult) -> dict[str, Any]:
    proof = done.proof
    return {
        "written": proof is not None,
        "destination": done.destination if proof is not None else None,
        "crops": CROPS if proof is not None else None,
        "multiple": done.options.multiple,
        "on": done.options.on or None,
        "fitting": done.fitting,
        "padded": [_layer(one) for one in done.padded],
        "refused": [_left(one) for one in done.refused],
        "left": [_left(one) for one in done.left],
        "not_copied": [{"path": one.path, "reason": one.reason} for one in done.others.left_out],
        "more_bytes": sum(one.more_bytes for one in done.padded),
        "proof": None
        if proof is None
        else {
            "layers": proof.layers,
            "weights": proof.weights,
            "padding": proof.padding,
            "outputs": proof.outputs,
            "other_tensors": proof.tensors,
            "other_bytes": proof.bytes,
        },
    }


def _layer(one: PaddedLayer) -> dict[str, Any]:
    return {"name": one.name, **one.crop(), "more_bytes": one.more_bytes}


def _left(one: Left) -> dict[str, Any]:
    return {"name": one.name, "shape": list(one.shape), "reason": one.reason}


def _sections(done: PadResult) -> Iterator[Section]:
    if done.padded and done.proof is not None:
        yield _table(done)
    proof = done.proof
    if proof is not None:
        yield Pairs(
            "Written",
            (
                ("folder", safe(done.destination)),
                ("crops", f"{CROPS}: crop each output before it is split, reshaped or read"),
                ("larger by", size(sum(one.more_bytes for one in done.padded))),
                (
                    "proven equal",
                    f"{count(proof.weights, 'weight')} and {count(proof.outputs, 'output')} of "
                    f"{count(proof.layers, 'layer')}, bit for bit",
                ),
                ("all zero", f"{count(proof.padding, 'padded weight')}"),
                (
                    "the same bytes",
                    f"{count(proof.tensors, 'other tensor')}, {size(proof.bytes)}",
                ),
            ),
        )
    lines = list(_notes(done))
    if lines:
        yield Lines("", tuple(lines))


def _table(done: PadResult) -> Table:
    kinds = list(shapes_of(done.padded))
    rows = tuple(
        (
            number(times),
            one.encoding,
            shape((one.rows, one.columns)),
            shape((one.padded, one.columns)),
            f"+{(one.padded - one.rows) / one.rows:.1%}",
            f"before {one.before}",
            safe(one.name),
        )
        for one, times in kinds[:_ROWS]
    )
    rest = len(kinds) - len(rows)
    columns = (
        Column("layers", right=True),
        Column("encoding"),
        Column("[N, K]"),
        Column("padded"),
        Column("channels", right=True),
        Column("crop"),
        Column("the first"),
    )
    note = f"and {rest:,} more shapes, in the JSON report" if rest > 0 else ""
    return Table(f"Padded to a multiple of {done.options.multiple}", columns, rows, note)


def _notes(done: PadResult) -> Iterator[str]:
    if not done.padded and not done.refused:
        yield (
            f"nothing to do: all {count(done.fitting, 'Linear')} have a multiple of "
            f"{done.options.multiple} output channels; nothing was written"
        )
    elif done.refused:
        yield "nothing was written; --layers pads those that it names, and leaves the others"
    elif done.others.lost:
        yield "nothing was written; remove what cannot be copied, or put a file in its place"
    reasons = Counter(one.reason for one in done.left)
    for reason, times in reasons.items():
        yield f"left alone: {count(times, 'weight')} ({plain(reason)})"
    if done.proof is not None:
        for reason, paths in _by_reason(done.others.left_out).items():
            more = f" and {len(paths) - _PATHS:,} more" if len(paths) > _PATHS else ""
            yield f"not copied: {', '.join(map(safe, paths[:_PATHS]))}{more} ({reason})"


def _by_reason(left_out: list[LeftOut]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in left_out:
        found.setdefault(one.reason, []).append(one.path)
    return found
