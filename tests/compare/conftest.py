"""Make the helpers beside these tests importable, and run the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from qassay.cli.main import cli

sys.path.insert(0, str(Path(__file__).parent))
SCHEMA = json.loads((files("qassay.report") / "schema" / "report-v1.json").read_text("utf-8"))
VALID = jsonschema.Draft202012Validator(SCHEMA)


@pytest.fixture
def compare() -> Callable[..., tuple[int, dict[str, Any]]]:
    """Run `qassay compare` and return exit code and JSON document."""

    def run(a: Path, b: Path, *more: str) -> tuple[int, dict[str, Any]]:
        result = CliRunner().invoke(cli, ["compare", str(a), str(b), "-f", "json", *more])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        report = json.loads(result.stdout)
        VALID.validate(report)
        return result.exit_code, report

    return run
