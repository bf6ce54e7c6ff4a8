"""`qassay inspect`."""

from __future__ import annotations

import click

from qassay.cli.options import Output, output_options
from qassay.cli.paths import ModelPath


@click.command()
@click.argument("model", type=ModelPath())
@click.option("--key", metavar="KEY", help="Print one metadata value, arrays in full.")
@output_options
def command(model: str, key: str | None, output: Output) -> int:
    """Show what a model file holds, from its headers alone.

    Metadata, tensors, encodings, bits per weight by kind of tensor. Weights are not read: `qassay
    check` tells whether they are sound.
    """
    from qassay.cli import emit, inspecting  # noqa: PLC0415 - imports NumPy

    report = inspecting.run(model, key, lambda report: emit.emit(report, output))
    return report.exit_code()
