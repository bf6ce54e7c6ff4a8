"""Each phase of `quantize` has the bar of every other command; see tests/cli/test_startup.py."""

from __future__ import annotations

import io
import sys
import time

import pytest

from qassay.cli import progress
from qassay.cli.commands.quantize import _progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def phases(*, shown: bool = True) -> list[bool]:
    """Return for two phases whether there was something to tell of progress."""
    told = []
    with _progress(shown=shown) as watch:
        for name in ("reading", "writing"):
            step = watch(name, 1000)
            told.append(step is not None)
            if step is not None:
                step(500)
                end = time.monotonic() + 20
                while progress.AFTER == 0 and time.monotonic() < end:
                    if name in sys.stderr.getvalue():
                        break
                    time.sleep(0.01)
    return told


@pytest.mark.parametrize(("after", "seen"), [(0.0, True), (60.0, False)])
def test_every_phase_that_takes_long_has_a_bar(monkeypatch, after, seen):
    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setattr(progress, "AFTER", after)
    assert phases() == [True, True]
    for name in ("reading", "writing"):
        assert (name in sys.stderr.getvalue()) == seen


@pytest.mark.parametrize(("stream", "shown"), [(Terminal, False), (io.StringIO, True)])
def test_who_sees_none(monkeypatch, stream, shown):
    monkeypatch.setattr("sys.stderr", stream())
    monkeypatch.setattr(progress, "AFTER", 0.0)
    assert phases(shown=shown) == [False, False]
    assert sys.stderr.getvalue() == ""
