"""`qassay compare`."""

from __future__ import annotations

from pathlib import Path

import click

from qassay.cli.options import (
    Judgement,
    Output,
    RuleChoice,
    config_option,
    output_options,
    progress_option,
    rule_options,
    severities,
    verdict_options,
)
from qassay.cli.paths import ModelPath


@click.command()
@click.argument("reference", metavar="REF", type=ModelPath())
@click.argument("other", metavar="OTHER", type=ModelPath())
@rule_options
@verdict_options
@progress_option
@output_options
@config_option
def command(
    reference: str,
    other: str,
    choice: RuleChoice,
    judgement: Judgement,
    no_progress: bool,
    output: Output,
) -> int:
    """Tell what quantizing cost, or whether two models hold the same quantization.

    REF and OTHER are files or folders in any packings that `check` reads. Weights are matched by
    name (GGUF and Hugging Face names alike). A float REF and a quantized OTHER are measured: is the
    error what the scheme should cost, and if not, what kind of thing went wrong. Two quantized
    models are compared in one canonical form: equal, equal up to a transformation that is named and
    verified on every row, or different, where and by how many steps. Findings are about OTHER.
    """
    from qassay.cli import comparing, emit  # noqa: PLC0415 - imports NumPy

    shown = not no_progress and output.verbosity >= 0
    report = comparing.run(
        Path(reference),
        Path(other),
        choice,
        severities(),
        shown=shown,
        pictures=output.format != "text",
    )
    emit.emit(report, output)
    return report.exit_code(judgement.fail_on, allow_incomplete=judgement.allow_incomplete)
