"""Running a check for the command line: inputs told apart, rules made sure of, progress shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qassay.cli.choosing import chosen_rules
from qassay.cli.inputs import distinct, input_bytes
from qassay.cli.options import Aim, RuleChoice, Work
from qassay.cli.progress import progress
from qassay.kernels.select import notes, wanted
from qassay.report.document import Report
from qassay.run.check import check
from qassay.run.options import FitOptions

if TYPE_CHECKING:
    from qassay.runtimes.targets import Target


def run(
    paths: Sequence[Path],
    choice: RuleChoice,
    severity: Mapping[str, str],
    work: Work,
    *,
    aim: Aim | None = None,
    quiet: bool = False,
) -> Report:
    """Check every path in turn and return one report.

    Raises:
        UsageError: A rule code, `--to`, or `QASSAY_KERNELS` names nothing there is.
    """
    wanted()  # a wrong QASSAY_KERNELS is a usage error even where no kernel runs
    rules = chosen_rules(choice, severity)
    targets = _targets(aim)
    inputs = distinct(paths)
    total = sum(input_bytes(path) for path, _ in inputs)
    with progress("checking", total, shown=work.progress and not quiet) as step:
        options = replace(
            rules,
            jobs=work.jobs,
            full_stats=work.full_stats,
            targets=targets,
            importance=None if aim is None else aim.imatrix,
            fit=_fit(aim),
            progress=step,
        )
        return Report.of_check(*(check(path, options, name) for path, name in inputs))


def _targets(aim: Aim | None) -> tuple[Target, ...]:
    if aim is None or not (aim.to or aim.group_size):
        return ()
    from qassay.runtimes.targets import parse_targets  # noqa: PLC0415 - most checks name none

    return parse_targets(aim.to, aim.group_size)


def _fit(aim: Aim | None) -> FitOptions | None:
    """Return where the model shall run, and which word of --to is a mode there.

    Raises:
        UsageError: There is no such runtime, chip or version.
    """
    if aim is None or aim.on is None:
        return None
    from qassay.runtimes.fit_profile import parse_on  # noqa: PLC0415 - most checks name none

    profile, _ = parse_on(aim.on)
    return FitOptions(aim.on, profile.mode_in(aim.to), aim.group_size, aim.tp)


def warn_uncached(*, quiet: bool) -> None:
    """Say once that kernels were not compiled, or could not be kept, if any ran."""
    for note in notes if not quiet else ():
        click.echo(f"note: {note}", err=True)
    jit = sys.modules.get("qassay.kernels.jit")
    if jit is not None and jit.uncached and not quiet:
        click.echo(
            "note: no folder for compiled kernels is writable, so each run compiles them anew; "
            "set NUMBA_CACHE_DIR to a writable folder",
            err=True,
        )
