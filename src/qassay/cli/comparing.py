"""Running a comparison for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qassay.cli.checking import input_bytes
from qassay.cli.codes import known_codes
from qassay.cli.inputs import distinct
from qassay.cli.options import RuleChoice
from qassay.cli.progress import progress
from qassay.core.finding import Severity
from qassay.report.document import Report
from qassay.report.of_compare import report_of
from qassay.rules.registry import codes as rule_codes
from qassay.run.compare import compare
from qassay.run.options import CheckOptions


def run(
    reference: Path,
    other: Path,
    choice: RuleChoice,
    severity: Mapping[str, str],
    *,
    shown: bool,
) -> Report:
    """Compare two paths and return the report.

    Raises:
        UsageError: A rule code names nothing there is, or no rule is left to run.
    """
    codes = list(rule_codes())
    paths = (reference, other)
    named = distinct(paths)
    # One path given twice has one name.
    names = [name for _, name in named] * (1 if len(named) == len(paths) else 2)
    with progress("comparing", sum(map(input_bytes, paths)), shown=shown) as step:
        options = CheckOptions(
            select=known_codes(choice.select, codes, *choice.select_from),
            ignore=known_codes(choice.ignore, codes, *choice.ignore_from),
            severities={code: Severity.parse(word) for code, word in severity.items()},
            progress=step,
        )
        return report_of(compare(reference, other, options, (names[0], names[1])))
