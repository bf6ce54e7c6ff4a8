"""Judging shapes for the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qassay.cli.codes import known_codes
from qassay.cli.inputs import distinct
from qassay.cli.options import RuleChoice
from qassay.core.finding import Severity
from qassay.report.document import Report
from qassay.report.of_fit import report_of
from qassay.rules.registry import codes as rule_codes
from qassay.run.fit import fit_model
from qassay.run.options import CheckOptions, FitOptions


def run(
    paths: Sequence[Path], wanted: FitOptions, choice: RuleChoice, severity: Mapping[str, str]
) -> Report:
    """Judge every path and return one report.

    Raises:
        UsageError: A rule code, runtime, chip, version or mode names nothing there is.
    """
    codes = list(rule_codes())
    options = CheckOptions(
        select=known_codes(choice.select, codes, *choice.select_from),
        ignore=known_codes(choice.ignore, codes, *choice.ignore_from),
        severities={code: Severity.parse(word) for code, word in severity.items()},
    )
    return report_of(fit_model(path, wanted, options, name) for path, name in distinct(paths))
