"""From what `run.diagnose` found to the document, and the tables that go with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qassay.comparison.attribution.facts import Diagnosis, Difference, KindErrors, Outcome
from qassay.comparison.attribution.verdict import Verdict
from qassay.core.text import safe
from qassay.report.document import Coverage, Input, NotChecked, Report
from qassay.report.page import Column, Lines, Pairs, Section, Table
from qassay.report.words import number
from qassay.rules.diagnosing import title
from qassay.run.diagnose import DiagnoseResult

_BLIND = 12


def report_of(done: DiagnoseResult) -> Report:
    """Return the report of one diagnosis."""
    what = done.diagnosis
    skipped = [NotChecked(f"rule {code}", what.path, "the rule failed") for code in done.crashed]
    return Report(
        command="diagnose",
        inputs=(
            Input(what.weights, done.formats[0], done.nbytes[0], f"{what.label}, {_shape(what)}"),
            Input(what.path, done.formats[1], done.nbytes[1]),
        ),
        coverage=Coverage(
            tensors=len(what.outcomes),
            checked=len(what.outcomes),
            skipped=tuple(skipped),
            bytes=sum(one.device.elements * 4 for one in what.outcomes),
        ),
        findings=tuple(done.findings),
        result=_result(what),
        sections=tuple(_sections(what)),
        fault=bool(done.crashed),
    )


def _shape(what: Diagnosis) -> str:
    return f"[{what.n}, {what.k}]" + (f", g {what.group}" if what.group else "")


def _result(what: Diagnosis) -> dict[str, Any]:
    return {
        "layer": what.layer,
        "encoding": what.label,
        "shape": [what.n, what.k],
        "group_size": what.group or None,
        "on": what.on or None,
        "outputs": [_outcome(one) for one in what.outcomes],
        "notes": what.notes,
    }


def _outcome(one: Outcome) -> dict[str, Any]:
    told = one.told
    return {
        "name": one.name,
        "rows": one.rows,
        "verdict": told.verdict.value,
        "certainty": told.certainty.value,
        "arithmetic": [model.value for model in told.models],
        "computed_by": list(one.ways),
        "faults": [
            {
                "faults": list(each.ids),
                "text": each.text,
                "spellings": list(each.spellings),
                "variants": list(each.variants),
                "equal": each.fit.equal,
                "impossible": each.fit.impossible,
                "elements": each.fit.elements,
            }
            for each in told.explanations
        ],
        "tail": told.tail or None,
        "explains": told.share,
        "not_finite": {
            "hidden": told.non_finite.hidden,
            "born": told.non_finite.born,
            "expected": told.non_finite.expected,
        },
        "tried": {"single": told.tried[0], "pairs": told.tried[1]},
        "not_shown_by_these_inputs": list(told.blind),
        "quantization": _difference(one.quantization),
        "device": _difference(one.device),
        "total": _difference(one.total),
        "rows_of_differences": one.told_rows,
        "by_kind": [
            {
                "kind": each.kind,
                "rows": each.rows,
                "quantization": _short(each.quantization),
                "device": _short(each.device),
                "total": _short(each.total),
            }
            for each in one.by_kind
        ],
    }


_SHORT = ("elements", "not_finite", "max", "rms", "relative", "cosine", "snr_db")


def _short(one: Difference | None) -> dict[str, Any] | None:
    whole = _difference(one)
    return None if whole is None else {key: whole[key] for key in _SHORT}


def _difference(one: Difference | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "elements": one.elements,
        "not_finite": one.not_finite,
        "max": one.largest,
        "rms": one.rms,
        "relative": one.relative,
        "cosine": one.cosine,
        "snr_db": one.snr,
        "channels": [
            {"channel": n, "rms": rms, "relative": share} for n, rms, share in one.channels
        ],
        "relative_of_channels": dict(zip(("median", "p95", "max"), one.spread, strict=True)),
        "profile": one.profile,
        "histogram": None if one.histogram is None else one.histogram.to_dict(),
    }


def _sections(what: Diagnosis) -> Iterator[Section]:
    lines = [title(one, what.on) for one in what.outcomes]
    for one in what.outcomes:
        lines += list(_told(one, what))
    if what.expected:
        lines.append(f"expected of {what.expected}")
    yield Lines("Verdict", (*lines, *what.notes))
    yield _table(what)
    worst = max(what.outcomes, key=lambda one: one.device.relative, default=None)
    if worst is not None and worst.told.verdict not in (Verdict.EXPLAINED, Verdict.ROUNDING):
        yield _channels(worst)


def _told(one: Outcome, what: Diagnosis) -> Iterator[str]:
    told = one.told
    if told.verdict is Verdict.EXPLAINED and told.clean is not None:
        fit = told.clean
        same = f"{fit.equal:,} of {fit.elements:,} outputs equal"
        yield f"{same}, as: {'; or '.join(one.ways) or 'no chip that was compared'}"
        if what.on and one.ways and not any(_chip(what.on) in way for way in one.ways):
            yield f"that is not how {what.on} computes it"
        if told.blind:
            some = "; ".join(told.blind[:3])
            more = len(told.blind) - 3
            yield (
                f"these inputs cannot show {len(told.blind)} of the faults that are known: {some}"
                + (f", and {more} more" if more > 0 else "")
                + " (`qassay probe` writes inputs that do)"
            )
    elif told.verdict is Verdict.ROUNDING and one.ways:
        yield f"up to the last bits of float32 sums, as: {'; or '.join(one.ways)}"
    elif told.verdict is Verdict.ROUNDING:
        yield "no documented arithmetic gives these outputs bit for bit; another order or width of"
        yield "sums would: nothing is wrong that shows"


def _chip(on: str) -> str:
    return on.partition(":")[2].partition("@")[0]


def _table(what: Diagnosis) -> Table:
    rows = []
    for one in what.outcomes:
        name = safe(one.name, 40)
        for each in one.by_kind or (one,):
            kind = (
                f"{each.kind} ({each.rows:,})" if isinstance(each, KindErrors) else f"{each.rows:,}"
            )
            for word, found in (
                ("quantization (quantized - float)", each.quantization),
                ("device (device - quantized)", each.device),
                ("total (device - float)", each.total),
            ):
                if found is not None:
                    rows.append((name, kind, word, *_cells(found)))
    titles = ("rms", "max", "relative", "cosine", "SNR dB", "worst channel", "not finite")
    columns = (
        Column("output"),
        Column("rows"),
        Column("error"),
        *(Column(each, right=True) for each in titles),
    )
    note = (
        ""
        if any(one.total for one in what.outcomes)
        else ("no float reference (--float): what quantization cost is not told")
    )
    return Table("The error, by whose it is", columns, tuple(rows), note)


def _cells(one: Difference) -> tuple[str, ...]:
    worst = "-" if not one.channels else f"{one.channels[0][0]} ({number(one.channels[0][1])})"
    return (
        number(one.rms),
        number(one.largest),
        f"{one.relative:.3%}" if one.relative < 1e4 else number(one.relative),
        f"{one.cosine:.6f}",
        "equal" if one.snr is None else f"{one.snr:.1f}",
        worst,
        number(one.not_finite),
    )


def _channels(one: Outcome) -> Section:
    rows = [
        (f"channel {n}", f"rms {number(rms)}, {share:.2%} of its own" if share < 1e4 else
         f"rms {number(rms)}")
        for n, rms, share in one.device.channels
    ]  # fmt: skip
    return Pairs(f"Worst output channels, {safe(one.name, 40)}", tuple(rows))
