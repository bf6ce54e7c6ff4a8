"""The command line of this run, written so that it can be typed again."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from qassay.core.text import safe

_ABOUT_THE_RUN = {"output_file", "color", "quiet", "verbose", "no_progress", "jobs"}
"""Options that change nothing of what is found."""


def invocation() -> str:
    """Return the command with all that was given, wherever it was given.

    Options that come from the environment or a configuration file are written out, absolute paths
    as reports name them: the text is the same wherever it was run. "" outside of a command.
    """
    context = click.get_current_context(silent=True)
    if context is None or not isinstance(context.command, click.Command):
        return ""
    names = _names(context)
    words = ["qassay", *context.command_path.split()[1:]]
    arguments = []
    for param in context.command.params:
        name = param.name or ""
        source = context.get_parameter_source(name)
        if name in _ABOUT_THE_RUN or name not in context.params:
            continue
        if source in (None, ParameterSource.DEFAULT) and param.param_type_name == "option":
            continue
        if isinstance(param, click.Option):
            words += _option(param, context.params[name], names)
        else:
            arguments += [_word(each, names) for each in _every(context.params[name])]
    return shlex.join([*words, *arguments])


def _names(context: click.Context) -> dict[str, str]:
    """Return how reports name each absolute path among the values."""
    values = [str(each) for value in context.params.values() for each in _every(value)]
    paths = [Path(text) for text in dict.fromkeys(values) if Path(text).is_absolute()]
    if not paths:
        return {}
    from qassay.cli.inputs import distinct  # noqa: PLC0415 - imports NumPy

    return {str(path): name for path, name in distinct(paths)}


def _option(option: click.Option, value: Any, names: dict[str, str]) -> list[str]:
    spelled = max(option.opts, key=len)
    if option.is_flag:
        return [spelled] if value else []
    return [part for each in _every(value) for part in (spelled, _word(each, names))]


def _every(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _word(value: Any, names: dict[str, str]) -> str:
    text = str(value)
    path = Path(text)
    return safe(names.get(str(path), path.name) or "model" if path.is_absolute() else text)
