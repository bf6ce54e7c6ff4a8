"""The one document: every command fills it, every renderer reads it, its schema is published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qassay.core.errors import QassayError
from qassay.core.finding import Finding, Severity
from qassay.core.version import __version__
from qassay.report.page import Section
from qassay.report.strict import strict
from qassay.report.words import count

if TYPE_CHECKING:
    from qassay.report.tensors import TensorEntry
    from qassay.run.check import CheckResult

SCHEMA_VERSION = "1.0"
"""Version of the document: the first number changes when something is removed or means another
thing, the second when something is added."""

EXIT_CLEAN, EXIT_FINDINGS, EXIT_FAULT, EXIT_INCOMPLETE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Input:
    """One thing the user named.

    Attributes:
        path: As reports name it, never absolute.
        format: `gguf`, `safetensors`, `folder`, or `unknown` when it could not be read.
        bytes: Size of all its files.
        note: What else is worth a word in a text report (`version 3`).
    """

    path: str
    format: str
    bytes: int
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"path": self.path, "format": self.format, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class NotChecked:
    """Something that was not judged: which, of which input, and why."""

    name: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the input was judged.

    Attributes:
        tensors: Tensors that the input lists.
        checked: How many of them were judged.
        skipped: Everything that was not: tensors, files, rules that failed.
        bytes: Tensor bytes that were read.
    """

    tensors: int = 0
    checked: int = 0
    skipped: tuple[NotChecked, ...] = ()
    bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "tensors": self.tensors,
            "checked": self.checked,
            "skipped": [
                {"name": skip.name, "path": skip.path, "reason": skip.reason}
                for skip in self.skipped
            ],
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What a command has to say, before any renderer lays it out.

    Attributes:
        command: The command that made it.
        inputs: What was named on the command line, in that order.
        coverage: How much of it was judged.
        findings: In file order.
        tensors: In file order.
        result: The command's own part of the document.
        sections: What a renderer shows beside findings and coverage; no part of the document.
        judged: Whether the command passes judgement at all; `explain` and its like do not.
        fault: Whether qassay itself failed somewhere (a rule crashed).
    """

    command: str
    inputs: tuple[Input, ...] = ()
    coverage: Coverage = field(default_factory=Coverage)
    findings: tuple[Finding, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[Section, ...] = ()
    judged: bool = True
    fault: bool = False

    @staticmethod
    def of_check(*results: CheckResult) -> Report:
        """Return the report of one check, or of several inputs checked in one run."""
        from qassay.report.of_check import report_of  # noqa: PLC0415 - it imports this module

        return report_of(results)

    def __repr__(self) -> str:
        if self.verdict is None and not self.coverage.tensors:
            return f"<Report {self.command}>"
        parts = [self.verdict] if self.verdict is not None else []
        tensors = count(self.coverage.tensors, "tensor")
        parts.append(f"{self.coverage.checked:,} of {tensors}" if self.judged else tensors)
        parts.append(count(len(self.findings), "finding"))
        return f"<Report {self.command}: {', '.join(parts)}>"

    @property
    def complete(self) -> bool:
        """Whether nothing that was to be judged was left out."""
        return not self.coverage.skipped and not self.fault

    @property
    def verdict(self) -> str | None:
        """`findings`, `incomplete` or `clean`; None for a command that only tells things."""
        if any(finding.severity >= Severity.WARNING for finding in self.findings):
            return "findings"
        if not self.complete:
            return "incomplete"
        return "clean" if self.judged else None

    def exit_code(self, fail_on: str = "error", *, allow_incomplete: bool = False) -> int:
        """Return the process's exit code.

        Args:
            fail_on: The least severity that counts as failure: `error`, `warning`, or `never`.
            allow_incomplete: Whether an input that was not fully checked may pass.

        Returns:
            2 when qassay itself failed, else 1 for findings, else 3 when not fully checked, else 0.
        """
        if self.fault:
            return EXIT_FAULT
        if fail_on != "never":
            least = Severity.parse(fail_on)
            if any(finding.severity >= least for finding in self.findings):
                return EXIT_FINDINGS
        return EXIT_CLEAN if self.complete or allow_incomplete else EXIT_INCOMPLETE

    def to_dict(self) -> dict[str, Any]:
        """Return the document: strict JSON, the same for the same input wherever it runs."""
        document: dict[str, Any] = strict(
            {
                "schema_version": SCHEMA_VERSION,
                "tool": {"name": "qassay", "version": __version__},
                "command": self.command,
                "inputs": [given.to_dict() for given in self.inputs],
                "verdict": self.verdict,
                "coverage": self.coverage.to_dict(),
                "findings": [finding.to_dict() for finding in self.findings],
                "tensors": [tensor.to_dict() for tensor in self.tensors],
                "result": self.result,
            }
        )
        return document


def unreadable(command: str, path: str, error: QassayError) -> Report:
    """Return the report of a command whose input could not be read at all."""
    return Report(
        command,
        inputs=(Input(path, "unknown", 0),),
        coverage=Coverage(skipped=(NotChecked(path, path, error.reason),)),
    )
