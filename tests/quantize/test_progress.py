"""The bar: for a terminal and a large input, on stderr."""

from __future__ import annotations

import io
import sys

import pytest

from qassay.cli import checking
from qassay.cli.commands.quantize import _progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "shown", "least", "seen"),
    [
        (Terminal, True, 10, True),
        (Terminal, True, 1 << 40, False),
        (Terminal, False, 10, False),
        (io.StringIO, True, 10, False),
    ],
)
def test_who_sees_it(monkeypatch, stream, shown, least, seen):
    monkeypatch.setattr("sys.stderr", stream())
    monkeypatch.setattr(checking, "PROGRESS_FROM", least)
    with _progress(shown=shown) as watch:
        steps = [watch(name, 1000) for name in ("reading", "writing")] if watch else [None]
        assert all((step is not None) == seen for step in steps)
        for step in steps:
            if step is not None:
                step(500)
    assert ("writing" in sys.stderr.getvalue()) == seen
