"""`qassay env`."""

from __future__ import annotations

import click

from qassay.cli.options import Output, output_options


@click.command()
@output_options
def command(output: Output) -> int:
    """Show versions, which kernels are used, and whether compiled ones can be kept.

    Paste it into a bug report.
    """
    from qassay.cli.emit import emit  # noqa: PLC0415 - imports NumPy
    from qassay.cli.environment import environment_report  # noqa: PLC0415

    emit(environment_report(), output)
    return 0
