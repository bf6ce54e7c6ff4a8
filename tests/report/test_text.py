"""The text renderer on reports that no small file brings about."""

from __future__ import annotations

import pytest

from qassay.core.errors import UsageError
from qassay.core.finding import Certainty, Finding, Location, Severity
from qassay.report import words
from qassay.report.document import Coverage, Input, NotChecked, Report
from qassay.report.look import Look
from qassay.report.page import Column, Lines, Pairs, Table
from qassay.report.registry import renderer, renderers


def shown(report: Report, **look: object) -> list[str]:
    return "".join(renderer("text")(report, Look(**look))).splitlines()


def finding(code="Q201", severity=Severity.ERROR, **more: object) -> Finding:
    return Finding(code, "some-defect", severity, Certainty.PROVEN, "message", help="do", **more)


def test_findings_come_worst_first_and_else_in_file_order():
    found = (
        finding("Q203", Severity.INFO, tensor="i"),
        finding("Q202", Severity.WARNING, tensor="w1"),
        finding("Q201", Severity.ERROR, tensor="e1"),
        finding("Q202", Severity.WARNING, tensor="w2"),
        finding("Q201", Severity.ERROR, tensor="e2"),
    )
    heads = [line for line in shown(Report("check", findings=found), verbosity=1) if "some" in line]
    assert [line.split()[-1] for line in heads] == ["e1", "e2", "w1", "w2", "i"]


def test_expert_certainty_and_places():
    places = tuple(Location(row=at, block=at * 2, byte_offset=at * 34) for at in range(16))
    one = Finding(
        "Q204", "some-defect", Severity.WARNING, Certainty.LIKELY, "message",
        tensor="w", expert=3, count=1016, locations=places, help="do",
    )  # fmt: skip
    lines = shown(Report("check", findings=(one,)))
    assert lines[0] == "warning Q204 some-defect (likely)  w [expert 3]"
    assert lines[2] == "  at row 0, block 0, byte 0 (0x0)"
    assert lines[3] == "  and 1,015 more: blocks 2, 4, 6, 8, 10, 12, 14, 16, ..."
    assert lines[4] == "  Fix: do"


@pytest.mark.parametrize(
    ("count", "places", "more"),
    [
        (1, [Location(block=1)], None),
        (2, [Location(block=1), Location(block=4)], "  and 1 more: block 4"),
        (3, [Location(row=1), Location(row=4)], "  and 2 more: rows 4, ..."),
        (3, [Location(byte_offset=1), Location(byte_offset=4)], "  and 2 more: bytes 4, ..."),
        (5, [], None),
        # Of a layer, blocks are groups in their row: the same few numbers over and over.
        (4, [Location(row=at, block=0) for at in range(4)], "  and 3 more: rows 1, 2, 3"),
        (4, [Location(row=7, block=at) for at in range(4)], "  and 3 more: blocks 1, 2, 3"),
        (3, [Location(row=at // 2, block=at) for at in range(3)], "  and 2 more: blocks 1, 2"),
        (3, [Location(row=0, block=at) for at in range(3)], "  and 2 more: blocks 1, 2"),
    ],
)
def test_further_places(count, places, more):
    lines = shown(Report("check", findings=(finding(count=count, locations=tuple(places)),)))
    assert [line for line in lines if line.startswith("  and")] == ([more] if more else [])


def test_notes_are_one_line_a_code():
    found = tuple(
        finding(code, Severity.INFO, tensor=f"t{at}", count=at + 1)
        for code in ("Q301", "Q203")
        for at in range(5)
    )
    lines = shown(Report("check", findings=found))
    assert lines[:3] == [
        "Notes (no fault by themselves; -v lists each)",
        "  Q203 some-defect in 5 tensors, most in t4: message",
        "  Q301 some-defect in 5 tensors, most in t4: message",
    ]
    assert lines[-1] == "clean: no errors, no warnings, 10 notes"
    assert (
        sum("some-defect" in line for line in shown(Report("check", findings=found), verbosity=1))
        == 10
    )
    assert not any(
        "some-defect" in line for line in shown(Report("check", findings=found), verbosity=-1)
    )


def test_what_was_not_checked_is_grouped_and_cut():
    skipped = [NotChecked(f"t{at}", "m", "reason A") for at in range(20)]
    skipped += [NotChecked(f"u{at}", "m", f"reason {at}") for at in range(20)]
    report = Report("check", coverage=Coverage(50, 10, tuple(skipped), 1000))
    lines = shown(report)
    assert "not checked: t0 and 19 more: reason A" in lines
    assert "not checked: 13 further reasons (-v lists them)" in lines
    full = shown(report, verbosity=1)
    assert sum(line.startswith("not checked") for line in full) == 21
    assert "t19" in "\n".join(full)


def test_a_terminal_gets_wrapped_sentences_with_hanging_indent():
    one = Finding("Q201", "x", Severity.ERROR, Certainty.PROVEN, "word " * 40, help="do " * 40)
    lines = shown(Report("check", findings=(one,)), width=60)
    assert max(map(len, lines)) < 60
    assert sum(line.startswith("       do") for line in lines) > 0
    assert len(shown(Report("check", findings=(one,)))) < len(lines)


def test_sections():
    table = Table("T", (Column("name"), Column("n", right=True)), (("層", "1"), ("ab", "1,000")))
    report = Report(
        "rules",
        sections=(table, Pairs("P", (("a", "1"), ("long", "2"))), Lines("", ("x", ""), bare=True)),
        judged=False,
    )
    assert shown(report) == [
        "T", "  name      n", "  層        1", "  ab    1,000", "",
        "P", "  a     1", "  long  2", "",
        "x", "",
    ]  # fmt: skip


def test_the_input_line():
    given = (Input("a.gguf", "gguf", 1234, "version 3"), Input("b", "unknown", 0))
    assert shown(Report("check", inputs=given))[:2] == [
        "a.gguf  GGUF, version 3, 1.2 kB",
        "b  not read",
    ]


def test_color_paints():
    assert "\x1b[" in shown(Report("check", findings=(finding(),)), color=True)[0]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"),
     (253_100_000, "253.1 MB"), (4 * 10**12, "4.0 TB")],
)  # fmt: skip
def test_size(nbytes, text):
    assert words.size(nbytes) == text


def test_plain_escapes_what_a_terminal_acts_on_and_nothing_else():
    assert words.plain("a\\b é 層\x1b[0m\n\u202e") == "a\\b é 層\\x1b[0m\\n\\u202e"


def test_an_unknown_renderer_lists_those_there_are():
    with pytest.raises(UsageError) as caught:
        renderer("nonsense")
    assert all(name in str(caught.value) for name in renderers())
    assert renderers()[0] == "text"
