"""`qassay fit`."""

from __future__ import annotations

from pathlib import Path

import click

from qassay.cli.options import (
    Judgement,
    Output,
    RuleChoice,
    config_option,
    output_options,
    rule_options,
    runtime_options,
    severities,
    verdict_options,
)
from qassay.cli.paths import ModelPath


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=ModelPath())
@runtime_options(required=True)
@click.option(
    "--to",
    metavar="MODE",
    envvar="QASSAY_TO",
    help="What floats are quantized to there, as the runtime spells it (w4bf16).  [default: what "
    "the checkpoint states]",
)
@click.option(
    "--group-size",
    type=click.IntRange(-1, 1 << 31),
    envvar="QASSAY_GROUP_SIZE",
    help="Weights a group, where the runtime quantizes floats; -1 or 0 for one scale a row. A "
    "quantized checkpoint's own groups count before it.  [default: 64]",
)
@rule_options
@verdict_options
@output_options
@config_option
def command(
    models: tuple[str, ...],
    on: str,
    tp: int,
    to: str | None,
    group_size: int | None,
    choice: RuleChoice,
    judgement: Judgement,
    output: Output,
) -> int:
    """Tell which Linears a runtime takes, before anything is converted.

    MODEL is a model file or folder (headers are read, no weights), a config.json alone, or a table
    of shapes (CSV, JSON or YAML with name, N and K). The report says which Linears fail and why,
    what the runtime does about it, what would fix it, and what that costs.
    """
    from qassay.cli import emit, fitting  # noqa: PLC0415 - imports NumPy
    from qassay.run.options import FitOptions  # noqa: PLC0415

    wanted = FitOptions(on, to, group_size, tp)
    report = fitting.run([Path(model) for model in models], wanted, choice, severities())
    emit.emit(report, output)
    return report.exit_code(judgement.fail_on, allow_incomplete=judgement.allow_incomplete)
