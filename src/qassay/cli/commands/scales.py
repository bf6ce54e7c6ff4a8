"""`qassay scales`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qassay.cli.guard import protect
from qassay.cli.options import Output, config_option, output_options, progress_option
from qassay.cli.paths import ModelPath

if TYPE_CHECKING:
    from qassay.report.document import Report
    from qassay.runtimes.scale_storage import Scheme


def _plot(ctx: click.Context, param: click.Parameter, given: Path | None) -> Path | None:  # noqa: ARG001
    if given is not None:
        protect(given, ctx, what="plot", option="--plot")
    return given


@click.command()
@click.argument("source", metavar="[SRC]", required=False, type=ModelPath())
@click.option(
    "--published",
    is_flag=True,
    help="In place of SRC: the block of a published experiment, 3*sin(0.7*i), i = 0..31.",
)
@click.option("--tensor", metavar="NAME", help="Only this tensor.")
@click.option(
    "--block",
    type=click.IntRange(0),
    metavar="I",
    help="Only this block of 32 weights of the tensor, counted in file order.",
)
@click.option(
    "--store",
    multiple=True,
    metavar="NAME",
    help="A way to store scales: f32, f16, f16-truncated, bf16, e8m0-floor, e8m0-nearest, e4m3, "
    "e5m2, 6-bit, N-decimals, integer. May be repeated.  [default: all, and 2-decimals]",
)
@click.option(
    "--codes",
    type=click.Choice(["exact", "stored"]),
    default="exact",
    show_default=True,
    help="Which scale the codes are taken with: as computed, or as stored.",
)
@click.option(
    "--round",
    "rounding",
    type=click.Choice(["nearest-away", "nearest-even", "c-cast"]),
    default="nearest-away",
    show_default=True,
    help="How codes are rounded; c-cast is (int)(x + 0.5), wrong for negative numbers.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_plot,
    help="Write the errors as a bar chart (PNG) to this file; needs matplotlib (qassay[plot]).",
)
@progress_option
@output_options
@config_option
def command(
    source: str | None,
    published: bool,
    tensor: str | None,
    block: int | None,
    store: tuple[str, ...],
    codes: str,
    rounding: str,
    plot: Path | None,
    no_progress: bool,
    output: Output,
) -> int:
    """Try ways of storing scales before building one.

    SRC is a GGUF or safetensors file of floats, a folder of them, or a NumPy array (.npy). Its
    weights are quantized to 8 bits in blocks of 32, each scale stored in every way asked for, and
    decoded. The report holds the errors, also as multiples of those with f16 scales, the blocks
    that decode to zero or whose scale overflows, and one block worked out.
    """
    if published == (source is not None):
        raise click.UsageError("name either SRC or --published")
    if published and tensor is not None:
        raise click.UsageError("--published has no tensors")
    from qassay.cli import emit  # noqa: PLC0415 - imports NumPy
    from qassay.core.errors import InputError  # noqa: PLC0415
    from qassay.report.document import unreadable  # noqa: PLC0415
    from qassay.runtimes.scale_storage import Scheme  # noqa: PLC0415

    like = Scheme(codes_from=codes, rounding=rounding)
    shown = not no_progress and output.verbosity >= 0
    try:
        report = _run(source, tensor, block, store, like, plot, shown=shown)
    except InputError as error:
        report = unreadable("scales", error.path or source or "", error)
    emit.emit(report, output)
    return report.exit_code()


def _run(
    path: str | None,
    tensor: str | None,
    block: int | None,
    store: tuple[str, ...],
    like: Scheme,
    plot: Path | None,
    *,
    shown: bool,
) -> Report:
    from qassay.cli.progress import progress  # noqa: PLC0415
    from qassay.report import of_scales  # noqa: PLC0415
    from qassay.run.scales import try_scales  # noqa: PLC0415
    from qassay.run.scales_sources import open_source, published  # noqa: PLC0415
    from qassay.runtimes.scale_storage_formats import DEFAULT, storage  # noqa: PLC0415

    names = store or DEFAULT
    for name in names:
        storage(name)  # a wrong name is a usage error before anything is read
    source = published() if path is None else open_source(path, tensor)
    try:
        if not source.tensors:
            return of_scales.empty(source)
        total = 4 * sum(weights.size for weights in source.tensors)
        with progress("storing scales", total, shown=shown) as step:
            done = try_scales(
                source,
                names,
                like,
                work_out=store[0] if store else "f16",
                tensor=tensor,
                block=block,
                progress=step,
            )
        if plot is not None:
            of_scales.plot(done, plot)
        return of_scales.report_of(done)
    finally:
        source.close()
