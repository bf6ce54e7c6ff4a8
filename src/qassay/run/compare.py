"""Two models: open both, compare, ask the rules about comparisons."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from qassay.comparison.engine import compare_containers
from qassay.comparison.facts import Comparison
from qassay.core.container import Container, Skipped
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Finding, numbered
from qassay.encodings.registry import open_with_encodings
from qassay.rules.base import ComparisonRule, Rule
from qassay.rules.registry import OF_COMPARISONS, rule
from qassay.run.options import CheckOptions

Source = str | os.PathLike[str] | Container
Opened = tuple[Container, Container]


@dataclass(slots=True)
class CompareResult:
    """What a comparison found, before it is put into a document.

    Attributes:
        containers: Both models, closed by now if they were opened here.
        comparison: Everything that was found.
        findings: In the order of the first model.
        unread: What was not compared, with its path, and why.
        rules: Codes of the rules that ran.
        crashed: Rules that raised, with the error.
    """

    containers: Opened
    comparison: Comparison
    findings: list[Finding] = field(default_factory=list)
    unread: list[tuple[Skipped, str]] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    crashed: list[tuple[type[Rule], Exception]] = field(default_factory=list)


def compare(
    a: Source,
    b: Source,
    options: CheckOptions | None = None,
    names: tuple[str | None, str | None] = (None, None),
    *,
    pictures: bool = True,
) -> CompareResult:
    """Compare two models; one that cannot be read gives a result with nothing but its reason.

    Args:
        a: The reference: a path or an open container.
        b: What is set against it.
        options: Which rules are asked, how findings are graded, whom to tell of progress.
        names: How the report names the paths; see `open_container`.
        pictures: Whether to look how errors are spread over a step, which no verdict needs.

    Raises:
        UsageError: `options` leave no rule to run.
    """
    options = options or CheckOptions()
    if not any(options.runs(code) for code in OF_COMPARISONS):
        raise UsageError(
            "nothing would be compared: no rule is left",
            expected=f"at least one of {', '.join(OF_COMPARISONS)}",
            hint="select other rules, or ignore fewer",
        )
    opened: list[Container] = []
    close: list[Callable[[], None]] = []
    unread: list[tuple[Skipped, str]] = []
    try:
        for source, name in zip((a, b), names, strict=True):
            container, reason = _open(source, name)
            opened.append(container)
            if not isinstance(source, Container):
                close.append(container.close)
            if reason:
                unread.append((Skipped(container.path, reason), container.path))
        both = (opened[0], opened[1])
        if unread:
            return CompareResult(both, Comparison((both[0].path, both[1].path)), unread=unread)
        comparison = compare_containers(*both, options.progress, pictures=pictures)
    finally:
        for each in close:
            each()
    result = CompareResult(both, comparison, unread=_unread(both, comparison))
    comparison.incomplete = bool(result.unread)
    _judge(result, options)
    return result


def _open(source: Source, name: str | None) -> tuple[Container, str]:
    if isinstance(source, Container):
        return source, ""
    try:
        return open_with_encodings(source, name), ""
    except InputError as error:
        path = error.path or name or os.fspath(source)
        return Container(path=path, format="unknown"), error.reason


def _unread(both: Opened, comparison: Comparison) -> list[tuple[Skipped, str]]:
    """Return what was not compared: tensors, and files that are not sound."""
    found = []
    for container in both:
        found += [(skip, container.path) for skip in container.skipped]
        wrong = [defect for defect in container.defects if not defect.minor]
        if wrong:
            reason = f"its structure is not sound ({wrong[0].code}): `qassay check` tells more"
            found.append((Skipped(container.path, reason), container.path))
    found += [
        (Skipped(pair.name, pair.reason), pair.path)
        for pair in comparison.pairs
        if pair.relation == "not-compared"
    ]
    if not comparison.pairs and not comparison.alone:
        found.append((Skipped(both[1].path, "there is nothing to compare"), both[1].path))
    return found


def _judge(result: CompareResult, options: CheckOptions) -> None:
    order: dict[str, int] = {}
    for at, pair in enumerate(result.comparison.pairs):
        order.setdefault(pair.tensor, at)
    for code in OF_COMPARISONS:
        if not options.runs(code):
            continue
        asked = rule(code)
        result.rules.append(code)
        try:
            assert issubclass(asked, ComparisonRule)  # noqa: S101 - a test says so of each
            found = list(asked().check(result.comparison))
        except Exception as error:  # noqa: BLE001 - a broken rule must not hide the others
            result.crashed.append((asked, error))
            continue
        wanted = options.severities.get(code)
        result.findings += [
            each if wanted is None else each.with_severity(wanted) for each in found
        ]
    result.findings.sort(
        key=lambda one: (order.get(one.tensor or "", len(order)), one.code, one.field or "")
    )
    result.findings = list(numbered(result.findings))
