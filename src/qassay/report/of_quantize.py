"""From what `run.quantize` did to the document, and the tables that go with it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from qassay.core.text import safe
from qassay.report.document import Report
from qassay.report.of_check import report_of as report_of_checks
from qassay.report.page import Column, Lines, Pairs, Section, Table
from qassay.report.words import bits, count, number, size
from qassay.run.quantize import NEVER_ALLOWED, QuantizeResult, Written
from qassay.run.quantize_error import RoundTrip

_ROWS = 64
"""Tensors that the text report lists unless everything is asked for."""


def report_of(done: QuantizeResult) -> Report:
    """Return the report of one run: both checks, the new file's tensors, and their errors."""
    checks = [done.source] if done.result is None else [done.source, done.result]
    return replace(
        report_of_checks(checks),
        command="quantize",
        result={"quantize": _payload(done)},
        sections=tuple(_sections(done)),
    )


def _payload(done: QuantizeResult) -> dict[str, Any]:
    wish = done.options.wish
    return {
        "written": done.written,
        "path": done.destination,
        "engine": wish.engine.id,
        "to": wish.to.word,
        "type_for": [{"pattern": name, "to": to.id} for name, to in wish.patterns],
        "checks": list(done.source.rules),
        "allowed": list(done.allowed),
        "refused": list(done.refused),
        "imatrix": done.importance,
        "tensors": [_tensor(one) for one in done.tensors],
        "totals": _totals(done.tensors),
    }


def _tensor(one: Written) -> dict[str, Any]:
    planned, error = one.planned, one.error
    return {
        "name": planned.stored.name,
        "from": planned.source.id,
        "to": planned.target.id,
        "reason": planned.reason,
        "weights": planned.stored.size,
        "bytes": one.nbytes,
        **_error(error),
    }


def _error(error: RoundTrip | None) -> dict[str, Any]:
    if error is None:
        names = ("compared", "rmse", "max_error", "max_error_steps", "snr_db")
        return {**dict.fromkeys(names), "nonfinite_source": 0, "nonfinite_result": 0}
    return {
        "compared": error.compared,
        "rmse": error.rmse,
        "max_error": error.max_error if error.compared else None,
        "max_error_steps": error.max_steps,
        "snr_db": error.snr_db,
        "nonfinite_source": error.nonfinite_source,
        "nonfinite_result": error.nonfinite_result,
    }


def _totals(tensors: Sequence[Written]) -> dict[str, Any]:
    weights = sum(one.planned.stored.size for one in tensors)
    before = sum(one.planned.stored.nbytes or 0 for one in tensors)
    after = sum(one.nbytes for one in tensors)
    types: dict[str, dict[str, int]] = {}
    for one in tensors:
        kind = types.setdefault(one.planned.target.id, {"tensors": 0, "weights": 0, "bytes": 0})
        kind["tensors"] += 1
        kind["weights"] += one.planned.stored.size
        kind["bytes"] += one.nbytes
    return {
        "tensors": len(tensors),
        "weights": weights,
        "source_bytes": before,
        "bytes": after,
        "source_bits_per_weight": bits(before, weights),
        "bits_per_weight": bits(after, weights),
        "types": dict(sorted(types.items())),
        "nonfinite_source": sum(one.error.nonfinite_source for one in tensors if one.error),
        "nonfinite_result": sum(one.error.nonfinite_result for one in tensors if one.error),
    }


def _sections(done: QuantizeResult) -> Iterator[Section]:
    if not done.written:
        yield Lines("Nothing was written", tuple(_why_not(done)))
        return
    yield _table(done.tensors)
    totals = _totals(done.tensors)
    types = (f"{each['tensors']} {name}" for name, each in totals["types"].items())
    before, after = totals["source_bits_per_weight"], totals["bits_per_weight"]
    told = [
        ("file", safe(done.destination)),
        ("engine", done.options.wish.engine.id),
        ("tensors", ", ".join(types)),
        ("size", f"{size(totals['bytes'])}, from {size(totals['source_bytes'])}"),
        ("bits/weight", f"{number(after)}, from {number(before)}"),
    ]
    if done.importance is not None:
        told.append(("importance", safe(done.importance)))
    if done.allowed:
        told.append(("allowed", ", ".join(done.allowed)))
    yield Pairs("Written", tuple(told))


def _why_not(done: QuantizeResult) -> Iterator[str]:
    if done.refused:
        codes = ", ".join(done.refused)
        noun = "this error" if len(done.refused) == 1 else "these errors"
        yield f"the source has errors: {codes}"
        if not done.source.complete:
            yield "correct them there: --allow does not help while not all of it can be checked"
            return
        other = ""
        if any(code.startswith("Q5") and code != "Q507" for code in done.refused):
            other = " give the tensors other types with --type-for,"
        if set(done.refused) & set(NEVER_ALLOWED):
            yield "correct them there: --allow does not help against two tensors of one name"
            return
        yield f"correct them there,{other} or accept {noun} with --allow {','.join(done.refused)}"
    else:
        yield "not all of the source could be checked"


def _badness(one: Written) -> tuple[bool, float]:
    """Return what tensors are sorted by, the worst with the smallest: new NaN, then SNR."""
    error = one.error
    if error is None:
        return True, math.inf
    snr = error.snr_db
    return not (error.nonfinite_source or error.nonfinite_result), math.inf if snr is None else snr


def _table(tensors: Sequence[Written]) -> Table:
    title, many = "Round trip", len(tensors) > _ROWS
    if many:  # in file order as long as one can overlook them
        title, tensors = f"{title}, the worst tensors first", sorted(tensors, key=_badness)
    rows = tuple(
        (
            safe(one.planned.stored.name),
            one.planned.source.id,
            one.planned.target.id,
            size(one.nbytes),
            *_cells(one.error),
            one.planned.reason,
        )
        for one in tensors
    )
    titles = ("size", "RMSE", "max error", "in steps", "SNR dB", "not finite")
    columns = (
        Column("tensor"),
        Column("from"),
        Column("to"),
        *(Column(title, right=True) for title in titles),
        Column("why this type"),
    )
    return Table(title, columns, rows, _note(tensors), shown=_ROWS)


def _cells(error: RoundTrip | None) -> tuple[str, ...]:
    if error is None:
        return ("-",) * 5
    snr = error.snr_db
    lost = "0"
    if error.nonfinite_source or error.nonfinite_result:
        lost = f"{error.nonfinite_source:,} to {error.nonfinite_result:,}"
    return (
        number(error.rmse),
        number(error.max_error if error.compared else None),
        "-" if error.max_steps is None else f"{error.max_steps:.3f}",
        "-" if snr is None else "exact" if snr == math.inf else f"{snr:.2f}",
        lost,
    )


def _note(tensors: Sequence[Written]) -> str:
    """Say which tensors got another type than the one asked for."""
    changed: dict[tuple[str, str], int] = {}
    for one in tensors:
        if one.planned.reason:
            key = (one.planned.target.id, one.planned.reason)
            changed[key] = changed.get(key, 0) + 1
    told = [f"{count(seen, 'tensor')} as {to} ({why})" for (to, why), seen in changed.items()]
    return f"not in the type asked for: {'; '.join(told)}" if told else ""
