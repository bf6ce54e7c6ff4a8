"""`qassay explain`."""

from __future__ import annotations

import click

from qassay.cli.options import Output, output_options


@click.command()
@click.argument("subject", metavar="CODE|ENCODING|schema")
@output_options
def command(subject: str, output: Output) -> int:
    """Explain a rule, an encoding, or the JSON report.

    Prints the manual page of a rule, the layout of an encoding, or the schema of the report.
    Examples: qassay explain Q201, qassay explain scale-not-finite, qassay explain Q4_K, qassay
    explain schema.
    """
    from qassay.cli import emit, subjects  # noqa: PLC0415 - imports NumPy

    if subject.lower() == "schema":
        emit.write_text(subjects.schema(), output)
    else:
        emit.emit(subjects.explain(subject), output)
    return 0
