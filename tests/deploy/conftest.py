"""Running commands for the JSON that they print."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from qassay.cli.main import cli

sys.path.insert(0, str(Path(__file__).parent))
SCHEMA = json.loads((files("qassay.report") / "schema" / "report-v1.json").read_text("utf-8"))


@pytest.fixture(autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("QASSAY_") or name == "NO_COLOR":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))


def invoke(*args: object) -> Result:
    """Run the command line; what it did not mean to raise is raised here."""
    result = CliRunner().invoke(cli, [str(arg) for arg in args], prog_name="qassay")
    unexpected = result.exception
    assert unexpected is None or isinstance(unexpected, SystemExit), result.exc_info
    return result


@pytest.fixture
def run() -> Callable[..., Result]:
    return invoke


@pytest.fixture
def document() -> Callable[..., tuple[int, dict[str, Any]]]:
    """Return exit code and report, the report checked against the published schema."""

    def call(*args: object) -> tuple[int, dict[str, Any]]:
        result = invoke(*args, "-f", "json")
        assert result.stdout, result.stderr
        made = json.loads(result.stdout)
        jsonschema.validate(made, SCHEMA, cls=jsonschema.Draft202012Validator)
        return result.exit_code, made

    return call
