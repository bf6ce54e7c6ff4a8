"""`qassay pad`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qassay.cli.options import Output, config_option, output_options, progress_option, split_codes
from qassay.cli.paths import ModelPath

if TYPE_CHECKING:
    from qassay.report.document import Report
    from qassay.run.pad import PadOptions


@click.command()
@click.argument("source", metavar="SRC", type=ModelPath())
@click.argument("destination", metavar="DST", type=ModelPath())
@click.option(
    "--on",
    metavar="RUNTIME",
    envvar="QASSAY_ON",
    help="The chip whose lanes have to be filled: sophgo:bm1684x, sophgo:bm1688@1.28.1, ...",
)
@click.option(
    "--multiple",
    type=click.IntRange(1, 1 << 16),
    metavar="P",
    help="Pad to a multiple of P channels.  [default: the lanes of the chip]",
)
@click.option(
    "--layers",
    multiple=True,
    metavar="PATTERNS",
    callback=split_codes,
    help="Only layers whose names match one of these shell patterns, with commas between them "
    "('*.in_proj_[ab]'). May be repeated.",
)
@progress_option
@output_options
@config_option
def command(
    source: str,
    destination: str,
    on: str | None,
    multiple: int | None,
    layers: tuple[str, ...],
    no_progress: bool,
    output: Output,
) -> int:
    """Pad Linears to a multiple of a chip's lanes, and prove that nothing changed.

    SRC is a folder of safetensors: GPTQ, AWQ, AutoRound, compressed-tensors with integer codes, or
    floats. DST is the new folder. Every Linear whose number of output channels is no multiple of
    P gets channels that are nothing (codes equal to their zero point, scale 1, bias 0); what
    has to be cropped is listed in DST/crops.json. The new folder is read again and compared with
    SRC, in canonical form and by its outputs, before it gets its name. Other files are copied; the
    report names what is not: hidden folders, and weights in other forms or in folders.

    Nothing is written where nothing needs padding, nor where a layer that needs it cannot have it
    or a file cannot be copied (exit code 3).
    """
    from qassay.cli import emit  # noqa: PLC0415 - imports NumPy
    from qassay.core.errors import InputError  # noqa: PLC0415
    from qassay.report.document import unreadable  # noqa: PLC0415

    options = _options(on, multiple, layers)
    shown = not no_progress and output.verbosity >= 0
    try:
        report = _run(Path(source), Path(destination), options, shown=shown)
    except InputError as error:
        report = unreadable("pad", error.path or source, error)
    emit.emit(report, output)
    return report.exit_code()


def _options(on: str | None, multiple: int | None, layers: tuple[str, ...]) -> PadOptions:
    from qassay.core.errors import UsageError  # noqa: PLC0415
    from qassay.run.pad import PadOptions  # noqa: PLC0415
    from qassay.runtimes.sophgo.named import aimed_at  # noqa: PLC0415

    if on is None:
        if multiple is None:
            raise click.UsageError("name a chip with --on, or a number with --multiple")
        return PadOptions(multiple, layers=layers)
    aimed = aimed_at(on)
    lanes = aimed.chip.lanes
    if multiple is not None and multiple % lanes:
        raise UsageError(
            f"--multiple does not fill the lanes of {aimed.chip.id}",
            expected=f"a multiple of {lanes}",
            found=str(multiple),
        )
    return PadOptions(multiple or lanes, str(aimed), layers)


def _run(source: Path, destination: Path, options: PadOptions, *, shown: bool) -> Report:
    from dataclasses import replace  # noqa: PLC0415

    from qassay.cli.inputs import input_bytes  # noqa: PLC0415
    from qassay.cli.progress import progress  # noqa: PLC0415
    from qassay.cli.signals import signals_interrupt  # noqa: PLC0415
    from qassay.report.of_pad import report_of  # noqa: PLC0415
    from qassay.run.pad import pad  # noqa: PLC0415

    total = 2 * input_bytes(source)  # once written, once compared
    with signals_interrupt(), progress("padding", total, shown=shown) as step:
        return report_of(pad(source, destination, replace(options, watch=step)))
