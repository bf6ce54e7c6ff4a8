"""The habits of the project, checked: sizes, layers, and what goes into the repository."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LONGEST_FILE = 450
LONGEST_FUNCTION = 70


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_functions_stay_short(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} has {length} lines"


def test_binaries_stay_small() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    sizes = {
        name: (ROOT / name).stat().st_size
        for name in listed.decode().split("\0")
        if name and (ROOT / name).is_file() and b"\0" in (ROOT / name).read_bytes()[:8192]
    }
    assert sizes
    assert sum(sizes.values()) <= 10_000_000
    assert max(sizes.values()) <= 2_000_000


def test_examples_are_what_their_script_writes() -> None:
    import sys

    subprocess.run([sys.executable, "tools/make_examples.py", "--check"], cwd=ROOT, check=True)


def test_there_is_one_version() -> None:
    import qassay

    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    assert declared is not None
    assert qassay.__version__ == declared[1]
