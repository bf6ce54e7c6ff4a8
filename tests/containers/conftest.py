"""Helpers of the container tests: open bytes as a file, find real files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from qassay.containers import open_container
from qassay.core.container import Container

OpenBytes = Callable[..., Container]
FIXTURES = Path(__file__).parents[3] / "shared" / "fixtures"


@pytest.fixture
def open_bytes(tmp_path: Path) -> Iterator[OpenBytes]:
    """Open bytes as a file; `suffix` is its suffix, `name` its whole name."""
    opened: list[Container] = []

    def opener(data: bytes, suffix: str = ".gguf", name: str | None = None) -> Container:
        path = tmp_path / (name or f"model{suffix}")
        path.write_bytes(data)
        opened.append(open_container(path))
        return opened[-1]

    yield opener
    for container in opened:
        container.close()


@pytest.fixture
def fixtures() -> Path:
    """The folder of real files; tests that need it are skipped without it."""
    if not FIXTURES.is_dir():
        pytest.skip(f"no {FIXTURES}")
    return FIXTURES
