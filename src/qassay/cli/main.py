"""The `qassay` command: finds its subcommands, and turns every ending into an exit code.

0 clean and complete, 1 findings, 2 usage, configuration or internal fault, 3 not (fully) checked,
130 interrupted.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import errno
import gc
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from qassay.core.errors import QassayError
from qassay.core.text import safe
from qassay.core.version import __version__
from qassay.report.words import plain

EXIT_FAULT = 2
EXIT_INTERRUPTED = 130
DEBUG = "QASSAY_DEBUG"
YOUNG = 10_000
"""Objects made between two looks for garbage: importing makes many, and they all stay."""


class Commands(click.Group):
    """A group whose commands are the files of `qassay.cli.commands`, imported when asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands; imports none of them."""
        folder = str(Path(__file__).parent / "commands")
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules([folder]))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"qassay.cli.commands.{cmd_name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that `args` begin with; a wrong name gets a suggestion."""
        name = args[0]
        known = self.list_commands(ctx)
        if name not in known and not name.startswith("-"):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(known)}"
            if Path(name).exists():
                hint = "to check a model: qassay check MODEL"
            raise click.UsageError(f"there is no command called {safe(name)}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command that `args` name and exit with its code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        code = self._run(args, prog_name=prog_name, complete_var=complete_var, **extra)
        sys.exit(code)

    def _run(self, args: Sequence[str] | None, **extra: Any) -> int:
        """Run a command and return the exit code of whatever happened."""
        try:
            return int(super().main(args, standalone_mode=False, **extra) or 0)
        except SystemExit:
            return 0  # click's own help or version text met a closed pipe: the reader had enough
        except click.ClickException as error:
            with contextlib.suppress(OSError):
                error.show()
        except QassayError as error:
            _complain(f"Error: {plain(str(error))}")
        except (click.Abort, KeyboardInterrupt):
            _complain("interrupted")
            return EXIT_INTERRUPTED
        except BrokenPipeError:
            silence(sys.stdout)
            return 0
        except Exception as error:  # noqa: BLE001 - the last place where anything can be said
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                silence(sys.stdout)
                _complain(f"Error: the output cannot be written: {error.strerror}")
            else:
                _report(error)
        return EXIT_FAULT


def _complain(text: str) -> None:
    """Say something on stderr, if anybody still listens there."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)


def _report(error: Exception) -> None:
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
    what = safe(f"{type(error).__name__}: {error}", 300)
    _complain(f"internal error: {what}; please report it ({DEBUG}=1 shows where it happened)")


def silence(stream: Any) -> None:
    """Point a stream whose reader has gone at nothing, so that closing it at exit says nothing."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 clean and complete, 1 findings, 2 usage or internal fault, "
    "3 not fully checked.",
    no_args_is_help=True,
)
@click.version_option(__version__, message="qassay %(version)s")
def cli() -> None:
    """Audit quantized language-model weights.

    Which tensor is wrong, where, why, and what to do. `qassay check MODEL` is the main job; MODEL
    is a GGUF or safetensors file, or a folder of them.
    """


def main() -> NoReturn:
    """Run the command line of this process."""
    gc.set_threshold(YOUNG)
    try:
        cli.main(prog_name="qassay")
    except SystemExit as done:
        _leave(done.code if isinstance(done.code, int) else EXIT_FAULT)
        raise
    raise AssertionError  # cli.main always exits


def _leave(code: int) -> None:
    """End the process, and let the system take back what it held.

    To take a compiler apart object by object takes a tenth of a second. What is to be done at exit
    is done; where output cannot be written, Python ends the process and says so.
    """
    if sys.gettrace() is not None or sys.getprofile() is not None:
        return  # whoever looks on expects the usual end
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):
        return
    atexit._run_exitfuncs()
    os._exit(code)
