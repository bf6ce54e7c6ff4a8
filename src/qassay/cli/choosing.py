"""Which rules a command line asks for, and how it grades them."""

from __future__ import annotations

from collections.abc import Mapping

from qassay.cli.codes import known_codes
from qassay.cli.options import RuleChoice
from qassay.core.finding import Severity
from qassay.rules.registry import codes as rule_codes
from qassay.run.options import CheckOptions


def chosen_rules(choice: RuleChoice, severity: Mapping[str, str]) -> CheckOptions:
    """Return options with the rules that were chosen, and nothing else said.

    Raises:
        UsageError: A rule code names nothing there is.
    """
    codes = list(rule_codes())
    return CheckOptions(
        select=known_codes(choice.select, codes, *choice.select_from),
        ignore=known_codes(choice.ignore, codes, *choice.ignore_from),
        severities={code: Severity.parse(word) for code, word in severity.items()},
    )
