"""Importance files in a run: looked at when one is checked, or goes with a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from qassay.containers.imatrix import entries_of, is_importance
from qassay.containers.imatrix_facts import KEY, ImportanceFacts, experts_of, look
from qassay.containers.opening import display_name
from qassay.core.container import Container, StoredTensor
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.core.text import safe
from qassay.encodings.base import Floats
from qassay.encodings.registry import open_with_encodings
from qassay.rules.base import ModelFacts
from qassay.rules.q507_importance_unusable import ImportanceUnusable

_OF_WEIGHTS = (Offence.EXCEEDS_F16, Offence.LOST_BELOW_F16, Offence.DEAD_ROW)
"""What would be odd in weights, and says nothing about sums of squares."""


def with_importance(facts: ModelFacts) -> ModelFacts:
    """Return what was measured of an input; of an importance file, what it is worth as well."""
    container = facts.container
    if not is_importance(container) or KEY in container.extra:
        return facts
    container.extra[KEY] = look(container)
    for tensor in facts.tensors:
        for key in [key for key in tensor.stats.tallies if key[0] in _OF_WEIGHTS]:
            del tensor.stats.tallies[key]
    return facts


class ImportanceFile:
    """An open importance file that goes with a model. Close it when done.

    Args:
        path: Where it is.
        model: The model that it shall be for.

    Raises:
        UsageError: It cannot be read, or is no importance file.
    """

    def __init__(self, path: str | os.PathLike[str], model: Container) -> None:
        try:
            self.container = open_with_encodings(path)
        except InputError as error:
            raise UsageError(
                f"the importance file cannot be used: {error.message}",
                path=error.path,
                expected=error.expected,
                found=error.found,
                hint=error.hint,
            ) from error
        if not is_importance(self.container):
            shown = self.container.path
            self.container.close()
            raise UsageError(
                "this is no importance file",
                path=safe(shown),
                expected="a GGUF file with general.type imatrix, or a .dat file of llama-imatrix",
                found=self.container.format,
            )
        self.facts: ImportanceFacts = look(self.container, model)
        self._entries = entries_of(self.container)

    @property
    def path(self) -> str:
        """As reports name it."""
        return self.container.path

    def findings(self, grade: Callable[[Finding], Finding] | None = None) -> list[Finding]:
        """Return what Q507 says, structural damage included.

        Args:
            grade: What to make of each finding.
        """
        holder = Container(self.path, "importance", extra={KEY: self.facts})
        found = list(ImportanceUnusable().check(ModelFacts(holder)))
        if self.container.defects:
            first = self.container.defects[0]
            found.append(
                ImportanceUnusable().finding(
                    f"the importance file is damaged: {first.message}",
                    path=self.path,
                    count=len(self.container.defects),
                    help="make it again, or run `qassay check` on it",
                )
            )
        return [grade(finding) for finding in found] if grade is not None else found

    def refusals(self, finding: Finding) -> Finding:
        """Return a finding graded for a quantizer: values that it must not take are errors."""
        facts = self.facts.entries.get(finding.tensor or "")
        if facts is None or facts.usable or finding.severity < Severity.WARNING:
            return finding
        return replace(finding, severity=Severity.ERROR)

    def values(self, weight: StoredTensor) -> Floats | None:
        """Return the importance of a weight, `[experts, K]`; None without a usable entry."""
        facts, entry = self.facts.entries.get(weight.name), self._entries.get(weight.name)
        if facts is None or entry is None or not facts.usable:
            return None
        experts = experts_of(weight)
        values = entry.values(experts)
        return values if values.shape == (experts, weight.shape[-1]) else None

    def close(self) -> None:
        """Let go of the file."""
        self.container.close()


def shown(path: str | os.PathLike[str]) -> str:
    """Return how reports name an importance file."""
    from pathlib import Path  # noqa: PLC0415

    return display_name(Path(path))
