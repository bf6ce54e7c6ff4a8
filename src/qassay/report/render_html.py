"""`--output-format html`: one page that opens from disk and needs nothing else.

Everything is inside: style, script, plots (Vega-Lite), the numbers. The page's policy lets it load
nothing and run no script but its own two, by their hashes. It is ASCII, so that it is the same
under any encoding.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import Any

from qassay.core.errors import UsageError
from qassay.core.finding import Severity
from qassay.core.text import safe
from qassay.core.version import __version__
from qassay.report.document import SCHEMA_VERSION, NotChecked, Report
from qassay.report.html_kinds import kind_of, subjects_of
from qassay.report.html_subjects import Metric, Subject, attach
from qassay.report.html_words import terms
from qassay.report.look import Look
from qassay.report.page import Lines, Pairs, Section, Table
from qassay.report.render_text import input_words, verdict_words
from qassay.report.text_findings import place
from qassay.report.words import count, number, plain, size

_FINDINGS = 1000
_SUBJECTS = 2000
_DETAILED = 400
"""Subjects that are shown with numbers and plots, the worst of them: 3 MB are enough."""
_ROWS = 500
_SKIPPED = 100
_NAMES = 12
_KINDS = 24
_WHERE = 4
"""Subjects that the table of findings names of one finding."""
_ABOUT = 20
"""Findings that are told with one subject."""
_VERDICTS = ("Verdict", "Relation")
"""Titles of lines that belong to the verdict, and are shown with it."""
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_ADDRESS = re.compile(r"https?://(?!www\.w3\.org/)")
_RANKS = ("none", "info", "warning", "error")


def render(report: Report, look: Look) -> Iterator[str]:
    """Yield the page.

    Raises:
        UsageError: The packages of `qassay[html]` are not installed.
    """
    jinja, plots = _library()
    document = report.to_dict()
    metrics, (listed, kept), subjects = subjects_of(document)
    subjects_of_each = attach(subjects, document["findings"])
    shown = subjects[:_SUBJECTS]
    folder = files("qassay.report") / "html"
    script = "".join(
        (folder / name).read_text(encoding="ascii") for name in ("charts.js", "page.js")
    )
    style = (folder / "page.css").read_text(encoding="ascii")
    environment = jinja.Environment(
        autoescape=True, undefined=jinja.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string((folder / "page.html").read_text(encoding="ascii"))
    columns = _columns(shown, metrics)
    page = template.render(
        report=report,
        verdict=report.verdict or report.command,
        tone=_tone(report),
        said=verdict_words(report).lstrip(": ") if report.verdict else "",
        kinds=_kinds(report),
        subject=" and ".join(safe(given.path) for given in report.inputs[:2]) or report.command,
        inputs=[input_words(given) for given in report.inputs],
        coverage=_coverage(report),
        skipped=_skipped(report.coverage.skipped),
        findings=_findings(document["findings"], report, subjects_of_each, shown),
        more_findings=max(0, len(report.findings) - _FINDINGS),
        codes=sorted({finding.code for finding in report.findings}),
        metrics=metrics,
        subjects=[_row(at, one, metrics) for at, one in enumerate(shown)],
        more_subjects=max(0, len(subjects) - _SUBJECTS),
        columns=columns,
        drawn=bool(subjects),
        kept=kept,
        listed=listed,
        several=len({one.path for one in shown}) > 1,
        mapped=any(one.layers for one in shown),
        charted=any(one.charts for one in subjects),
        first=[_section(part, shown) for part in report.sections if _is_verdict(part)],
        told=[_section(part, shown) for part in report.sections
              if isinstance(part, Lines) and not _is_verdict(part)],
        sections=[_section(part, shown) for part in report.sections if _is_table(part, shown)],
        terms=terms(kind_of(document), findings=bool(report.findings),
                    unknown=not report.complete or any(not one.checked for one in shown)),
        command=look.invocation or f"qassay {report.command}",
        versions=_versions(),
        schema=SCHEMA_VERSION,
        tool=__version__,
        policy=_policy(script, style, plots if subjects else ""),
        # Files of this package and `_json`: the only text that is not escaped.
        raw={
            name: jinja.utils.markupsafe.Markup(text)
            for name, text in (
                ("style", style),
                ("script", script),
                ("plots", plots),
                ("data", _data(metrics, columns, subjects)),
            )
        },
    )  # fmt: skip
    yield page.encode("ascii", "xmlcharrefreplace").decode("ascii")
    yield "\n"


@cache
def _library() -> tuple[Any, str]:
    """Return Jinja2, and the script of the plots.

    Vega, Vega-Lite and vega-embed as `vl-convert-python` carries them. Addresses in it lose their
    scheme (an editor's, an issue's): nothing in the page may look like something to be loaded.
    """
    try:
        jinja = import_module("jinja2")
        bundle: str = import_module("vl_convert").javascript_bundle()
    except ImportError:
        raise UsageError(
            "--output-format html needs Jinja2 and vl-convert-python, which are not installed",
            hint="install them: pip install 'qassay[html]'",
        ) from None
    bundle = _ADDRESS.sub("", bundle.replace("\r\n", "\n"))
    bundle = re.sub(r"<(?=/script|script|!--)", r"\\x3c", bundle, flags=re.IGNORECASE)
    return jinja, _BEYOND_ASCII.sub(_unit, bundle)


def _unit(found: re.Match[str]) -> str:
    """Return a character as escapes that strings and regular expressions of JavaScript know."""
    raw = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{raw[at]:02x}{raw[at + 1]:02x}" for at in range(0, len(raw), 2))


def _policy(script: str, style: str, plots: str) -> str:
    """Return the page's content security policy: nothing from anywhere, and these scripts alone."""
    scripts = " ".join(_hash(each) for each in (script, plots) if each)
    return (
        f"default-src 'none'; script-src {scripts}; style-src {_hash(style)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("ascii")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _tone(report: Report) -> str:
    """Return what the verdict is painted as: findings without an error are no error."""
    worst = max((finding.severity for finding in report.findings), default=Severity.INFO)
    if report.verdict == "findings" and worst is not Severity.ERROR:
        return "incomplete"
    return report.verdict or ""


def _kinds(report: Report) -> list[dict[str, Any]]:
    """Return the codes of findings and how many there are of each, the worst first."""
    seen = Counter((one.severity, one.code, one.name) for one in report.findings)
    order = sorted(seen.items(), key=lambda pair: (-pair[0][0], pair[0][1]))
    return [
        {"severity": severity.label, "code": code, "name": name, "count": number(many)}
        for (severity, code, name), many in order[:_KINDS]
    ]


def _is_verdict(part: Section) -> bool:
    return isinstance(part, Lines) and not part.bare and part.title in _VERDICTS


def _is_table(part: Section, subjects: list[Subject]) -> bool:
    """Tell whether a section is shown below: not what the table of subjects has already."""
    if isinstance(part, Table):
        return bool(part.rows) and not (part.listed and subjects)
    return isinstance(part, Pairs)


def _json(value: Any) -> str:
    """Return JSON that nothing can end early: no tag, no line separator, ASCII alone."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _data(metrics: tuple[Metric, ...], columns: list[int], subjects: list[Subject]) -> str:
    """Return everything that the page's script reads."""
    order = sorted(range(len(subjects)), key=lambda at: _rank(subjects[at]))
    detailed = set(order[:_DETAILED])
    labels: dict[str, int] = {}
    told = []
    for at, one in enumerate(subjects[:_SUBJECTS]):
        entry: dict[str, Any] = {
            "name": one.name,
            "layers": one.layers,
            "module": one.module,
            "severity": one.severity,
            "values": [_short(value) for value in one.values],
            **({} if one.checked else {"unchecked": 1}),
            **({"said": one.said} if one.said else {}),
        }
        if one.findings:
            entry["findings"] = one.findings[:_ABOUT]
            entry["more"] = max(0, len(one.findings) - _ABOUT)
        if at in detailed:
            entry["numbers"] = [
                [labels.setdefault(label, len(labels)), value] for label, value in one.numbers
            ]
            entry["charts"] = one.charts
        told.append(entry)
    return _json(
        {
            "metrics": [
                {"title": each.title, "form": each.form, "reverse": each.reverse,
                 "most": each.most, "mapped": each.mapped and at in columns}
                for at, each in enumerate(metrics)
            ],
            "labels": list(labels),
            "subjects": told,
        }
    )  # fmt: skip


def _short(value: float | None) -> float | None:
    """Return what the plots need of a number; JSON has no infinity."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def _rank(one: Subject) -> tuple[float, float]:
    """Put the worst first: by findings, then by the first metric."""
    first = next((value for value in one.values if value is not None), 0.0)
    return -one.severity, -first


def _findings(
    found: list[dict[str, Any]],
    report: Report,
    subjects_of_each: list[tuple[int, ...]],
    subjects: list[Subject],
) -> list[dict[str, Any]]:
    """Return the rows of the table of findings, the worst first."""
    several = len(report.inputs) > 1 or any(one.format == "folder" for one in report.inputs)
    rows = []
    for index, (entry, finding) in enumerate(zip(found, report.findings, strict=True)):
        first = finding.location
        where = "" if first is None else place(first)
        if first is not None and first.value is not None:
            value = first.value
            where += f": {plain(value) if isinstance(value, str) else number(value)}"
        about = [at for at in subjects_of_each[index] if at < len(subjects)]
        names = [(at, subjects[at].name) for at in about[:_WHERE]]
        if finding.tensor is not None:  # by the name the finding has, which may be another
            names[:1] = [(names[0][0] if names else -1, safe(finding.tensor))]
        rows.append(
            {
                "index": index,
                "rank": int(finding.severity),
                "severity": entry["severity"],
                "code": finding.code,
                "name": finding.name,
                "certainty": finding.certainty.value,
                "path": safe(finding.path) if several else "",
                "tensors": names,
                "rest": max(0, len(about) - _WHERE),
                "expert": finding.expert,
                "message": plain(finding.message),
                "where": where,
                "help": plain(finding.help),
                "count": finding.count,
            }
        )
    rows.sort(key=lambda row: -row["rank"])
    return rows[:_FINDINGS]


def _columns(subjects: list[Subject], metrics: tuple[Metric, ...]) -> list[int]:
    """Return which metrics have a value somewhere."""
    return [
        at
        for at in range(len(metrics))
        if any(one.values[at] is not None for one in subjects if one.values)
    ]


def _row(at: int, one: Subject, metrics: tuple[Metric, ...]) -> dict[str, Any]:
    values = one.values or (None,) * len(metrics)
    return {
        "at": at,
        "name": one.name,
        "path": safe(one.path),
        "kept": one.kept,
        "shape": one.shape,
        "rank": one.severity,
        "worst": _RANKS[one.severity],
        "checked": one.checked,
        "values": [
            ("" if value is None else repr(value), metric.shown(value))
            for value, metric in zip(values, metrics, strict=True)
        ],
    }


def _coverage(report: Report) -> str:
    """Return how much was judged, in one line."""
    coverage = report.coverage
    of = count(coverage.tensors, "Linear" if report.command == "fit" else "tensor")
    read = f", {size(coverage.bytes)} read" if coverage.bytes else ""
    return f"{coverage.checked:,} of {of} checked{read}"


def _skipped(skipped: tuple[NotChecked, ...]) -> list[dict[str, str]]:
    groups: dict[str, list[str]] = {}
    for skip in skipped:
        groups.setdefault(plain(skip.reason), []).append(safe(skip.name))
    rows = []
    for reason, names in list(groups.items())[:_SKIPPED]:
        more = f", and {len(names) - _NAMES:,} more" if len(names) > _NAMES else ""
        rows.append({"names": ", ".join(names[:_NAMES]) + more, "reason": reason})
    if len(groups) > _SKIPPED:
        reason = f"and {count(len(groups) - _SKIPPED, 'further reason')}, in the JSON report"
        rows.append({"names": "", "reason": reason})
    return rows


def _section(part: Section, subjects: list[Subject]) -> dict[str, Any]:
    if isinstance(part, Table):
        rest = len(part.rows) - _ROWS
        more = f"and {rest:,} more, in the JSON report" if rest > 0 else ""
        places = {one.name: at for at, one in reversed(list(enumerate(subjects)))}
        rows, head = [], ""
        for row in part.rows[:_ROWS]:
            head = row[0] or head  # left blank where it is that of the row above: not once sorted
            rows.append({"head": head, "at": places.get(head, -1), "cells": row[1:]})
        return {"kind": "table", "title": part.title, "columns": part.columns,
                "rows": rows, "note": part.note, "more": more}  # fmt: skip
    if isinstance(part, Pairs):
        return {"kind": "pairs", "title": part.title, "pairs": part.pairs}
    assert isinstance(part, Lines)  # noqa: S101 - there are three kinds
    return {"kind": "lines", "title": part.title, "lines": part.lines, "bare": part.bare}


def _versions() -> str:
    """Return what the numbers and the page depend on."""
    names = ("numpy", "numba", "vl-convert-python", "jinja2")
    return ", ".join((f"qassay {__version__}", *(f"{name} {_version(name)}" for name in names)))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # vendored without its metadata
        return "?"
