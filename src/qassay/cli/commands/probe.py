"""`qassay probe`."""

from __future__ import annotations

import os
from pathlib import Path

import click

from qassay.cli.guard import protect
from qassay.cli.options import Output, config_option, output_options
from qassay.cli.paths import ModelPath


def _new_file(ctx: click.Context, param: click.Parameter, given: Path) -> Path:  # noqa: ARG001
    protect(given, ctx, what="inputs", option="-o")
    return given


def _is_one_of_both(report: Path, inputs: Path) -> bool:
    """Tell whether the report would lie where the inputs or their page will."""
    both = (inputs, inputs.with_suffix(".md")) if inputs.name else ()
    return any(os.path.realpath(report) == os.path.realpath(one) for one in both)


@click.command()
@click.argument("model", metavar="MODEL", type=ModelPath())
@click.argument("layer", metavar="[LAYER]", required=False)
@click.option(
    "-o",
    "--output",
    "destination",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    callback=_new_file,
    metavar="FILE",
    help="The npz to write; a page about it gets the same name with .md.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random rows."
)
@click.option(
    "--rows", type=click.IntRange(1, 1024), default=8, show_default=True, help="Random rows."
)
@click.option("--weight-bits", type=click.Choice(["4", "8"]), help="Width of the codes in an npz.")
@click.option("--on", metavar="RUNTIME", envvar="QASSAY_ON", help="The chip, for the page.")
@output_options
@config_option
def command(
    model: str,
    layer: str | None,
    destination: Path,
    seed: int,
    rows: int,
    weight_bits: str | None,
    on: str | None,
    output: Output,
) -> int:
    """Write the inputs to run on a device, to tell whose fault its output is.

    MODEL is what `diagnose --weights` takes: a checkpoint, a .mlir, an npz; LAYER the Linear, where
    there are several. Some 50 rows: zeros, one-hot, random, a loud one, one with a NaN, for prefill
    and for decode; and a page that says what to run and how to bring the outputs back to `qassay
    diagnose`.
    """
    from qassay.cli import emit  # noqa: PLC0415 - imports NumPy
    from qassay.core.errors import InputError, UsageError  # noqa: PLC0415
    from qassay.core.text import safe  # noqa: PLC0415
    from qassay.report.document import unreadable  # noqa: PLC0415
    from qassay.report.of_probe import report_of  # noqa: PLC0415
    from qassay.run.probe import write_probes  # noqa: PLC0415
    from qassay.runtimes.sophgo.named import aimed_at  # noqa: PLC0415

    if output.file is not None and _is_one_of_both(output.file, destination):
        raise UsageError("the report would replace the inputs or their page",
                         path=safe(str(output.file)),
                         hint="name another file with --output-file")  # fmt: skip
    try:
        done = write_probes(
            Path(model),
            layer,
            destination,
            seed=seed,
            rows=rows,
            weight_bits=None if weight_bits is None else int(weight_bits),
            on=None if on is None else aimed_at(on),
        )
        report = report_of(done)
    except InputError as error:
        report = unreadable("probe", error.path or model, error)
    emit.emit(report, output)
    return report.exit_code()


for _param in command.params:
    # Here -o is the file of inputs; a report goes to a file by its long name only.
    if "--output-file" in _param.opts and "-o" in _param.opts:
        _param.opts.remove("-o")
