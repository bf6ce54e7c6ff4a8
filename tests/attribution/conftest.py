"""Outputs of real toolchains, and simulated devices."""

from __future__ import annotations

from pathlib import Path

import pytest

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "tpu"


@pytest.fixture(scope="session")
def tpu() -> Path:
    return FIXTURES
