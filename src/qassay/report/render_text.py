"""`--output-format text`: the report for people."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Severity
from qassay.core.text import safe
from qassay.report.document import Input, NotChecked, Report
from qassay.report.look import Look
from qassay.report.page import Lines
from qassay.report.text_findings import findings, worth_telling
from qassay.report.text_page import section
from qassay.report.words import count, plain, size

_SKIPPED = 8
"""How many reasons for not checking are listed unless the report is verbose."""

_FORMATS = {"gguf": "GGUF", "safetensors": "safetensors", "folder": "folder"}


def render(report: Report, look: Look) -> Iterator[str]:
    """Yield the lines of the report, each with its end of line."""
    for line in _lines(report, look):
        yield f"{line}\n"


def _lines(report: Report, look: Look) -> Iterator[str]:
    bare = any(isinstance(part, Lines) and part.bare for part in report.sections)
    if report.inputs and not bare:
        for given in report.inputs:
            yield _input(given, look)
        yield ""
    paths = len(report.inputs) > 1 or any(given.format == "folder" for given in report.inputs)
    yield from findings(report.findings, look, paths=paths)
    if look.verbosity >= 0 or not report.judged:
        for place, part in enumerate(report.sections):
            if place:
                yield ""
            yield from section(part, look)
        if report.sections and (report.judged or report.verdict is not None):
            yield ""
    if report.judged or report.coverage.skipped:
        yield from _coverage(report, look)
    if report.verdict is not None:
        yield _verdict(report, look)


def _input(given: Input, look: Look) -> str:
    name, words = input_words(given)
    if given.format == "unknown":
        return f"{look.paint(name, 'name')}  {look.paint(words, 'warning')}"
    return f"{look.paint(name, 'name')}  {words}"


def input_words(given: Input) -> tuple[str, str]:
    """Return the name of an input, escaped, and what there is to say of it."""
    if given.format == "unknown":
        return safe(given.path), "not read"
    parts = [_FORMATS.get(given.format, plain(given.format)), given.note, size(given.bytes)]
    return safe(given.path), ", ".join(part for part in parts if part)


def _coverage(report: Report, look: Look) -> Iterator[str]:
    coverage = report.coverage
    if coverage.tensors or not coverage.skipped:
        shapes = report.command == "fit"  # of which no byte of a weight is read
        of = count(coverage.tensors, "Linear" if shapes else "tensor")
        read = "" if shapes else f", {size(coverage.bytes)}"
        yield f"checked {coverage.checked:,} of {of}{read}"
    groups: dict[str, list[NotChecked]] = {}
    for skip in coverage.skipped:
        groups.setdefault(skip.reason, []).append(skip)
    shown = list(groups.items())
    if look.verbosity <= 0:
        shown = shown[:_SKIPPED]
    for reason, skips in shown:
        yield from look.sentence(f"not checked: {_names(skips, look)}: {plain(reason)}", "")
    rest = len(groups) - len(shown)
    if rest:
        yield f"not checked: {count(rest, 'further reason')} (-v lists them)"


def _names(skips: list[NotChecked], look: Look) -> str:
    if look.verbosity > 0 or len(skips) <= 3:
        return ", ".join(safe(skip.name) for skip in skips)
    return f"{safe(skips[0].name)} and {len(skips) - 1:,} more"


def _verdict(report: Report, look: Look) -> str:
    style = {"clean": "good", "incomplete": "warning"}.get(report.verdict or "", "warning")
    if report.verdict == "findings" and any(
        one.severity is Severity.ERROR for one in report.findings
    ):
        style = "error"
    return f"{look.paint(report.verdict or '', style)}{verdict_words(report)}"


def verdict_words(report: Report) -> str:
    """Return what follows the verdict: `: 2 errors, 1 note; not all was checked`."""
    told = worth_telling(report.findings)
    counts = {each: sum(one.severity is each for one in told) for each in Severity}
    words = [
        count(counts[each], each.label) for each in sorted(Severity, reverse=True) if counts[each]
    ]
    said = ", ".join(words).replace("info", "note")
    if report.verdict == "clean":
        tail = f", {said}" if said else ""
        return f": no errors, no warnings{tail}"
    if report.verdict == "incomplete":
        tail = f"; {said}" if said else ""
        what = "nothing could be checked" if not report.coverage.checked else "not all was checked"
        if report.coverage.checked:
            what += ", and what was has no errors and no warnings"
        return f": {what}{tail}"
    tail = "" if report.complete else "; not all was checked"
    return f": {said}{tail}"
