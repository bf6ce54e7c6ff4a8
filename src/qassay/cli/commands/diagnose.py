"""`qassay diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from qassay.report.document import Report
    from qassay.run.options import CheckOptions


@click.command()
@click.option(
    "--weights",
    type=ModelPath(),
    metavar="FILE",
    help="The weights that the device has: a checkpoint, an npz with qweight, scales, qzeros, or "
    "a .mlir of tpu-mlir with its npz beside it.",
)
@click.option(
    "--inputs",
    type=ModelPath(),
    metavar="FILE",
    help="What it was given: npz, npy, safetensors, JSON of polygraphy, or a folder of dumps with "
    "a JSON of shapes.",
)
@click.option(
    "--device", required=True, type=ModelPath(), metavar="FILE", help="What came out, the same."
)
@click.option(
    "--float",
    "reference",
    type=ModelPath(),
    metavar="FILE",
    help="The float reference: the weights before they were quantized, or their outputs. Without "
    "--weights: a dump of the whole model, to be compared with --device tensor by tensor.",
)
@click.option(
    "--mlir",
    "graph",
    type=ModelPath(),
    metavar="FILE",
    help="Of whole dumps: the .mlir of the device's model, whose order of operations counts.",
)
@click.option(
    "--limit",
    type=click.FloatRange(0),
    metavar="SHARE",
    help="Of whole dumps: a tensor is bad whose error (RMS) is beyond this share of its size; 0.5.",
)
@click.option("--layer", metavar="NAME", help="The layer, where the weights hold several.")
@click.option("--float-layer", metavar="NAME", help="Its name in --float, where it is another.")
@click.option("--input-name", metavar="NAME", help="The array of inputs, where there are several.")
@click.option("--output-name", metavar="NAME", help="The array of outputs, the same.")
@click.option("--group-size", type=click.IntRange(1), metavar="G", help="Weights a group.")
@click.option("--weight-bits", type=click.Choice(["4", "8"]), help="Width of the codes in an npz.")
@click.option(
    "--on",
    metavar="RUNTIME",
    envvar="QASSAY_ON",
    help="The chip and the version of its compiler: sophgo:bm1684x@1.30.2, ...",
)
@click.option("--no-pairs", is_flag=True, help="Try no two faults at once.")
@rule_options
@verdict_options
@progress_option
@output_options
@config_option
def command(
    device: str,
    no_pairs: bool,
    choice: RuleChoice,
    judgement: Judgement,
    no_progress: bool,
    output: Output,
    **given: Any,
) -> int:
    """Tell whose fault a device's wrong output is.

    Compares what came out of one Linear with what its weights give for the same inputs, under
    every arithmetic that is documented, bit for bit. Splits the error into what quantization cost
    and what the device made of it, and names the fault: bias, channels, nibbles, zero points,
    scales, groups, tail, activations, accumulator, NaN, weights of another layer. Where nothing
    explains the output, it says so.

    With --float and --device alone, both are dumps of a whole model: every tensor is compared,
    and the first bad one in graph order named.
    """
    from qassay.cli import emit  # noqa: PLC0415 - imports NumPy
    from qassay.cli.choosing import chosen_rules  # noqa: PLC0415
    from qassay.core.errors import InputError  # noqa: PLC0415
    from qassay.report.document import unreadable  # noqa: PLC0415

    options = chosen_rules(choice, severities())
    of_dumps = given["weights"] is None or given["inputs"] is None
    _refuse_nothing(options, of_dumps=of_dumps)
    try:
        if of_dumps:
            shown = not no_progress and output.verbosity >= 0
            report = _of_dumps(given, Path(device), options, shown=shown)
        else:
            report = _of_one(given, Path(device), options, pairs=not no_pairs)
    except InputError as error:
        report = unreadable("diagnose", error.path or device, error)
    emit.emit(report, output)
    return report.exit_code(judgement.fail_on, allow_incomplete=judgement.allow_incomplete)


def _refuse_nothing(options: CheckOptions, *, of_dumps: bool) -> None:
    """Refuse rules of which none is about outputs: nothing would be found, and read as clean."""
    from qassay.core.errors import UsageError  # noqa: PLC0415
    from qassay.rules.dumping import CODES  # noqa: PLC0415
    from qassay.rules.registry import NAMED_BY_DIAGNOSES  # noqa: PLC0415

    asked = CODES if of_dumps else NAMED_BY_DIAGNOSES
    if not any(map(options.runs, asked)):
        raise UsageError(
            "nothing would be diagnosed: no rule is left",
            expected=f"at least one of {', '.join(asked)}",
            hint="select other rules, or ignore fewer",
        )


def _of_dumps(given: dict[str, Any], device: Path, options: CheckOptions, *, shown: bool) -> Report:
    """Compare two dumps of a whole model."""
    from qassay.cli.dumping import refuse_parts, whole  # noqa: PLC0415

    of_one = ("weights", "inputs", "layer", "on", "float_layer", "input_name", "output_name",
              "group_size", "weight_bits")  # fmt: skip
    named = [f"--{name.replace('_', '-')}" for name in of_one if given[name] is not None]
    refuse_parts(given["reference"], named)
    reference = Path(str(given["reference"]))
    return whole(reference, device, given["graph"], given["limit"], options, shown=shown)


def _of_one(given: dict[str, Any], device: Path, options: CheckOptions, *, pairs: bool) -> Report:
    """Diagnose one Linear."""
    from qassay.core.errors import UsageError  # noqa: PLC0415
    from qassay.report.of_diagnose import report_of  # noqa: PLC0415
    from qassay.run.diagnose import Asked, diagnose  # noqa: PLC0415
    from qassay.runtimes.sophgo.named import aimed_at  # noqa: PLC0415

    if given["graph"] is not None or given["limit"] is not None:
        raise UsageError(
            "--mlir and --limit are for dumps of a whole model",
            hint="leave out --weights and --inputs, or these",
        )
    asked = Asked(
        Path(given["weights"]),
        Path(given["inputs"]),
        device,
        None if given["reference"] is None else Path(given["reference"]),
        given["layer"],
        given["float_layer"],
        given["input_name"],
        given["output_name"],
        given["group_size"],
        None if given["weight_bits"] is None else int(given["weight_bits"]),
        None if given["on"] is None else aimed_at(given["on"]),
        pairs=pairs,
    )
    return report_of(diagnose(asked, options))
