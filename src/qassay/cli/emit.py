"""Writing a report where it was asked for."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from qassay.cli.invocation import invocation
from qassay.cli.main import silence
from qassay.cli.options import Output
from qassay.core.errors import UsageError
from qassay.report.document import Report
from qassay.report.look import Look
from qassay.report.registry import renderer

_PIECES = 4096
"""Pieces of text joined before a write."""


def emit(report: Report, output: Output) -> None:
    """Render `report` and write it to stdout or to the file that `output` names.

    Raises:
        UsageError: It cannot be written there.
    """
    render = renderer(output.format)
    if output.file is not None:
        look = Look(output.colored(), None, output.verbosity, invocation())
        _write_file(output.file, render(report, look))
        return
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else None
    write(render(report, Look(output.colored(), width, output.verbosity, invocation())))


def write_text(text: str, output: Output) -> None:
    """Write text that is no report, such as the schema, where the report would go.

    Raises:
        UsageError: The file cannot be written.
    """
    if output.file is not None:
        _write_file(output.file, [text])
    else:
        write([text])


def write(pieces: Iterable[str]) -> None:
    """Write text to stdout; a reader that has had enough (`| head`) is no fault.

    Raises:
        UsageError: There is no stdout, or no room.
    """
    stream = sys.stdout
    if stream is None:
        raise _refusal("stdout is closed")
    try:
        batch: list[str] = []
        for piece in pieces:
            batch.append(piece)
            if len(batch) == _PIECES:
                stream.write(_encodable("".join(batch), stream.encoding))
                batch.clear()
        stream.write(_encodable("".join(batch), stream.encoding))
        stream.flush()
    except BrokenPipeError:
        silence(stream)
    except OSError as error:
        silence(stream)
        raise _refusal(error.strerror or str(error)) from error


def _refusal(reason: str, path: str | None = None) -> UsageError:
    return UsageError(
        f"the report cannot be written: {reason}",
        path=path,
        hint="name another file with --output-file" if path else "name a file with --output-file",
    )


def _encodable(text: str, encoding: str | None) -> str:
    """Return `text` with characters that the terminal's encoding lacks as escapes."""
    encoding = encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _write_file(path: Path, pieces: Iterable[str]) -> None:
    """Write text to `path` at once or not at all: another process never sees half a report."""
    temporary: str | None = None
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a pipe: cannot be replaced
            with path.open(
                "w", encoding="utf-8", errors="backslashreplace", newline="\n"
            ) as stream:
                stream.writelines(pieces)
            return
        folder = path.resolve().parent
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{path.name}.", suffix=".part")
        with os.fdopen(
            handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n"
        ) as stream:
            stream.writelines(pieces)
        _set_mode(temporary, path)
        Path(temporary).replace(path.resolve())
        temporary = None
    except OSError as error:
        raise _refusal(error.strerror or str(error), str(path)) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()


def _set_mode(temporary: str, path: Path) -> None:
    """Give the new file the mode of the old one, or what the umask leaves a new file."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError:
        umask = os.umask(0)
        os.umask(umask)
        mode = 0o666 & ~umask
    Path(temporary).chmod(mode)
