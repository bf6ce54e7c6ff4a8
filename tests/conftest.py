"""Shared by all tests: where fixtures are, and which kernels run."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"


@pytest.fixture(params=["reference", "fast"])
def kernel_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test once with each set of kernels pinned."""
    name: str = request.param
    monkeypatch.setenv("QASSAY_KERNELS", name)
    return name


@pytest.fixture(scope="session")
def real_files() -> Path:
    """Return the folder of other people's files that are not part of this repository."""
    folder = ROOT.parent / "shared" / "fixtures" / "real"
    if not folder.is_dir():
        pytest.skip("needs the collection of real files, which is not part of this repository")
    return folder
