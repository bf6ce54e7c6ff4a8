"""Q902."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.rules.base import ModelFacts, ModelRule


class RuleCrashed(ModelRule, code="Q902", name="rule-crashed"):
    """A rule of qassay itself failed, so what it looks for is not known.

    ## What it does
    Reports every rule that raised an exception. The other rules ran; the result is never "clean"
    and the exit code is 2.

    ## Why it is bad
    The defect that the rule looks for may be in the file.

    ## How to fix it
    Update qassay. If it still happens, report it with the header of the file.

    ## Example
    `rule Q204 scale-outlier failed: IndexError: index 0 is out of bounds`
    """

    severity = Severity.INFO
    help = "update qassay; if it still happens, report it with the file's header"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each rule that raised."""
        for rule, error in model.crashed:
            yield self.finding(
                f"rule {rule.code} {rule.name} failed: {type(error).__name__}: {error}",
                path=model.container.path,
                field=rule.code,
                data={"rule": rule.code, "error": type(error).__name__},
            )
