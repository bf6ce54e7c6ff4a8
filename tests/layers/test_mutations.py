"""Sound checkpoints of other tools, each changed in one place: what is said of it.

What is expected is in `mutations.py`. Whether the decoded weights changed is checked each time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mutated import CHECKPOINTS, DOWN, Checkpoint, Q, decoded, same
from mutations import FOLDERS, VERDICTS, Absent, Found, Label, Same, Undecidable

from qassay.core.finding import Finding, Severity
from qassay.run.check import CheckResult, check
from qassay.run.compare import compare
from qassay.run.options import CheckOptions

CASES = [(name, folder) for name in VERDICTS for folder in FOLDERS]


@pytest.fixture(scope="module")
def originals() -> dict[str, dict[str, np.ndarray]]:
    return {folder: decoded(CHECKPOINTS / name) for folder, name in FOLDERS.items()}


def serious(result: CheckResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.severity > Severity.INFO]


def names(finding: Finding, layer: str) -> bool:
    """Tell whether a finding names a layer."""
    mine = (finding.tensor or "").startswith(f"{layer}.")
    return mine or layer in finding.data.get("layers", ())


def test_every_mutation_has_a_verdict_for_every_folder() -> None:
    assert {
        name for name, (_, verdicts) in VERDICTS.items() if set(verdicts) != set(FOLDERS)
    } == set()
    assert len(VERDICTS) >= 30


@pytest.mark.parametrize("folder", FOLDERS)
def test_unchanged_folders_are_clean(folder: str, tmp_path: Path, originals: dict) -> None:  # type: ignore[type-arg]
    model = Checkpoint(FOLDERS[folder])
    copy = model.write(tmp_path / "copy")
    result = check(copy, CheckOptions())
    assert serious(result) == []
    assert result.complete
    assert same(decoded(copy), originals[folder])


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        pytest.param(name, folder, id=f"{name}-{folder}")
        for name, folder in CASES
        if not isinstance(VERDICTS[name][1][folder], Absent)
    ],
)
def test_mutation(name: str, folder: str, tmp_path: Path, originals: dict) -> None:  # type: ignore[type-arg]
    mutate, verdicts = VERDICTS[name]
    verdict = verdicts[folder]
    model = Checkpoint(FOLDERS[folder])
    mutate(model)
    changed = model.write(tmp_path / "changed")
    equal = same(decoded(changed), originals[folder])
    assert equal is isinstance(verdict, Label | Same), "whether the weights changed"
    result = check(changed, CheckOptions())
    assert not result.facts.crashed
    found = serious(result)
    shown = [f"{each.code} {each.tensor}: {each.message}" for each in found]
    layer = Q if "partner" in name else DOWN
    if isinstance(verdict, Found | Label):
        naming = {each.code for each in found if names(each, layer)}
        assert naming & set(verdict.codes), shown
        return
    assert found == [], shown
    if isinstance(verdict, Undecidable):
        against = compare(CHECKPOINTS / FOLDERS[folder], changed)
        told = {each.code for each in against.findings if (each.tensor or "").startswith(DOWN)}
        assert told & set(verdict.codes), (told, [each.message for each in against.findings])
        others = [each for each in against.findings if not (each.tensor or "").startswith(DOWN)]
        assert others == []
