"""`qassay layout`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qassay.cli.options import Output, config_option, output_options
from qassay.cli.paths import ModelPath

if TYPE_CHECKING:
    from qassay.report.document import Report
    from qassay.run.layout_pairs import Asked

_SHAPE = re.compile(r"(\d{1,9}),(\d{1,9})")


def _shape(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001
    given: str | None,
) -> tuple[int, int] | None:
    if given is None:
        return None
    found = _SHAPE.fullmatch(given.replace(" ", ""))
    if found is None or int(found[1]) < 1 or int(found[2]) < 1:
        raise click.BadParameter("expected N,K/g: two numbers, such as 128,32")
    return int(found[1]), int(found[2])


@click.command()
@click.argument("source", metavar="IN", type=ModelPath())
@click.argument("destination", metavar="OUT", type=ModelPath())
@click.option(
    "--on",
    required=True,
    metavar="RUNTIME",
    envvar="QASSAY_ON",
    help="The chip, and the version of its compiler: sophgo:bm1684x, sophgo:cv184x@1.30.2, ...",
)
@click.option("--inverse", is_flag=True, help="Move out of the device's order.")
@click.option(
    "--mlir",
    type=ModelPath(),
    metavar="FILE",
    help="The text that belongs to the npz: names, shapes and types of every layer come from it.",
)
@click.option("--scale", metavar="NAME", help="The array of scales.  [default: the 16-bit one]")
@click.option(
    "--zero-point", metavar="NAME", help="The array of zero points.  [default: the 8-bit one]"
)
@click.option(
    "--shape",
    metavar="N,K/g",
    callback=_shape,
    help="Shape of scale and zero point before the reorder, for arrays that are flat.",
)
@click.option(
    "--group-size",
    type=click.IntRange(0),
    default=64,
    show_default=True,
    help="g, 0 for a scale a channel; decides the layout on some chips. Of --mlir its own counts.",
)
@click.option(
    "--weight-bits",
    type=click.Choice(["4", "8"]),
    default="4",
    show_default=True,
    help="Width of the codes; the same.",
)
@click.option(
    "--half",
    type=click.Choice(["bf16", "f16"]),
    help="What 16-bit patterns are.  [default: as the file says, else bf16]",
)
@output_options
@config_option
def command(
    source: str,
    destination: str,
    on: str,
    inverse: bool,
    mlir: str | None,
    scale: str | None,
    zero_point: str | None,
    shape: tuple[int, int] | None,
    group_size: int,
    weight_bits: str,
    half: str | None,
    output: Output,
) -> int:
    """Move scales and zero points into a device's order, or out of it.

    IN is an .npz, .npy or .safetensors file, OUT a new file of the same kind, in which scales and
    zero points are in the order that the chip wants them in; all else is copied. With --mlir the
    text beside the npz says what is what, for every layer. The way back is tried before anything
    is written. Exit code 1: the chip's lanes do not divide N, so that there is no such order.
    """
    from qassay.cli import emit  # noqa: PLC0415 - imports NumPy
    from qassay.core.errors import InputError  # noqa: PLC0415
    from qassay.report.document import unreadable  # noqa: PLC0415
    from qassay.run.layout_pairs import Asked  # noqa: PLC0415
    from qassay.runtimes.sophgo.named import aimed_at  # noqa: PLC0415

    asked = Asked(
        aimed_at(on),
        inverse=inverse,
        scale=scale,
        zero_point=zero_point,
        shape=shape,
        group_size=group_size,
        weight_bits=int(weight_bits),
        half=half,  # type: ignore[arg-type]  # click has compared it
    )
    try:
        report = _run(source, destination, asked, mlir)
    except InputError as error:
        report = unreadable("layout", error.path or source, error)
    emit.emit(report, output)
    return report.exit_code()


def _run(source: str, destination: str, asked: Asked, mlir: str | None) -> Report:
    from qassay.report.of_layout import report_of  # noqa: PLC0415
    from qassay.run.layout import layout  # noqa: PLC0415

    text = None if mlir is None else Path(mlir)
    return report_of(layout(Path(source), Path(destination), asked, text))
