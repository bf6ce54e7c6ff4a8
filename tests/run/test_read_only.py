"""A read-only installation with an unwritable home and no cache folder works, and says so once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Return a copy of the package that nobody can write to."""
    home = tmp_path / "site"
    shutil.copytree(
        ROOT / "src" / "qassay", home / "qassay", ignore=shutil.ignore_patterns("__pycache__")
    )
    return home


def run(installed: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the copy as a user who may write nowhere: home is a file, and so is every cache."""
    blocked = installed.parent / "blocked"
    blocked.write_text("")
    variables |= dict.fromkeys(("HOME", "XDG_CACHE_HOME", "IPYTHONDIR"), str(blocked / "no"))
    code = (
        "import os, sys\n"
        # Root may write anywhere; so files are made to refuse, not permissions taken away.
        "real = os.makedirs\n"
        "def refuse(path, *a, **k):\n"
        "    if '__pycache__' in str(path) or 'blocked' in str(path) or 'numba' in str(path):\n"
        "        raise PermissionError(13, 'read-only', str(path))\n"
        "    return real(path, *a, **k)\n"
        "os.makedirs = refuse\n"
        "sys.argv = ['qassay', *sys.argv[1:]]\n"
        "from qassay.cli.main import main\n"
        "main()\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    return subprocess.run(
        [sys.executable, "-B", "-c", code, *words],
        env={**environment, "PYTHONPATH": str(installed), **variables},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("kernels", ["", "fast"])
def test_check_works_where_nothing_can_be_written(installed: Path, kernels: str) -> None:
    path = ROOT / "examples" / "minilm-layer0.gguf"
    done = run(installed, "check", str(path), QASSAY_KERNELS=kernels)
    assert done.returncode == 0, done.stderr
    assert "clean" in done.stdout
    assert done.stderr.count("compiled kernels") == (1 if kernels else 0), done.stderr
    written = [found for found in installed.rglob("*") if found.suffix in (".nbi", ".nbc", ".pyc")]
    assert written == []
