"""Importance files of both formats, and models that they are for."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from qassay.cli.main import cli

SCHEMA = json.loads((files("qassay.report") / "schema" / "report-v1.json").read_text("utf-8"))


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("QASSAY_") or name == "NO_COLOR":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Callable[..., Any]:
    """Run the command line and return (exit code, document)."""

    def call(*args: object) -> tuple[int, dict[str, Any]]:
        words = [*map(str, args), "-f", "json"]
        result = CliRunner().invoke(cli, words, prog_name="qassay")
        unexpected = result.exception
        assert unexpected is None or isinstance(unexpected, SystemExit), result.exc_info
        if not result.stdout:
            return result.exit_code, {"stderr": result.stderr}
        made: dict[str, Any] = json.loads(result.stdout)
        jsonschema.validate(made, SCHEMA)
        return result.exit_code, made

    return call
