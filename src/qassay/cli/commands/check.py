"""`qassay check`."""

from __future__ import annotations

from pathlib import Path

import click

from qassay.cli.options import (
    Aim,
    Judgement,
    Output,
    RuleChoice,
    Work,
    config_option,
    output_options,
    rule_options,
    severities,
    target_options,
    verdict_options,
    work_options,
)
from qassay.cli.paths import ModelPath


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, type=ModelPath())
@target_options
@rule_options
@verdict_options
@output_options
@work_options
@config_option
def command(
    models: tuple[str, ...],
    aim: Aim,
    choice: RuleChoice,
    judgement: Judgement,
    output: Output,
    work: Work,
) -> int:
    """Check that model files are sound.

    MODEL is a GGUF or safetensors file, a folder of them, or an index of shards. Reads every byte
    once; reports what is wrong with structure, scales, codes and float values, and where. With
    --to, says as well what quantizing the float tensors would do to them.
    """
    from qassay.cli import checking, emit  # noqa: PLC0415 - imports NumPy

    paths = [Path(model) for model in models]
    quiet = output.verbosity < 0
    report = checking.run(paths, choice, severities(), work, aim=aim, quiet=quiet)
    emit.emit(report, output)
    checking.warn_uncached(quiet=quiet)
    return report.exit_code(judgement.fail_on, allow_incomplete=judgement.allow_incomplete)
