"""Findings as text: what, where, what was measured, what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qassay.core.finding import Finding, Location, Severity
from qassay.core.text import safe
from qassay.report.look import Look
from qassay.report.words import count, number, plain

_MORE = 8
"""How many further places a finding lists."""

_NOT_CHECKED = "Q901"
"""Its notes say what the coverage lines below say as well."""
_CRASHED = "Q902"
"""Qassay's own failure is told in full, however it is graded."""


def worth_telling(found: Sequence[Finding]) -> list[Finding]:
    """Return the findings that a text report lists."""
    return [
        finding
        for finding in found
        if finding.severity > Severity.INFO or finding.code != _NOT_CHECKED
    ]


def findings(found: Sequence[Finding], look: Look, *, paths: bool) -> Iterator[str]:
    """Yield findings, the worst first, each with an empty line after it.

    Args:
        found: The findings, in file order.
        look: How it is to look; infos are listed one by one only when verbose.
        paths: Whether to say which file each is in.
    """
    ranked = sorted(worth_telling(found), key=lambda finding: -finding.severity)
    notes = []
    for finding in ranked:
        if finding.severity is Severity.INFO and look.verbosity <= 0 and finding.code != _CRASHED:
            notes.append(finding)
            continue
        yield from _finding(finding, look, paths=paths)
        yield ""
    if notes and look.verbosity == 0:
        yield from _notes(notes, look)
        yield ""


def _finding(finding: Finding, look: Look, *, paths: bool) -> Iterator[str]:
    word = finding.severity.label
    head = [look.paint(f"{word} {finding.code}", word), finding.name]
    if finding.certainty.value != "proven":
        head.append(look.paint(f"({finding.certainty.value})", "quiet"))
    subject = _subject(finding, paths=paths)
    if subject:
        head.append(f" {look.paint(subject, 'name')}")
    yield " ".join(head)
    yield from look.sentence(plain(finding.message))
    first = finding.location
    if first is not None:
        value = "" if first.value is None else f": {_value(first.value)}"
        yield from look.sentence(f"at {place(first)}{value}", hanging="   ")
    more = _more(finding)
    if more:
        yield from look.sentence(more, hanging="   ")
    if finding.help:
        yield from look.sentence(f"Fix: {plain(finding.help)}", hanging="     ")


def _subject(finding: Finding, *, paths: bool) -> str:
    parts = []
    if paths and finding.path:
        parts.append(safe(finding.path) + (":" if finding.tensor is not None else ""))
    if finding.tensor is not None:
        parts.append(safe(finding.tensor))
    if finding.expert is not None:
        parts.append(f"[expert {finding.expert}]")
    return " ".join(parts)


def place(location: Location) -> str:
    """Return where a location is: `row 7, column 64, block 1801, field d, byte 612 (0x264)`."""
    parts = [
        f"{name} {part}"
        for name, part in (
            ("row", location.row),
            ("column", location.column),
            ("block", location.block),
        )
        if part is not None
    ]
    if location.field is not None:
        parts.append(f"field {safe(location.field)}")
    if location.byte_offset is not None:
        parts.append(f"byte {location.byte_offset} ({location.byte_offset:#x})")
    return ", ".join(parts)


def _value(value: float | str) -> str:
    return plain(value) if isinstance(value, str) else number(value)


def _more(finding: Finding) -> str:
    rest = finding.count - 1
    if rest < 1 or finding.location is None:
        return ""  # more than which one? The message counts them
    shown = finding.locations[1 : 1 + _MORE]
    parts = [("block", "block"), ("row", "row"), ("byte", "byte_offset")]
    if _of_groups(finding.locations[: 1 + _MORE]):
        parts[:2] = parts[1::-1]
    for noun, part in parts:
        places = list(dict.fromkeys(getattr(at, part) for at in shown))
        if places and None not in places:
            tail = ", ..." if rest > len(shown) else ""
            plural = "" if len(places) == 1 and not tail else "s"
            listed = ", ".join(str(at) for at in places)
            return f"and {rest:,} more: {noun}{plural} {listed}{tail}"
    return f"and {rest:,} more"


def _of_groups(places: Sequence[Location]) -> bool:
    """Tell whether places are groups of a layer in several rows, counted anew in each row.

    Rows tell more then: group 0 of many rows is the same number again and again.
    """
    if len({at.row for at in places}) == 1:
        return False
    rows: dict[int, int] = {}  # by block
    for at in places:
        if at.row is None or at.block is None:
            return False
        if at.block < at.row or rows.setdefault(at.block, at.row) != at.row:
            return True
    return False


def _notes(notes: Sequence[Finding], look: Look) -> Iterator[str]:
    """Yield one line for each code, with how many tensors have it and one of them in full."""
    said = look.paint("(no fault by themselves; -v lists each)", "quiet")
    yield f"{look.paint('Notes', 'name')} {said}"
    by_code: dict[str, list[Finding]] = {}
    for finding in notes:
        by_code.setdefault(finding.code, []).append(finding)
    for code in sorted(by_code):
        group = by_code[code]
        example = max(group, key=lambda finding: finding.count)
        tensors = len({(finding.path, finding.tensor) for finding in group if finding.tensor})
        head = f"{look.paint(code, 'info')} {example.name}"
        if tensors > 1:
            head += f" in {count(tensors, 'tensor')}, most in {safe(example.tensor or '')}"
        elif example.tensor is not None:
            head += f" in {safe(example.tensor)}"
        if example.expert is not None:
            head += f" [expert {example.expert}]"
        yield from look.sentence(f"{head}: {plain(example.message)}", hanging="  ")
