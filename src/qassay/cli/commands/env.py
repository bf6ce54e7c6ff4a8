"""`qassay env`."""

from __future__ import annotations

import click

from qassay.cli.options import Output, output_options


@click.command()
@output_options
def command(output: Output) -> int:
    """Show versions, platform and kernels, for a bug report.

    Tells which kernels are used for which input, and whether compiled ones can be kept.
    """
    from qassay.cli.emit import emit  # noqa: PLC0415 - imports NumPy
    from qassay.cli.environment import environment_report  # noqa: PLC0415

    emit(environment_report(), output)
    return 0
