"""`qassay explain-log`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qassay.cli.options import (
    Judgement,
    Output,
    config_option,
    output_options,
    verdict_options,
)
from qassay.cli.paths import ModelPath

if TYPE_CHECKING:
    from qassay.report.document import Report


@click.command()
@click.argument("log", metavar="LOG", type=ModelPath())
@click.option(
    "--mlir",
    multiple=True,
    type=ModelPath(),
    metavar="FILE",
    help="A .mlir that the log names, where it does not lie beside the log. May be repeated.",
)
@verdict_options
@output_options
@config_option
def command(
    log: str,
    mlir: tuple[str, ...],
    judgement: Judgement,
    output: Output,
) -> int:
    """Turn a compiler's log into layers, rule and remedy.

    LOG is what tpu-mlir (model_deploy, llm_convert, tpuc-opt) printed, blocks that were compiled
    in parallel mixed or not. Says for each failing block its command, input and weight file, the
    step, the compiler's source line and the rule behind it, and what to do; with the .mlir files
    beside the log also which layers break the rule. Exit code 3: an error is not recognised.
    """
    from qassay.cli import emit  # noqa: PLC0415 - imports NumPy
    from qassay.core.errors import InputError  # noqa: PLC0415
    from qassay.report.document import unreadable  # noqa: PLC0415

    try:
        report = _run(log, mlir)
    except InputError as error:
        report = unreadable("explain-log", error.path or log, error)
    emit.emit(report, output)
    return report.exit_code(judgement.fail_on, allow_incomplete=judgement.allow_incomplete)


def _run(log: str, mlir: tuple[str, ...]) -> Report:
    from qassay.report.of_explain_log import report_of  # noqa: PLC0415
    from qassay.run.explain_log import explain_log  # noqa: PLC0415

    return report_of(explain_log(Path(log), [Path(one) for one in mlir]))
