"""`[tool.qassay]` in pyproject.toml, or a TOML file of its own: strictly validated."""

from __future__ import annotations

import difflib
import importlib
import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from qassay.core.errors import UsageError
from qassay.core.limits import MOST_JOBS
from qassay.core.text import safe
from qassay.report.registry import renderers

_LARGEST = 1 << 20

CONFIG_META = "qassay.severity"
"""Where the click context keeps the `severity` table."""
CONFIG_PATH = "qassay.config"
"""Where it keeps the file that the configuration was read from, as messages name it."""


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration.

    Attributes:
        option: The option whose default it gives, by click's name; "" for `severity`.
        allowed: What it may hold, in words.
        fits: Tells whether a value does.
    """

    option: str
    allowed: str
    fits: Callable[[Any], bool]


def _words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _severities(value: Any) -> bool:
    return isinstance(value, dict) and all(
        word in ("error", "warning", "info") for word in value.values()
    )


def _one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in words


KEYS: Mapping[str, Key] = {
    "select": Key("select", 'a list of rules as --select takes them, such as ["Q2"]', _words),
    "ignore": Key("ignore", 'a list of rules, such as ["Q203", "dead-rows"]', _words),
    "fail-on": Key(
        "fail_on", '"error", "warning" or "never"', _one_of("error", "warning", "never")
    ),
    "severity": Key(
        "", 'a table of "error", "warning" or "info" by rule, { Q203 = "warning" }', _severities
    ),
    "jobs": Key(
        "jobs",
        f"a whole number from 1 to {MOST_JOBS}",
        lambda value: type(value) is int and 1 <= value <= MOST_JOBS,
    ),
    "stats": Key("stats", '"default" or "full"', _one_of("default", "full")),
    "allow-incomplete": Key(
        "allow_incomplete", "true or false", lambda value: isinstance(value, bool)
    ),
    "output-format": Key(
        "output_format",
        " or ".join(f'"{name}"' for name in renderers()),
        _one_of(*renderers()),
    ),
}


def load_into(ctx: click.Context, given: Path | None) -> None:
    """Make the configuration the defaults of the command that `ctx` is about.

    Raises:
        UsageError: The file cannot be read, or holds a key or a value that is not allowed.
    """
    path, table = _read_given(given) if given is not None else _find(Path.cwd())
    if path is None:
        return
    values = validated(table, path)
    ctx.meta[CONFIG_META] = values.pop("severity", {})
    ctx.meta[CONFIG_PATH] = _shown(path)
    ctx.default_map = {
        **(ctx.default_map or {}),
        **{KEYS[name].option: value for name, value in values.items()},
    }


def validated(table: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return a copy of the configuration `table` if every key and value in it is allowed.

    Raises:
        UsageError: One is not; the message names the file, the key and what is allowed.
    """
    for name, value in table.items():
        key = KEYS.get(name)
        if key is None:
            near = difflib.get_close_matches(name, KEYS, n=1)
            raise UsageError(
                f"there is no setting called {safe(name)}",
                path=_shown(path),
                expected=", ".join(KEYS),
                hint=f"did you mean {near[0]}?" if near else "remove it",
            )
        if not key.fits(value):
            raise UsageError(
                f"the setting {name} has a value that it cannot have",
                path=_shown(path),
                expected=key.allowed,
                found=safe(repr(value)),
            )
    return dict(table)


def _find(start: Path) -> tuple[Path | None, Mapping[str, Any]]:
    """Return the nearest pyproject.toml, from `start` upward, that has a table of ours."""
    for folder in (start, *start.parents):
        path = folder / "pyproject.toml"
        try:
            text = _text(path)
        except (OSError, ValueError):
            continue
        if "qassay" not in text:  # most are not about us: do not even parse them
            continue
        table = _tool_table(_parse(text, path), path)
        if table is not None:
            return path, table
    return None, {}


def _read_given(path: Path) -> tuple[Path, Mapping[str, Any]]:
    try:
        text = _text(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not UTF-8 text"
        raise UsageError(
            f"the configuration cannot be read: {reason}",
            path=_shown(path),
            hint="name a TOML file with --config",
        ) from error
    parsed = _parse(text, path)
    table = _tool_table(parsed, path)
    if path.name == "pyproject.toml":
        return path, table or {}
    if table is None:
        return path, parsed
    elsewhere = [name for name in parsed if name != "tool"]
    if elsewhere:
        raise UsageError(
            f"{safe(elsewhere[0])} stands outside the table [tool.qassay]",
            path=_shown(path),
            expected="all settings in [tool.qassay], or all at the top of the file",
            hint="move it into the table, or remove it",
        )
    return path, table


def _text(path: Path) -> str:
    """Return the text of a file, without waiting for a FIFO or reading a device without end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with open(handle, "rb") as file:  # noqa: PTH123 - of a descriptor
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST} bytes")
    return data.decode("utf-8")


def _tool_table(parsed: Mapping[str, Any], path: Path) -> Mapping[str, Any] | None:
    tool = parsed.get("tool")
    table = tool.get("qassay") if isinstance(tool, dict) else None
    if table is None or isinstance(table, dict):
        return table
    raise UsageError("tool.qassay is no table", path=_shown(path), expected="a table [tool.qassay]")


def _parse(text: str, path: Path) -> dict[str, Any]:
    # `tomllib` joined the standard library in Python 3.11; `tomli` is the same module before.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        parsed: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise UsageError(
            f"the configuration is no TOML: {error}", path=_shown(path), hint="correct the file"
        ) from error
    return parsed


def _shown(path: Path) -> str:
    return safe(str(path))
