"""Option groups that commands share: each decorator hands the command one object.

Every option has an environment variable, and most a key in the configuration file; the command
line wins over the environment, and that over the file.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from qassay.cli.config import CONFIG_META, CONFIG_PATH, load_into
from qassay.cli.guard import protect
from qassay.cli.paths import ModelPath
from qassay.core.limits import MOST_JOBS
from qassay.report.registry import renderers

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RuleChoice:
    """Which rules to run: codes, beginnings of codes and names of rules, all as typed.

    Attributes:
        select: Rules to run; all when empty.
        ignore: Rules not to run.
        select_from: What `select` comes from (option, variable or setting), and which file.
        ignore_from: The same of `ignore`.
    """

    select: tuple[str, ...]
    ignore: tuple[str, ...]
    select_from: tuple[str, str | None] = ("--select", None)
    ignore_from: tuple[str, str | None] = ("--ignore", None)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Which outcomes fail the run."""

    fail_on: str
    allow_incomplete: bool


@dataclass(frozen=True, slots=True)
class Work:
    """How to do the work."""

    jobs: int | None
    full_stats: bool
    progress: bool


@dataclass(frozen=True, slots=True)
class Output:
    """Where the report goes and how it looks.

    Attributes:
        format: Name of a renderer.
        file: Where to write instead of stdout.
        color: `auto`, `always` or `never`.
        verbosity: -1, 0 or 1.
    """

    format: str
    file: Path | None
    color: str
    verbosity: int

    def colored(self) -> bool:
        """Whether the report is to be coloured."""
        if self.color != "auto":
            return self.color == "always"
        return (
            self.file is None
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
            and sys.stdout is not None  # closed by `>&-`
            and sys.stdout.isatty()
        )


def _group(
    options: list[Callable[[F], F]], make: Callable[..., dict[str, Any]]
) -> Callable[[F], F]:
    """Return a decorator that adds `options` and replaces their values by what `make` returns."""
    names = make.__code__.co_varnames[: make.__code__.co_argcount]

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def call(*args: Any, **given: Any) -> Any:
            mine = {name: given.pop(name) for name in names}
            return command(*args, **given, **make(**mine))

        decorated: Any = call
        for option in reversed(options):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def split_codes(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001
    given: tuple[str, ...],
) -> tuple[str, ...]:
    """Split at commas; whether the words mean rules is known once rules are loaded."""
    parts = (part.strip() for word in given for part in word.split(","))
    return tuple(dict.fromkeys(part for part in parts if part))


def _split_types(
    ctx: click.Context, param: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...]:
    """Split at commas; `--to ""`, most often an unset variable, must not read "clean"."""
    words = split_codes(ctx, param, given)
    if given and not words:
        raise click.BadParameter("it names no type", ctx, param)
    return words


def _origin(name: str) -> tuple[str, str | None]:
    """Return what gave an option its value, as messages call it, and the file if it is one."""
    context = click.get_current_context()
    source = context.get_parameter_source(name)
    if source is ParameterSource.DEFAULT_MAP:
        return name, context.meta.get(CONFIG_PATH)
    if source is ParameterSource.ENVIRONMENT:
        return f"QASSAY_{name.upper()}", None
    return f"--{name}", None


def _make_choice(select: tuple[str, ...], ignore: tuple[str, ...]) -> dict[str, Any]:
    return {"choice": RuleChoice(select, ignore, _origin("select"), _origin("ignore"))}


rule_options = _group(
    [
        click.option(
            "--select",
            multiple=True,
            metavar="RULES",
            envvar="QASSAY_SELECT",
            callback=split_codes,
            help="Run only these rules: codes, beginnings of codes or names, with commas between "
            "them (Q2,Q401,dead-rows). May be repeated.",
        ),
        click.option(
            "--ignore",
            multiple=True,
            metavar="RULES",
            envvar="QASSAY_IGNORE",
            callback=split_codes,
            help="Do not run these rules, even if --select names them.",
        ),
    ],
    _make_choice,
)


def _make_judgement(fail_on: str, exit_zero: bool, allow_incomplete: bool) -> dict[str, Any]:
    return {"judgement": Judgement("never" if exit_zero else fail_on, allow_incomplete)}


def _make_severity(fail_on: str, exit_zero: bool) -> dict[str, Any]:
    return {"fail_on": "never" if exit_zero else fail_on}


_SEVERITY: list[Callable[[Any], Any]] = [
    click.option(
        "--fail-on",
        type=click.Choice(["error", "warning", "never"]),
        default="error",
        show_default=True,
        envvar="QASSAY_FAIL_ON",
        help="End with exit code 1 when a finding is at least this severe; never: no finding "
        "changes the exit code.",
    ),
    click.option(
        "--exit-zero",
        is_flag=True,
        envvar="QASSAY_EXIT_ZERO",
        help="The same as --fail-on never.",
    ),
]

fail_on_options = _group(_SEVERITY, _make_severity)

verdict_options = _group(
    [
        *_SEVERITY,
        click.option(
            "--allow-incomplete",
            is_flag=True,
            envvar="QASSAY_ALLOW_INCOMPLETE",
            help="Exit 0, not 3, when not everything could be checked.",
        ),
    ],
    _make_judgement,
)


@dataclass(frozen=True, slots=True)
class Aim:
    """What float tensors are meant to become: words of `--to`, as typed, and with what help.

    Attributes:
        to: The words.
        group_size: Weights a group.
        imatrix: An importance file.
        on: The runtime that it is meant for, as typed.
        tp: Ranks of tensor parallelism there.
    """

    to: tuple[str, ...] = ()
    group_size: int | None = None
    imatrix: str | None = None
    on: str | None = None
    tp: int = 1


def _make_aim(
    to: tuple[str, ...], group_size: int | None, imatrix: str | None, on: str | None, tp: int
) -> dict[str, Any]:
    said = click.get_current_context().get_parameter_source("tp")
    if on is None and said is click.core.ParameterSource.COMMANDLINE:  # the environment may
        raise click.UsageError("--tp is about a runtime: name it with --on")
    return {"aim": Aim(to, group_size, imatrix, on, tp)}


def runtime_options(*, required: bool) -> Callable[[F], F]:
    """Return a decorator that adds --on and --tp."""
    on: Callable[[F], F] = click.option(
        "--on",
        metavar="RUNTIME",
        required=required,
        envvar="QASSAY_ON",
        help="Where the model shall run: runtime, chip and version, such as sophgo:bm1684x or "
        "sophgo:bm1684x@1.28.1; without a version, the newest that is known.",
    )
    tp: Callable[[F], F] = click.option(
        "--tp",
        type=click.IntRange(1, 1024),
        default=1,
        show_default=True,
        envvar="QASSAY_TP",
        help="Ranks of tensor parallelism that share each Linear there.",
    )
    return lambda command: on(tp(command))


def imatrix_option(text: str) -> Callable[[F], F]:
    """Return the option --imatrix with this help."""
    return click.option(
        "--imatrix", metavar="FILE", envvar="QASSAY_IMATRIX", type=ModelPath(), help=text
    )


target_options = _group(
    [
        click.option(
            "--to",
            multiple=True,
            metavar="TYPES",
            envvar="QASSAY_TO",
            callback=_split_types,
            help="Say what quantizing float tensors to these types would do to them: encodings "
            "(Q8_0, Q4_K), recipes of llama-quantize (Q4_K_M) or groups (sophgo.w4bf16), with "
            "commas between them. May be repeated.",
        ),
        click.option(
            "--group-size",
            type=click.IntRange(1),
            envvar="QASSAY_GROUP_SIZE",
            help="Weights a group, for --to types that are stored in groups.  [default: 64]",
        ),
        imatrix_option(
            "Say what of this importance file (GGUF or .dat of llama-imatrix) cannot be used for "
            "the model."
        ),
        runtime_options(required=False),
    ],
    _make_aim,
)


def _make_work(jobs: int | None, stats: str, no_progress: bool) -> dict[str, Any]:
    return {"work": Work(jobs, stats == "full", not no_progress)}


progress_option = click.option(
    "--no-progress", is_flag=True, envvar="QASSAY_NO_PROGRESS", help="Show no progress bar."
)

work_options = _group(
    [
        click.option(
            "--jobs",
            "-j",
            type=click.IntRange(1, MOST_JOBS),
            envvar="QASSAY_JOBS",
            help="Number of threads that read the input.  [default: one for each processor]",
        ),
        click.option(
            "--stats",
            type=click.Choice(["default", "full"]),
            default="default",
            show_default=True,
            envvar="QASSAY_STATS",
            help="default counts the codes of the first 1024 blocks of each tensor. full counts "
            "those of all blocks, shows a table of them, and puts the counts into the JSON report.",
        ),
        progress_option,
    ],
    _make_work,
)


def _make_output(
    output_format: str, output_file: Path | None, color: str, quiet: bool, verbose: bool
) -> dict[str, Any]:
    if quiet and verbose:
        raise click.UsageError("-q and -v exclude each other")
    if output_file is not None:
        protect(output_file, click.get_current_context())
    return {"output": Output(output_format, output_file, color, int(verbose) - int(quiet))}


output_options = _group(
    [
        click.option(
            "--output-format",
            "-f",
            type=click.Choice(renderers()),
            default="text",
            show_default=True,
            envvar="QASSAY_OUTPUT_FORMAT",
            help="How to write the report.",
        ),
        click.option(
            "--output-file",
            "-o",
            type=click.Path(dir_okay=False, path_type=Path),
            envvar="QASSAY_OUTPUT_FILE",
            help="Write the report to this file, and nothing to stdout. Never replaces a model.",
        ),
        click.option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            show_default=True,
            envvar="QASSAY_COLOR",
            help="auto colours a terminal unless NO_COLOR is set.",
        ),
        click.option(
            "--quiet",
            "-q",
            is_flag=True,
            envvar="QASSAY_QUIET",
            help="Leave out tables of statistics, notes, and the progress bar.",
        ),
        click.option(
            "--verbose",
            "-v",
            is_flag=True,
            envvar="QASSAY_VERBOSE",
            help="Show every note in full, and the name of everything that was not checked.",
        ),
    ],
    _make_output,
)


def _config(ctx: click.Context, param: click.Parameter, given: Path | None) -> None:  # noqa: ARG001
    load_into(ctx, given)


def config_option(command: F) -> F:
    """Add --config; it is read before any other option, whose default it then gives."""
    option: Callable[[F], F] = click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="QASSAY_CONFIG",
        is_eager=True,
        expose_value=False,
        callback=_config,
        help="Read settings from this TOML file: from its table [tool.qassay], or from the top of "
        "the file if it has none.  [default: the nearest pyproject.toml with that table]",
    )
    return option(command)


def severities() -> dict[str, str]:
    """Return the `severity` table of the configuration: words by rule code.

    Raises:
        UsageError: A key of it means no rule.
    """
    from qassay.cli.codes import known_codes  # noqa: PLC0415 - imports NumPy
    from qassay.rules.registry import codes as rule_codes  # noqa: PLC0415

    meta = click.get_current_context().meta
    codes = list(rule_codes())
    graded = {}
    for given, word in meta.get(CONFIG_META, {}).items():
        (code,) = known_codes([given], codes, "severity", meta[CONFIG_PATH], whole=True)
        graded[code] = word
    return graded
