"""Which Linears of a `.mlir` break the rule that a failure is about."""

from __future__ import annotations

from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.runtimes.sophgo.chips import PER_CHANNEL_GROUP, chip_of
from qassay.runtimes.sophgo.failures import Failure
from qassay.runtimes.sophgo.mlir import MatMulRecord, MlirModule


def offending(
    module: MlirModule, failure: Failure | None, chip: str
) -> tuple[tuple[MatMulRecord, ...], str]:
    """Return the Linears that break a failure's rule, and a sentence on them.

    Args:
        module: The `.mlir` that the failing command read.
        failure: The failure; None where it is not known.
        chip: As `--chip` spells it; empty if unknown.
    """
    quantized = [one for one in module.linears if one.quantized]
    if failure is None:
        return (), "the error is not known to qassay, so no layer is named"
    if failure.id == "zero-point-type":
        bad = [one for one in quantized if one.zero_point and one.zero_point.type.dtype == "ui8"]
        return tuple(bad), f"{len(bad)} Linears with 8-bit zero points"
    if failure.id == "bias-type":
        plain = [one for one in module.linears if not one.quantized and one.bias is not None]
        bad = [one for one in plain if one.bias and one.bias.type.dtype != "f32"]
        return tuple(bad), f"{len(bad)} MatMuls with a bias that is not float32"
    if failure.id not in ("scale-channel", "weight-size"):
        return (), "this failure is not about one layer"
    try:
        lanes = chip_of(chip).lanes
    except UsageError:
        return (), f"the lanes of {safe(chip, 40) or 'the chip'} are not known"
    if failure.id == "scale-channel":
        bad = [one for one in quantized if _channels(one) % lanes]
        rule = f"N % {lanes} != 0"
    else:
        bad = [one for one in quantized if _channels(one) % lanes or not _whole_groups(one)]
        rule = f"K % g != 0 or N % {lanes} != 0"
    if not bad:
        return (), f"none of the {len(quantized)} A16MatMul in that file breaks {failure.condition}"
    return tuple(bad), f"{len(bad)} of {len(quantized)} A16MatMul have {rule}"


def _channels(record: MatMulRecord) -> int:
    """Return what the check looks at: dimension 0 of the scale, before the reorder; 0 if none."""
    shape = record.scale.type.shape if record.scale is not None else None
    if record.q_group_size is None or record.q_group_size <= 0 or record.lanes is not None:
        return 0
    return shape[0] if shape else 0


def _whole_groups(record: MatMulRecord) -> bool:
    group = record.q_group_size or PER_CHANNEL_GROUP
    return record.k is None or record.k % group == 0
