"""What these commands import: nothing heavy for help, and no compiler for small work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from by_hand import CHECKPOINTS, TPU

import qassay

ROOT = str(Path(qassay.__file__).parent.parent)
SCRIPT = (
    "import sys\n"
    "from qassay.cli.main import cli\n"
    "try:\n"
    "    cli.main(sys.argv[1:], prog_name='qassay')\n"
    "finally:\n"
    "    print('\\n'.join(sys.modules), file=sys.stderr)\n"
)


def imported(*args: object) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
        timeout=120,
    )
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize("command", ["pad", "layout", "explain-log", "budget"])
def test_help_imports_nothing_heavy(command):
    assert not imported(command, "--help") & {"numpy", "numba", "rich", "llvmlite"}


def test_no_compiler_for_small_work(tmp_path):
    folder = TPU / "bm1684x-1.28.1"
    lines = [
        ("explain-log", folder / "w4_n96_k256_g64_error.log"),
        ("pad", CHECKPOINTS / "llmcompressor-w4a16", tmp_path / "b", "--multiple", 96),
        ("layout", folder / "w4_n128_k256_g64_tpu_lowered_bm1684x_w4bf16_weight.npz",
         tmp_path / "o.npz", "--on", "sophgo:bm1684x", "--mlir",
         folder / "w4_n128_k256_g64_bm1684x_w4bf16_pre.mlir"),
        ("budget", "--params", "1B", "--to", "w4"),
        ("budget", CHECKPOINTS / "llmcompressor-w4a16", "--to", "w4", "--on", "sophgo:bm1688"),
    ]  # fmt: skip
    for line in lines:
        assert not imported(*line) & {"numba", "llvmlite"}, line[0]
