"""From two dumps of a whole model to the document: every tensor, in graph order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qassay.comparison.dumps import DumpComparison, TensorPair
from qassay.core.text import safe
from qassay.report.document import Coverage, Input, NotChecked, Report
from qassay.report.page import Column, Lines, Section, Table
from qassay.report.words import number
from qassay.run.diagnose_dumps import DumpsResult

_ROWS = 40
_NAMES = 8


def report_of(done: DumpsResult) -> Report:
    """Return the report of two dumps."""
    what = done.comparison
    skipped = [
        NotChecked(f"rule {code}", what.paths[1], "the rule failed") for code in done.crashed
    ]
    lost = [pair for pair in what.pairs if pair.relation == "not-compared"]
    skipped += [NotChecked(pair.name, what.paths[1], pair.why) for pair in lost]
    return Report(
        command="diagnose",
        inputs=tuple(
            Input(path, kind, nbytes, words)
            for path, kind, nbytes, words in zip(
                what.paths, done.formats, done.nbytes, ("reference", "device"), strict=True
            )
        ),
        coverage=Coverage(
            tensors=len(what.pairs),
            checked=len(what.pairs) - len(lost),
            skipped=tuple(skipped),
            bytes=sum(done.nbytes),
        ),
        findings=tuple(done.findings),
        result=_result(what),
        sections=tuple(_sections(what)),
        fault=bool(done.crashed),
    )


def _result(what: DumpComparison) -> dict[str, Any]:
    return {
        "order": what.order,
        "limit": what.limit,
        "first_bad": next((pair.name for pair in what.bad), None),
        "tensors": [_tensor(pair) for pair in what.pairs],
        "missing": what.missing,
        "fused": what.fused,
        "extra": what.extra,
    }


def _tensor(pair: TensorPair) -> dict[str, Any]:
    odd, found = pair.not_finite, pair.difference
    return {
        "name": pair.name,
        "device_name": pair.other,
        "shape": list(pair.shape),
        "relation": pair.relation,
        "why": pair.why or None,
        "elements": None if found is None else found.elements,
        "max": None if found is None else found.largest,
        "rms": None if found is None else found.rms,
        "relative": None if found is None else found.relative,
        "cosine": None if found is None else found.cosine,
        "snr_db": None if found is None else found.snr,
        "profile": None if found is None else found.profile,
        "histogram": None if found is None or not found.histogram else found.histogram.to_dict(),
        "not_finite": {
            "reference": odd.reference,
            "device": odd.device,
            "born": odd.born,
            "hidden": odd.hidden,
            "both": odd.both,
            "masked": odd.masked,
        },
    }


def _sections(what: DumpComparison) -> Iterator[Section]:
    yield Lines("Verdict", tuple(_verdict(what)))
    yield _table(what)


def _verdict(what: DumpComparison) -> Iterator[str]:
    bad = what.bad
    where = "graph order" if what.order == "graph" else "the order of the reference's dump"
    if bad:
        yield f"first bad tensor, in {where}: {safe(bad[0].name, 120)}: {bad[0].why}"
        yield f"{len(bad):,} of {len(what.pairs):,} tensors are bad"
    else:
        lost = sum(pair.relation == "not-compared" for pair in what.pairs)
        yield f"none of {len(what.pairs) - lost:,} tensors is bad"
        if lost:
            yield f"{lost:,} {'was' if lost == 1 else 'were'} not compared, and may be bad"
    if not what.chosen:
        yield (
            f"a tensor whose error is beyond {what.limit:.0%} of its size counts as bad; honest"
            " 4-bit weights stay far below in one layer, but errors add up (--limit)"
        )
    for words, names in (
        ("in the reference only, and not compared", what.missing),
        ("in the reference only, and not in the device's graph: fused", what.fused),
        ("in the device's dump only", what.extra),
    ):
        if names:
            some = ", ".join(safe(name, 60) for name in names[:_NAMES])
            yield f"{len(names):,} {words}: {some}{', ...' if len(names) > _NAMES else ''}"


def _table(what: DumpComparison) -> Table:
    titles = ("rms", "max", "relative", "cosine", "SNR dB", "not finite")
    columns = (
        Column("tensor"),
        Column("verdict"),
        *(Column(each, right=True) for each in titles),
    )
    rows = tuple((safe(pair.name, 60), pair.relation, *_cells(pair)) for pair in what.pairs)
    return Table("Tensors, in order", columns, rows, shown=_ROWS, listed=True)


def _cells(pair: TensorPair) -> tuple[str, ...]:
    found, odd = pair.difference, pair.not_finite
    if found is None:
        return ("", "", "", "", "", "")
    sides = f"{odd.reference:,} / {odd.device:,}" if odd.reference or odd.device else "0"
    return (
        number(found.rms),
        number(found.largest),
        f"{found.relative:.3%}" if found.relative < 1e4 else number(found.relative),
        f"{found.cosine:.6f}",
        "equal" if found.snr is None else f"{found.snr:.1f}",
        sides,
    )
