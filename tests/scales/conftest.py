"""Ways to run `qassay scales`, and what the published tables print."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from qassay.cli.main import cli

SCHEMA = json.loads((files("qassay.report") / "schema" / "report-v1.json").read_text("utf-8"))


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("QASSAY_") or name == "NO_COLOR":
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run() -> Callable[..., Result]:
    def call(*args: object, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["scales", *map(str, args)], prog_name="qassay")
        unexpected = result.exception
        assert unexpected is None or isinstance(unexpected, SystemExit), result.exc_info
        assert result.exit_code == code, result.output
        return result

    return call


@pytest.fixture
def document(run: Callable[..., Result]) -> Callable[..., dict[str, Any]]:
    def call(*args: object, code: int = 0) -> dict[str, Any]:
        made: dict[str, Any] = json.loads(run(*args, "-f", "json", code=code).stdout)
        jsonschema.validate(made, SCHEMA)
        return made

    return call
