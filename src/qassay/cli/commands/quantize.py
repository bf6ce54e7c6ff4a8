"""`qassay quantize`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qassay.cli.options import (
    Output,
    Work,
    config_option,
    fail_on_options,
    imatrix_option,
    output_options,
    severities,
    split_codes,
    work_options,
)
from qassay.cli.paths import ModelPath
from qassay.cli.signals import signals_interrupt

if TYPE_CHECKING:
    from qassay.report.document import Report
    from qassay.run.quantize import QuantizeOptions, Watch

_TYPE_FOR = "a pattern and a type, such as '*.ffn_down.*=Q6_K'"


def _patterns(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001
    given: tuple[str, ...],
) -> tuple[tuple[str, str], ...]:
    pairs = [word.rpartition("=") for word in given]
    for pattern, _, name in pairs:
        if not pattern or not name:
            raise click.BadParameter(f"expected {_TYPE_FOR}")
    return tuple((pattern, name) for pattern, _, name in pairs)


def _only_one(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> str:
    if len(given) > 1:
        raise click.BadParameter("one file is written, so name one type", ctx, param)
    return given[0] if given else ""


@click.command()
@click.argument("source", metavar="SRC", type=ModelPath())
@click.argument("destination", metavar="DST", type=ModelPath())
@click.option(
    "--to",
    metavar="TYPE",
    required=True,
    multiple=True,  # so that a second one is seen
    callback=_only_one,
    help="What to quantize to: an encoding (Q8_0, ggml.q4_k), or a recipe of llama-quantize "
    "(Q4_K_M).",
)
@click.option(
    "--engine",
    default="ggml",
    show_default=True,
    envvar="QASSAY_ENGINE",
    help="Whose arithmetic to quantize with, bit for bit: candle, ggml, ggml-avx2, gguf-py, "
    "kestrel or kestrel-legacy.",
)
@click.option(
    "--type-for",
    metavar="PATTERN=TYPE",
    multiple=True,
    callback=_patterns,
    help="Another type for tensors whose names match the shell pattern, norms and biases included; "
    "may be repeated, and the last one that matches counts.",
)
@click.option(
    "--allow",
    metavar="CODES",
    multiple=True,
    envvar="QASSAY_ALLOW",
    callback=split_codes,
    help="Errors that do not stop the work and count as warnings: codes, beginnings of codes or "
    "names of rules, with commas between them (Q401,Q50,coarse-scale). May be repeated.",
)
@imatrix_option(
    "Quantize with this importance file (GGUF or .dat of llama-imatrix), where the type uses it. "
    "What of it cannot be used is an error; --allow Q507 leaves it out."
)
@click.option("--force", is_flag=True, help="Replace DST if it exists.")
@fail_on_options
@output_options
@work_options
@config_option
def command(
    source: str,
    destination: str,
    to: str,
    engine: str,
    type_for: tuple[tuple[str, str], ...],
    allow: tuple[str, ...],
    imatrix: str | None,
    force: bool,
    fail_on: str,
    output: Output,
    work: Work,
) -> int:
    """Quantize a float model to a GGUF file, and prove it.

    SRC is a GGUF or safetensors file of floats, a folder of them, or an index of shards; DST is the
    new .gguf file. SRC is checked first, as by check --to with the type that each tensor will get,
    and nothing is written when that finds errors (exit code 1, whatever --fail-on says) or could
    not look at all of it (3). The
    report holds what was found, the measured error of every tensor, and what a check of the new
    file found.

    Tensors with one axis, norms, routers, position embeddings and their like stay as they are, as
    in llama-quantize (F32 if from safetensors). Rows that are no whole number of blocks get the
    type that llama-quantize falls back to, or F16; the report says so. SRC is read twice, DST once.

    Tensors keep their names and order, and metadata is copied from GGUF alone: a model that
    llama.cpp shall load has to be converted to GGUF floats first, by the converter of its
    architecture.
    """
    from dataclasses import replace  # noqa: PLC0415

    from qassay.cli import checking, emit  # noqa: PLC0415 - imports NumPy

    options = replace(_options(engine, to, type_for, allow, force, work), importance=imatrix)
    quiet = output.verbosity < 0
    report, written = _run(source, destination, options, shown=work.progress and not quiet)
    emit.emit(report, output)
    checking.warn_uncached(quiet=quiet)
    if written:
        return report.exit_code(fail_on)
    # A file that is not there is no success, whatever may count as one otherwise.
    return report.exit_code()


def _options(
    engine: str,
    to: str,
    type_for: tuple[tuple[str, str], ...],
    allow: tuple[str, ...],
    force: bool,
    work: Work,
) -> QuantizeOptions:
    from qassay.cli.codes import known_codes  # noqa: PLC0415
    from qassay.core.errors import UsageError  # noqa: PLC0415
    from qassay.core.finding import Severity  # noqa: PLC0415
    from qassay.kernels.select import wanted  # noqa: PLC0415
    from qassay.rules.registry import codes  # noqa: PLC0415
    from qassay.run.options import CheckOptions  # noqa: PLC0415
    from qassay.run.quantize import NEVER_ALLOWED, QuantizeOptions  # noqa: PLC0415
    from qassay.run.quantize_plan import Wish  # noqa: PLC0415

    wanted()  # a wrong QASSAY_KERNELS is a usage error even where no kernel runs
    allowed = known_codes(allow, list(codes()), "--allow")
    for code in NEVER_ALLOWED:
        if code in allowed:
            raise UsageError(f"--allow: {code} cannot be allowed", hint="correct the source")
    check = CheckOptions(
        severities={code: Severity.parse(word) for code, word in severities().items()},
        jobs=work.jobs,
        full_stats=work.full_stats,
    )
    wish = Wish.parse(engine, to, type_for)
    return QuantizeOptions(wish, allow=allowed, overwrite=force, check=check)


def _run(
    source: str, destination: str, options: QuantizeOptions, *, shown: bool
) -> tuple[Report, bool]:
    from dataclasses import replace  # noqa: PLC0415

    from qassay.report.of_quantize import report_of  # noqa: PLC0415
    from qassay.run.quantize import quantize  # noqa: PLC0415

    with signals_interrupt(), _progress(shown=shown) as watch:
        done = quantize(Path(source), Path(destination), replace(options, watch=watch))
    return report_of(done), done.written


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Watch]:
    """Yield what tells of phases: each that takes long gets a bar of its own."""
    from qassay.cli.progress import progress  # noqa: PLC0415

    with contextlib.ExitStack() as stack:

        def watch(phase: str, nbytes: int) -> Callable[[int], None] | None:
            stack.close()  # the phase before is over
            return stack.enter_context(progress(phase, nbytes, shown=shown))

        yield watch
