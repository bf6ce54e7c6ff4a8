"""Running a check for the command line: rule codes made sure of, progress shown."""

from __future__ import annotations

import contextlib
import difflib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from qassay.cli.options import RuleChoice, Work
from qassay.core.errors import UsageError
from qassay.core.finding import Severity
from qassay.core.text import safe
from qassay.kernels.select import wanted
from qassay.report.document import Report
from qassay.rules.registry import all_rules
from qassay.run.check import check
from qassay.run.options import CheckOptions

PROGRESS_FROM = 500_000_000
"""Bytes of input from which a progress bar is worth its import."""

_SUFFIXES = (".gguf", ".safetensors")


def run(
    paths: Sequence[Path],
    choice: RuleChoice,
    severity: Mapping[str, str],
    work: Work,
    *,
    quiet: bool = False,
) -> Report:
    """Check every path in turn and return one report.

    Raises:
        UsageError: A rule code, or `QASSAY_KERNELS`, names nothing there is.
    """
    wanted()  # a wrong QASSAY_KERNELS is a usage error even where no kernel runs
    codes = [rule.code for rule in all_rules()]
    select = known_codes(choice.select, codes, "--select")
    ignore = known_codes(choice.ignore, codes, "--ignore")
    for code in severity:
        known_codes([code], codes, "severity", whole=True)
    with _progress(paths, shown=work.progress and not quiet) as step:
        options = CheckOptions(
            select=select,
            ignore=ignore,
            severities={code: Severity.parse(word) for code, word in severity.items()},
            jobs=work.jobs,
            full_stats=work.full_stats,
            progress=step,
        )
        return Report.of_check(*(check(path, options) for path in paths))


def known_codes(
    given: Iterable[str], codes: Sequence[str], where: str, *, whole: bool = False
) -> tuple[str, ...]:
    """Return `given` if each is the beginning (or the whole) of the code of some rule.

    Raises:
        UsageError: One is not.
    """
    chosen = tuple(given)
    for prefix in chosen:
        if prefix in codes or (not whole and any(code.startswith(prefix) for code in codes)):
            continue
        near = difflib.get_close_matches(prefix, codes, n=3, cutoff=0.5)
        raise UsageError(
            f"{where}: no rule has a code like {safe(prefix)}",
            expected="a code such as Q201" if whole else "a code or the beginning of one",
            hint=(f"perhaps {', '.join(near)}; " if near else "") + "`qassay rules` lists them",
        )
    return chosen


@contextlib.contextmanager
def _progress(paths: Sequence[Path], *, shown: bool) -> Iterator[Callable[[int], None] | None]:
    """Yield what to call with each number of bytes read; shows a bar for a large input."""
    expected = sum(_input_bytes(path) for path in paths) if shown and sys.stderr.isatty() else 0
    if expected < PROGRESS_FROM:
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 - only a large input pays for it
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress("checking", *columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=expected)
        yield lambda nbytes: bar.advance(task, nbytes)


def _input_bytes(path: Path) -> int:
    """Return about how many bytes will be read; wrong paths count nothing here."""
    try:
        if not path.is_dir():
            return path.stat().st_size
        files = (file for file in path.iterdir() if file.suffix.lower() in _SUFFIXES)
        return sum(file.stat().st_size for file in files)
    except (OSError, ValueError):
        return 0


def warn_uncached(*, quiet: bool) -> None:
    """Say once that compiled kernels could not be kept, if any ran."""
    jit = sys.modules.get("qassay.kernels.jit")
    if jit is not None and jit.uncached and not quiet:
        click.echo(
            "note: no folder for compiled kernels is writable, so each run compiles them anew; "
            "set NUMBA_CACHE_DIR to a writable folder",
            err=True,
        )
