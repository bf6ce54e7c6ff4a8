"""Running a comparison for the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from qassay.cli.choosing import chosen_rules
from qassay.cli.inputs import distinct, input_bytes
from qassay.cli.options import RuleChoice
from qassay.cli.progress import progress
from qassay.report.document import Report
from qassay.report.of_compare import report_of
from qassay.run.compare import compare


def run(
    reference: Path,
    other: Path,
    choice: RuleChoice,
    severity: Mapping[str, str],
    *,
    shown: bool,
    pictures: bool = True,
) -> Report:
    """Compare two paths and return the report.

    Args:
        reference: The first path.
        other: The second.
        choice: Which rules run.
        severity: How findings are graded.
        shown: Whether a progress bar is.
        pictures: Whether the report is of a format that shows how errors are spread.

    Raises:
        UsageError: A rule code names nothing there is, or no rule is left to run.
    """
    options = chosen_rules(choice, severity)
    paths = (reference, other)
    named = distinct(paths)
    # One path given twice has one name.
    names = [name for _, name in named] * (1 if len(named) == len(paths) else 2)
    with progress("comparing", sum(map(input_bytes, paths)), shown=shown) as step:
        options = replace(options, progress=step)
        found = compare(reference, other, options, (names[0], names[1]), pictures=pictures)
        return report_of(found)
