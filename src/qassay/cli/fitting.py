"""Judging shapes for the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qassay.cli.choosing import chosen_rules
from qassay.cli.inputs import distinct
from qassay.cli.options import RuleChoice
from qassay.report.document import Report
from qassay.report.of_fit import report_of
from qassay.run.fit import fit_model
from qassay.run.options import FitOptions


def run(
    paths: Sequence[Path], wanted: FitOptions, choice: RuleChoice, severity: Mapping[str, str]
) -> Report:
    """Judge every path and return one report.

    Raises:
        UsageError: A rule code, runtime, chip, version or mode names nothing there is.
    """
    options = chosen_rules(choice, severity)
    return report_of(fit_model(path, wanted, options, name) for path, name in distinct(paths))
