"""`qassay encodings`."""

from __future__ import annotations

import click

from qassay.cli.options import Output, output_options


@click.command()
@output_options
def command(output: Output) -> int:
    """List the encodings: sizes, fields, formulas."""
    from qassay.cli.emit import emit  # noqa: PLC0415 - imports NumPy
    from qassay.encodings.registry import all_encodings  # noqa: PLC0415
    from qassay.report.manual import encodings_report  # noqa: PLC0415

    emit(encodings_report(tuple(all_encodings().values())), output)
    return 0
