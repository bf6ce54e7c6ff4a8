"""From what `run.scales` found to the document, its tables, and a plot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.report.document import Coverage, Input, NotChecked, Report
from qassay.report.page import Column, Pairs, Section, Table
from qassay.report.words import count, number
from qassay.run.scales import ScalesResult, WorkedBlock
from qassay.run.scales_sources import ScalesSource
from qassay.runtimes.scale_storage import Outcome
from qassay.runtimes.scale_storage_formats import storage

_COLUMNS = (
    "bits",
    "d (one block)",
    "max error",
    "in steps",
    "RMS error",
    "max / f16",
    "RMS / f16",
    "blocks lost",
    "overflowed",
)


def report_of(done: ScalesResult) -> Report:
    """Return the report of one experiment."""
    return replace(
        empty(done.source, _what(done)),
        result={"scales": _payload(done)},
        sections=tuple(_sections(done)),
    )


def empty(source: ScalesSource, note: str = "") -> Report:
    """Return the report of a source of which nothing could be tried."""
    return Report(
        "scales",
        inputs=(Input(source.path, source.format, source.nbytes, note),),
        coverage=Coverage(
            tensors=source.listed,
            checked=len(source.tensors),
            skipped=tuple(
                NotChecked(skip.name, source.path, skip.reason) for skip in source.unread
            ),
            bytes=sum(weights.size * 4 for weights in source.tensors),
        ),
        judged=False,
    )


def _what(done: ScalesResult) -> str:
    if done.source.format == "published":
        return ""
    if done.block is not None:
        return f"block {done.block}"
    return f"{count(len(done.tried), 'tensor')}, {count(done.outcomes[0].blocks, 'block')}"


def _payload(done: ScalesResult) -> dict[str, Any]:
    first = done.outcomes[0]
    return {
        "tensor": done.tensor,
        "block": done.block,
        "tried": list(done.tried),
        "left_out": [{"name": skip.name, "reason": skip.reason} for skip in done.source.left_out],
        "weights": first.weights,
        "blocks": first.blocks,
        "not_finite": first.not_finite,
        "codes": first.scheme.codes_from,
        "round": first.scheme.rounding,
        "block_weights": first.scheme.block,
        "code_bits": first.scheme.bits,
        "rows": [
            _row(outcome, scale) for outcome, scale in zip(done.outcomes, done.scales, strict=True)
        ],
        "worked": _worked(done.worked),
    }


def _row(outcome: Outcome, scale: float) -> dict[str, Any]:
    kept = storage(outcome.scheme.storage)
    return {
        "stored_as": kept.name,
        "title": kept.title,
        "bits": kept.bits,
        "d": scale,
        "max_error": outcome.max_error,
        "max_error_steps": outcome.max_steps,
        "rms_error": outcome.rms_error,
        "max_times_f16": outcome.max_times_f16,
        "rms_times_f16": outcome.rms_times_f16,
        "lost": outcome.lost,
        "overflowed": outcome.overflowed,
    }


def _worked(block: WorkedBlock) -> dict[str, Any]:
    return {
        "tensor": block.tensor or None,
        "block": block.block,
        "row": block.row,
        "stored_as": block.scheme.storage,
        "amax": float(np.abs(block.weights).max()),
        "scale": block.exact,
        "stored_scale": block.stored,
        "weights": [float(weight) for weight in block.weights],
        "codes": block.codes,
        "decoded": [float(value) for value in block.decoded],
        "errors": block.errors,
    }


def _sections(done: ScalesResult) -> Iterator[Section]:
    yield _table(done)
    yield from _worked_out(done.worked)


def _table(done: ScalesResult) -> Table:
    scheme = done.outcomes[0].scheme
    rows = []
    for outcome, scale in zip(done.outcomes, done.scales, strict=True):
        bits = storage(outcome.scheme.storage).bits
        rows.append(
            (
                outcome.scheme.storage,
                "-" if bits is None else f"{bits:g}",
                _fixed(scale, 6),
                _fixed(outcome.max_error, 5),
                "-" if outcome.max_steps is None else f"{outcome.max_steps:.2f}",
                _fixed(outcome.rms_error, 5),
                _times(outcome.max_times_f16),
                _times(outcome.rms_times_f16),
                number(outcome.lost),
                number(outcome.overflowed),
            )
        )
    notes = []
    if done.outcomes[0].not_finite:
        notes.append(f"left out: {count(done.outcomes[0].not_finite, 'block')} with NaN or inf")
    reasons: dict[str, int] = {}
    for skip in done.source.left_out:
        reasons[skip.reason] = reasons.get(skip.reason, 0) + 1
    notes += [f"left out: {count(seen, 'tensor')} ({why})" for why, seen in reasons.items()]
    columns = (Column("stored as"), *(Column(title, right=True) for title in _COLUMNS))
    title = f"Scales, codes from the {scheme.codes_from} scale, rounded {scheme.rounding}"
    return Table(title, columns, tuple(rows), "; ".join(notes))


def _fixed(value: float | None, places: int) -> str:
    """Return so many decimals, or, where they would show too little, five significant digits."""
    if value is None:
        return "-"
    if value == 0 or 100 * 10.0**-places <= abs(value) < 1e5:
        return f"{value:.{places}f}"
    return f"{value:.5g}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _shortest(value: float) -> str:
    """Return the fewest digits that give this float32 back."""
    return str(np.float32(value))


def _worked_out(block: WorkedBlock) -> Iterator[Section]:
    where = f"block {block.block}"
    if block.tensor:
        where += f" of {safe(block.tensor)}"
    yield Pairs(
        f"Worked: {where}, stored as {block.scheme.storage}",
        (
            ("amax", _shortest(float(np.abs(block.weights).max()))),
            ("scale", f"{_shortest(block.exact)} (amax / {block.scheme.largest_code})"),
            ("stored", _shortest(block.stored)),
        ),
    )
    rows = tuple(
        (str(place), _shortest(weight), str(code), _shortest(value), f"{error:.3g}")
        for place, (weight, code, value, error) in enumerate(
            zip(block.weights, block.codes, block.decoded, block.errors, strict=True)
        )
    )
    titles = ("i", "weight", "code", "decoded", "error")
    yield Table("", tuple(Column(title, right=True) for title in titles), rows)


def plot(done: ScalesResult, path: Path) -> None:
    """Write a PNG: the largest and the RMS error of each way of storing, as multiples of f16's.

    Raises:
        UsageError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        agg = import_module("matplotlib.backends.backend_agg")  # an extra
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise UsageError(
            "--plot needs matplotlib, which is not installed",
            hint="pip install 'qassay[plot]'",
        ) from error
    figure = figures.Figure(figsize=(8, 0.5 * len(done.outcomes) + 2), layout="constrained")
    agg.FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = np.arange(len(done.outcomes))
    largest = [outcome.max_error or 0.0 for outcome in done.outcomes]
    mean = [outcome.rms_error or 0.0 for outcome in done.outcomes]
    axes.barh(places - 0.2, largest, 0.4, label="max error")
    axes.barh(places + 0.2, mean, 0.4, label="RMS error")
    axes.set_yticks(places, [outcome.scheme.storage for outcome in done.outcomes])
    axes.invert_yaxis()
    if any(largest):
        axes.set_xscale("log")
    scheme = done.outcomes[0].scheme
    axes.set_xlabel("error after a round trip")
    axes.set_title(
        f"How the scale is stored: codes from the {scheme.codes_from} scale, {scheme.rounding}"
    )
    axes.legend()
    try:
        figure.savefig(path, format="png", dpi=120, metadata={"Software": None})
    except OSError as error:
        raise UsageError(
            f"the plot cannot be written: {error.strerror}", path=safe(path.name)
        ) from error
