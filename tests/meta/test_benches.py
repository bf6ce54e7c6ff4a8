"""The benchmarks run; on a few rows they judge nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("libgguf", reason="the benchmarks compare with it")
BENCH = Path(__file__).parents[2] / "bench"


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("preflight.py", ["F32 file, audit", "BF16 file, Q8_0, 2 threads", "F16 file, Q4_K, 1"]),
        ("quantize.py", ["Q8_0: libgguf", "Q4_K with importance"]),
        ("compare.py", ["qassay compare ", "gguf-py and NumPy ", "in pieces", "times as fast"]),
        ("diagnose.py", ["sound ", "diagnose 64 x 256, seconds"]),
        ("layers.py", ["gptq: (check", "nvfp4: the same with --stats full"]),
    ],
)
def test_on_a_few_rows(script: str, told: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, BENCH / script, "--smoke"], check=True, capture_output=True, text=True
    )
    for words in told:
        assert words in done.stdout
    for word in ("MISS", "ok  "):
        assert word not in done.stdout
