"""`qassay rules`."""

from __future__ import annotations

import click

from qassay.cli.options import Output, output_options


@click.command()
@output_options
def command(output: Output) -> int:
    """List the rules and what each finds."""
    from qassay.cli.emit import emit  # noqa: PLC0415 - imports NumPy
    from qassay.report.manual import rules_report  # noqa: PLC0415
    from qassay.rules.registry import all_rules  # noqa: PLC0415

    emit(rules_report(all_rules()), output)
    return 0
