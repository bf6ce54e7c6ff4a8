"""What the benchmark prints when its files are not of full size."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("libgguf", reason="it makes the benchmark's files")
BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def check(monkeypatch):
    """The script as a module."""
    monkeypatch.syspath_prepend(BENCH)
    spec = importlib.util.spec_from_file_location("bench_check", BENCH / "check.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("scale", "large", "middle"),
    [(1, "4 GB", "1 GB"), (2, "2 GB", "512 MB"), (16, "256 MB", "64 MB"), (3, "1365 MB", "341 MB")],
)
def test_sizes_are_those_of_the_files(check, scale, large, middle):
    bench = check.Bench(scale)
    assert (bench.size(4 * check.GB), bench.size(check.GB)) == (large, middle)


def test_nothing_is_judged_below_full_scale(check, capsys):
    assert check.Bench(1).ratio("speed", 3.0, 2.5) is False
    assert check.Bench(1).close([True, False]) == 1
    judged = capsys.readouterr().out
    assert "MISS speed" in judged
    assert "1 of 2 bars met" in judged
    small = check.Bench(64)
    met = [small.ratio("speed", 3.0, 2.5), small.ratio("speed", 0.1, 30, at_least=True)]
    assert small.close(met) == 0
    printed = capsys.readouterr().out
    assert "3.00" in printed
    for word in ("MISS", "ok", "bars met", "2.5", "30"):
        assert word not in printed


def test_every_command_is_named_by_its_size(check, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(check, "interleaved", lambda _, jobs: {name: [1.0] for name in jobs})
    check.processes(check.Bench(64), tmp_path, tmp_path)
    monkeypatch.setattr(check, "wall", lambda *_: 1.0)
    check.cold(check.Bench(64), tmp_path)
    printed = capsys.readouterr().out
    assert "check 64 MB, --stats full" in printed
    assert "first run on 64 MB with a cold kernel cache" in printed
    assert "GB" not in printed
