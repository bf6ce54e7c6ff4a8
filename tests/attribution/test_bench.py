"""`bench/attribution.py` judges what it counts, and fails if a bar is missed."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCH))
    try:
        import attribution
    finally:
        sys.path.remove(str(BENCH))
    return attribution


GOOD = {
    "single probe": Counter({"exact": 99, "set": 1, "clean is right": 7}),
    "single random1": Counter({"exact": 95, "not explained": 5}),
    "nameless random4": Counter({"not explained": 8}),
    "nameless random1": Counter({"not explained": 7, "part": 1}),
    "pairs": Counter({"exact": 95, "likely": 5}),
    "clean known": Counter({"exact": 1000}),
    "unknown probe": Counter({"likely": 88, "exact": 2, "rounding": 10}),
}
BAD = {
    "single probe": Counter({"exact": 98, "set": 2, "clean is right": 900}),
    "single random1": Counter({"exact": 999, "wrong: proven": 1}),
    "nameless random4": Counter({"not explained": 7, "part": 1}),
    "nameless random1": Counter({"not explained": 7, "wrong: set": 1}),
    "pairs": Counter({"exact": 94, "likely": 6}),
    "clean known": Counter({"exact": 999, "accused": 1}),
    "unknown probe": Counter({"likely": 89, "large set": 11}),
}


def test_bars_are_judged(bench, capsys):
    assert bench.judged({part: bench.Tally(counts) for part, counts in GOOD.items()})
    assert "MISS" not in capsys.readouterr().out
    for part, counts in BAD.items():
        assert not bench.judged({part: bench.Tally(counts)}), part
        assert "MISS" in capsys.readouterr().out


def test_all_shapes_and_kinds_are_measured(bench):
    from types import SimpleNamespace

    shapes = list(bench.shapes())
    assert {shape.n for shape in shapes} == {64, 96, 128, 192, 2048}
    assert {shape.k for shape in shapes} == {256, 2048}
    assert {shape.group for shape in shapes} == {32, 64, 128}
    assert {shape.symmetric for shape in shapes} == {shape.bias for shape in shapes}
    asked = SimpleNamespace(shapes=99, first=0, kinds=",".join(bench.SINGLE), every=1, pairs=15,
                            clean=25, unknown=99, unknown_clean=5)  # fmt: skip
    jobs = list(bench.jobs_of(asked))
    assert sum(job.count for job in jobs if job.part == "pairs") == 15
    assert sum(job.count for job in jobs if job.part == "clean known") == 25
    for kind in bench.SINGLE:
        assert [job.shape for job in jobs if job.part == f"single {kind}"] == shapes


def test_a_small_part_in_two_processes():
    done = subprocess.run(
        [sys.executable, BENCH / "attribution.py", "--jobs", "2", "--shapes", "1", "--kinds",
         "random4", "--every", "40", "--pairs", "1", "--clean", "2", "--unknown", "0",
         "--unknown-clean", "0"],
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("single random4: % exact", "nameless random4: named or clean", "pairs: % exact",
                 "clean known: accused"):  # fmt: skip
        assert f"ok   {part}" in done.stdout
