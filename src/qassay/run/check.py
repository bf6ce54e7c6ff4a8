"""The main job: open, audit, ask the rules, judge."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from qassay.core.container import Container, Skipped
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Finding, numbered
from qassay.encodings.registry import open_with_encodings
from qassay.rules.base import ModelFacts, ModelRule, Rule, TensorRule
from qassay.rules.registry import OF_COMPARISONS, OF_DIAGNOSES, OF_RUNTIMES, OF_TARGETS, codes, rule
from qassay.run.audit import audit
from qassay.run.importance import with_importance
from qassay.run.options import CheckOptions

_NEVER = (*OF_COMPARISONS, *OF_DIAGNOSES)


@dataclass(slots=True)
class CheckResult:
    """What a check found, before it is put into a document.

    Attributes:
        facts: Everything measured.
        findings: In file order, then by code.
        rules: Codes of the rules that ran.
        full_stats: Whether the codes of every block were counted, not of a sample.
    """

    facts: ModelFacts
    findings: list[Finding] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    full_stats: bool = False

    @property
    def complete(self) -> bool:
        """Whether everything in the input was judged by every rule that was asked for."""
        return not self.facts.unread and not self.facts.crashed


def check(
    source: str | os.PathLike[str] | Container, options: CheckOptions, name: str | None = None
) -> CheckResult:
    """Check a file, a folder or an open container.

    An input that cannot be read at all gives a result with nothing but its reason.

    Args:
        source: What to check.
        options: How.
        name: How the report names a path; see `open_container`.

    Raises:
        UsageError: `options` leave no rule to run.
    """
    if not any(options.runs(code) for code in codes() if code not in _NEVER):
        raise UsageError(
            "nothing would be checked: no rule is left",
            hint="select other rules, or ignore fewer",
        )
    if isinstance(source, Container):
        return judge(_measured(source, options), options)
    try:
        container = open_with_encodings(source, name)
    except InputError as error:
        path = error.path or name or os.fspath(source)
        unreadable = Container(path=path, format="unknown")
        unread = [Skipped(path, error.reason)]
        return judge(ModelFacts(unreadable, unread=unread), options)
    try:
        return judge(_measured(container, options), options)
    finally:
        container.close()


def _measured(container: Container, options: CheckOptions) -> ModelFacts:
    """Return everything that the rules are to judge."""
    facts = with_importance(audit(container, options), options)
    if options.fit is None:
        return facts
    from qassay.run.fit import with_fit  # noqa: PLC0415 - most checks ask for no runtime

    return with_fit(facts, options.fit)


def judge(facts: ModelFacts, options: CheckOptions) -> CheckResult:
    """Ask every rule that `options` selects about `facts`.

    Rules run in order of code, so Q902, which reports rules that raised, comes last.
    """
    result = CheckResult(facts, full_stats=options.full_stats)
    for code in codes():
        unwanted = code in _NEVER or (code in OF_TARGETS and not options.targets)
        unwanted = unwanted or (code in OF_RUNTIMES and options.fit is None)
        if unwanted or not options.runs(code):
            continue
        rule_class = rule(code)
        result.rules.append(code)
        try:
            found = list(_findings(rule_class(), facts))
        except Exception as error:  # noqa: BLE001 - a broken rule must not hide the others
            facts.crashed.append((rule_class, error))
            continue
        result.findings += found
    order = {tensor.name: at for at, tensor in enumerate(facts.container.tensors)}
    result.findings = sorted(
        (_graded(finding, options) for finding in result.findings),
        key=lambda finding: (
            order.get(finding.tensor, -1) if finding.tensor is not None else -1,
            finding.code,
            -1 if finding.expert is None else finding.expert,
            finding.field or "",
        ),
    )
    result.findings = list(numbered(result.findings))
    return result


def _findings(asked: Rule, facts: ModelFacts) -> Iterator[Finding]:
    if isinstance(asked, ModelRule):
        yield from asked.check(facts)
    elif isinstance(asked, TensorRule):
        for tensor in facts.tensors:
            yield from map(tensor.placed, asked.check(tensor))


def _graded(finding: Finding, options: CheckOptions) -> Finding:
    wanted = options.severities.get(finding.code)
    return finding if wanted is None else finding.with_severity(wanted)
