"""Keeping a report from being written over a model: looked at before anything is read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from qassay.cli.paths import ModelPath
from qassay.core.errors import UsageError
from qassay.core.text import safe


def protect(
    output: Path, context: click.Context, *, what: str = "report", option: str = "--output-file"
) -> None:
    """Make sure that `output` is no file that the command is about, and no model at all.

    And that its folder is there: work of hours must not end in a report that goes nowhere.

    Args:
        output: The new file.
        context: Of the command.
        what: What will be written there, in the words of a message.
        option: The option that named it.

    Raises:
        UsageError: It is one.
    """
    if output.is_dir():  # `""`, most often an unset variable, is this folder
        raise UsageError(f"the {what} cannot be written over a folder", path=safe(str(output)),
                         hint=f"name a file with {option}")  # fmt: skip
    refusal = partial(_refusal, output, what, option)
    for named in _named(context):
        path = Path(named)
        if _same(output, path):
            raise refusal("a model that this command is about")
        # An index of shards stands for files beside it.
        folder = path if path.is_dir() else path.parent if path.suffix == ".json" else None
        if folder is not None and _inside(output, folder):
            raise refusal("a file in a folder that this command reads")
    if _holds_a_model(output):
        raise refusal("a model")
    if what == "report" and _holds_arrays(output):
        raise refusal("a file of arrays")
    if not _has_folder(output):
        raise UsageError(
            f"the {what} cannot be written: {os.strerror(errno.ENOENT)}",
            path=safe(str(output)),
            hint=f"name another file with {option}",
        )


def _refusal(output: Path, what: str, option: str, replaced: str) -> UsageError:
    return UsageError(
        f"the {what} would replace {replaced}",
        path=safe(str(output)),
        hint=f"name another file with {option}",
    )


def _has_folder(output: Path) -> bool:
    """Tell whether the folder of `output`, or of what it links to, is there."""
    try:
        return output.exists() or output.resolve().parent.is_dir()
    except (OSError, RuntimeError, ValueError):  # writing will say why
        return True


def _named(context: click.Context) -> Iterator[str]:
    """Yield the paths that the command's arguments name, and its options that name models."""
    for param in context.command.params:
        if (isinstance(param, click.Argument) and isinstance(param.type, click.Path)) or (
            isinstance(param.type, ModelPath)
        ):
            value = context.params.get(param.name or "")
            yield from value if isinstance(value, tuple) else [value] if value else []


def _same(one: Path, other: Path) -> bool:
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return one.samefile(other)  # hard links, and names that differ in case only
    except (OSError, ValueError):
        return False


def _inside(output: Path, folder: Path) -> bool:
    """Tell whether `output` is one of the files of `folder`, or what a link in it leads to."""
    if not output.is_file():
        return False
    try:
        return any(_same(output, entry) for entry in folder.iterdir())
    except OSError:
        return False


def _holds_a_model(path: Path) -> bool:
    """Tell whether there is a file that begins as GGUF or safetensors files do."""
    head = _head(path)
    if head[:4] in (b"GGUF", b"FUGG"):
        return True
    from qassay.containers.safetensors import LARGEST_HEADER  # noqa: PLC0415 - imports NumPy

    return head[8:] == b"{" and 2 <= int.from_bytes(head[:8], "little") <= LARGEST_HEADER


def _holds_arrays(path: Path) -> bool:
    """Tell whether there is an npy or npz: a `.mlir` stands for the one beside it, for example."""
    head = _head(path)
    return head[:4] == b"PK\x03\x04" or head[:6] == b"\x93NUMPY"


def _head(path: Path) -> bytes:
    """Return the first bytes of a file, none where there is no file that can be read."""
    try:
        if not path.is_file():
            return b""
        with path.open("rb") as file:
            return file.read(9)
    except (OSError, ValueError):
        return b""
