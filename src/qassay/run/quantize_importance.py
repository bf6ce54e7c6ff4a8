"""Importance in `qassay quantize`: who gets which, what is refused, what the new file says."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from qassay.containers.gguf_out import Pair
from qassay.core.container import Container
from qassay.core.errors import UsageError
from qassay.core.finding import Finding, Severity
from qassay.core.text import safe
from qassay.run.importance import ImportanceFile, needs_importance
from qassay.run.options import CheckOptions
from qassay.run.quantize_plan import Planned

_KEYS = "quantize.imatrix."


def importance_for(
    planned: Sequence[Planned], model: Container, path: str | os.PathLike[str]
) -> ImportanceFile:
    """Open an importance file for a plan.

    Raises:
        UsageError: It cannot be read, is none, or nothing in the plan uses importance.
    """
    using = {one.stored.name for one in planned if one.takes_importance}
    if not using:
        raise UsageError(
            "no quantizer of this run uses importance",
            path=safe(os.fspath(path)),
            hint="leave out --imatrix, or quantize to a type that uses it, such as Q4_K",
        )
    return ImportanceFile(
        path, model, lambda weight: weight.name in using and needs_importance(weight)
    )


def refusals(
    file: ImportanceFile, planned: Sequence[Planned], options: CheckOptions
) -> list[Finding]:
    """Return what Q507 says; values that a quantizer of the plan must not take are errors."""
    using = {one.stored.name for one in planned if one.takes_importance}
    found = []
    for finding in file.findings():
        graded = options.severities.get(finding.code)
        entry = file.facts.entries.get(finding.tensor or "")
        harmful = entry is not None and not entry.usable and entry.name in using
        if harmful and finding.severity >= Severity.WARNING:
            graded = Severity.ERROR
        found.append(finding if graded is None else finding.with_severity(graded))
    return found


def given_to(planned: Sequence[Planned], file: ImportanceFile) -> list[Planned]:
    """Return the plan with the importance of every weight that uses it and has a usable entry."""
    return [
        replace(one, importance=file.values(one.stored)) if one.takes_importance else one
        for one in planned
    ]


def with_importance_pairs(pairs: Sequence[Pair], file: ImportanceFile) -> list[Pair]:
    """Return the metadata with what llama-quantize writes about importance."""
    kept = [pair for pair in pairs if not pair.key.startswith(_KEYS)]
    kept.append(Pair.of_text(f"{_KEYS}file", file.path))
    metadata = file.container.metadata
    datasets = metadata.get("imatrix.datasets")
    if datasets is not None and not isinstance(datasets, str) and len(datasets):
        kept.append(Pair.of_text(f"{_KEYS}dataset", str(next(iter(datasets)))))
    kept.append(Pair.of_uint32(f"{_KEYS}entries_count", len(file.facts.entries)))
    chunks = metadata.get("imatrix.chunk_count")
    if isinstance(chunks, int) and 0 <= chunks < 1 << 32:
        kept.append(Pair.of_uint32(f"{_KEYS}chunks_count", chunks))
    return kept
