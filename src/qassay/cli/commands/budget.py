"""`qassay budget`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qassay.cli.options import Output, config_option, output_options, progress_option, split_codes
from qassay.cli.paths import ModelPath

if TYPE_CHECKING:
    from qassay.report.document import Report
    from qassay.run.budget import Plan
    from qassay.run.budget_measure import Measured
    from qassay.runtimes.sophgo.named import Aimed

_PARAMS = re.compile(r"(\d{1,18}|\d{1,9}\.\d{1,9})\s*([kmbt]?)", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_MOST_GROUPS = 16


def _params(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001
    given: str | None,
) -> int | None:
    if given is None:
        return None
    found = _PARAMS.fullmatch(given.strip())
    total = round(float(found[1]) * _UNITS[found[2].lower()]) if found else 0
    if not 0 < total < 1 << 60:
        raise click.BadParameter("expected a number of weights, such as 2000000000 or 1.7B")
    return total


def _shapes(
    ctx: click.Context,  # noqa: ARG001
    param: click.Parameter,  # noqa: ARG001
    given: tuple[str, ...],
) -> tuple[tuple[int, int], ...]:
    shapes = []
    for word in given:
        found = re.fullmatch(r"\s*(\d{1,9})\s*[,x]\s*(\d{1,9})\s*", word)
        if found is None or not int(found[1]) or not int(found[2]):
            raise click.BadParameter("expected N,K: two numbers, such as 96,4096")
        shapes.append((int(found[1]), int(found[2])))
    return tuple(shapes)


def _groups(
    ctx: click.Context,  # noqa: ARG001
    param: click.Parameter,  # noqa: ARG001
    given: str,
) -> tuple[int, ...]:
    words = [word.strip() for word in given.split(",") if word.strip()]
    if not words or len(words) > _MOST_GROUPS:
        raise click.BadParameter("expected up to 16 group sizes, such as 32,64,128")
    sizes = [int(word) if re.fullmatch(r"\d{1,7}", word) else 0 for word in words]
    if 0 in sizes:
        raise click.BadParameter("a group size is a whole number above 0")
    return tuple(dict.fromkeys(sizes))


@click.command()
@click.argument("model", metavar="[MODEL]", required=False, type=ModelPath())
@click.option("--params", callback=_params, metavar="N", help="In place of MODEL: N weights (2B).")
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    callback=_shapes,
    metavar="N,K",
    help="In place of MODEL: one Linear of N output channels and K input features. May be "
    "repeated.",
)
@click.option(
    "--to",
    multiple=True,
    metavar="TYPES",
    envvar="QASSAY_TO",
    callback=split_codes,
    help="Encodings: w4, w8 (sophgo.w4bf16, ...), gptq.int4, awq, compressed.pack.int4, nvfp4, "
    "mxfp4, fp8, Q4_K and its kin, with commas between them. May be repeated.  [default: a "
    "choice of all]",
)
@click.option(
    "--group-size",
    "groups",
    default="32,64,128",
    show_default=True,
    callback=_groups,
    metavar="SIZES",
    help="Weights a group, for encodings that leave it open, with commas between them.",
)
@click.option(
    "--on",
    metavar="RUNTIME",
    envvar="QASSAY_ON",
    help="Count padding and fall-backs of this chip: sophgo:bm1684x, sophgo:bm1684x@1.28.1, ...",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Quantize the float weights of MODEL with each and tell the error.",
)
@progress_option
@output_options
@config_option
def command(
    model: str | None,
    params: int | None,
    shapes: tuple[tuple[int, int], ...],
    to: tuple[str, ...],
    groups: tuple[int, ...],
    on: str | None,
    measure: bool,
    no_progress: bool,
    output: Output,
) -> int:
    """Tell what encodings and group sizes cost in bits and bytes.

    MODEL is a model file or folder, a config.json, or a table of shapes; only headers are read,
    unless --measure is given. Shows bits a weight with their formula, the ratio to BF16, and the
    size; with --on also what the chip makes of Linears that do not fill its lanes: padding, or
    16 bits.
    """
    if (model is not None) + (params is not None) + bool(shapes) != 1:
        raise click.UsageError("name one of MODEL, --params and --shape")
    if measure and model is None:
        raise click.UsageError("--measure needs MODEL")
    if params is not None and on is not None:
        raise click.UsageError("--on needs shapes: name MODEL or --shape")
    from qassay.cli import emit  # noqa: PLC0415 - imports NumPy
    from qassay.core.errors import InputError  # noqa: PLC0415
    from qassay.report.document import unreadable  # noqa: PLC0415
    from qassay.run.budget import plans  # noqa: PLC0415
    from qassay.runtimes.budgets import DEFAULT, scheme  # noqa: PLC0415
    from qassay.runtimes.sophgo.named import aimed_at  # noqa: PLC0415

    schemes = {one.id: one for one in map(scheme, to or DEFAULT)}
    wanted = plans(list(schemes.values()), groups)
    aimed = None if on is None else aimed_at(on)
    try:
        if model is not None:
            shown = not no_progress and output.verbosity >= 0
            report = _of_model(model, wanted, aimed, measure=measure, shown=shown)
        else:
            report = _of_numbers(params, shapes, wanted, aimed)
    except InputError as error:
        report = unreadable("budget", error.path or model or "", error)
    emit.emit(report, output)
    return report.exit_code()


def _of_numbers(
    params: int | None,
    shapes: tuple[tuple[int, int], ...],
    wanted: Sequence[Plan],
    aimed: Aimed | None,
) -> Report:
    from qassay.report.of_budget import report_of  # noqa: PLC0415
    from qassay.run.budget import of_linears, of_params  # noqa: PLC0415
    from qassay.runtimes.shapes.linear import Linear  # noqa: PLC0415

    if params is not None:
        return report_of(of_params(params, wanted))
    linears = [Linear("", n, k) for n, k in shapes]
    return report_of(of_linears(linears, wanted, aimed))


def _of_model(
    model: str, wanted: Sequence[Plan], aimed: Aimed | None, *, measure: bool, shown: bool
) -> Report:
    from qassay.cli.inputs import input_bytes  # noqa: PLC0415
    from qassay.cli.progress import progress  # noqa: PLC0415
    from qassay.containers.opening import display_name  # noqa: PLC0415
    from qassay.report.of_budget import report_of  # noqa: PLC0415
    from qassay.run.budget import of_linears  # noqa: PLC0415
    from qassay.run.budget_measure import check_measurable, measure_all  # noqa: PLC0415
    from qassay.run.fit import read_shapes  # noqa: PLC0415

    path = Path(model)
    container, found = read_shapes(path, display_name(path))
    try:
        if measure:
            check_measurable(container.format, container.path)
        budget = of_linears(found.linears, wanted, aimed)
        budget.path, budget.format = container.path, container.format
        budget.nbytes = container.nbytes or int(container.extra.get("text_bytes", 0))
        budget.skipped = list(found.unread)
        measured: list[Measured] = []
        if measure:
            with progress("measuring", input_bytes(path), shown=shown) as step:
                measured, skipped = measure_all(container, found.linears, wanted, step)
            budget.skipped += skipped
        return report_of(budget, measured)
    finally:
        container.close()
