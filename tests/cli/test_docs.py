"""The generated pages are those that the code would generate now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "generate_docs.py"


def test_pages_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(TOOL), "--check"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**__import__("os").environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_that_differs_or_whose_rule_is_gone_fails(tmp_path, monkeypatch, capsys):
    import importlib.util

    spec = importlib.util.spec_from_file_location("generate_docs", TOOL)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.setattr(tool, "DOCS", tmp_path)
    made = tool.pages()
    assert tool.check(made) == 1
    tool.write(made)
    assert tool.check(made) == 0
    page = tmp_path / "rules" / "Q201.md"
    page.write_text(page.read_text().replace("NaN", "nan"))
    assert tool.check(made) == 1
    assert "generate_docs.py" in capsys.readouterr().err
    tool.write(made)
    (tmp_path / "rules" / "Q999.md").write_text("gone")
    assert tool.check(made) == 1
