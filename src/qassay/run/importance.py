"""Importance files in a run: looked at when one is checked, or goes with a model."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from qassay.containers.imatrix import entries_of, is_importance
from qassay.containers.imatrix_facts import KEY, ImportanceFacts, experts_of, look
from qassay.core.container import Container, StoredTensor
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Finding
from qassay.core.stats import Offence
from qassay.core.text import safe
from qassay.encodings.base import Floats
from qassay.encodings.registry import open_with_encodings
from qassay.rules.base import ModelFacts
from qassay.rules.q507_importance_unusable import ImportanceUnusable
from qassay.run.options import CheckOptions
from qassay.runtimes.targets_recipes import keeps_float, role_of

_KINDS = "a GGUF file with general.type imatrix, or a .dat file of llama-imatrix"

_OF_WEIGHTS = (Offence.EXCEEDS_F16, Offence.LOST_BELOW_F16, Offence.DEAD_ROW)
"""What would be odd in weights, and says nothing about sums of squares."""


def with_importance(facts: ModelFacts, options: CheckOptions) -> ModelFacts:
    """Return what was measured of an input; of an importance file, what it is worth as well.

    Raises:
        UsageError: `options` name an importance file for the model, and it cannot be used.
    """
    container = facts.container
    if not is_importance(container):
        if options.importance is not None:
            file = ImportanceFile(options.importance, container)
            container.extra[KEY] = file.facts
            file.close()
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
        needs: Tells whether a weight of the model is to have importance; by default, whether
            llama-quantize may use it there.

    Raises:
        UsageError: It cannot be read, or is no importance file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: Container,
        needs: Callable[[StoredTensor], bool] | None = None,
    ) -> None:
        try:
            self.container = open_with_encodings(path)
        except InputError as error:
            other = Path(path).is_file()  # of some other kind; what a model is, is beside the point
            raise UsageError(
                "this is no importance file"
                if other
                else f"the importance file cannot be used: {error.message}",
                path=error.path,
                expected=_KINDS if other else error.expected,
                found=error.found,
                hint=None if other else error.hint,
            ) from error
        if not is_importance(self.container):
            shown = self.container.path
            self.container.close()
            raise UsageError(
                "this is no importance file",
                path=safe(shown),
                expected=_KINDS,
                found=self.container.format,
            )
        self.facts: ImportanceFacts = look(self.container, model, needs or needs_importance)
        if self.container.defects:
            self.facts.damage = self.container.defects[0].message
        self._entries = entries_of(self.container)

    @property
    def path(self) -> str:
        """As reports name it."""
        return self.container.path

    def findings(self) -> list[Finding]:
        """Return what Q507 says."""
        holder = Container(self.path, "importance", extra={KEY: self.facts})
        return list(ImportanceUnusable().check(ModelFacts(holder)))

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


def needs_importance(weight: StoredTensor) -> bool:
    """Tell whether llama-quantize would use importance; none is collected for embeddings."""
    if role_of(weight.name) in ("embedding", "output"):
        return False
    return not keeps_float(weight.name, weight.shape)
