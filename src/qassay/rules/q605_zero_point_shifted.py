"""Q605."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import TransformationRule


class ZeroPointShifted(TransformationRule, code="Q605", name="zero-point-shifted"):
    """All zero points, or all codes, differ by the same number from the other model's.

    ## What it does
    `qassay compare` reports weights that are equal but for one number that is added to every zero
    point, or to every code, modulo the number of codes. By 1: GPTQ v1 stores the zero point minus
    one, v2 stores it as it is, and one of the two was read as the other. By half of the codes:
    offset binary was read as two's complement, or the reverse.

    ## Why it is bad
    Every weight is off by that many steps of its group: a bias that adds up over a whole row.
    Modulo means that the codes at one end of the range land at the other.

    ## How to fix it
    Set `checkpoint_format` to what the file holds (`gptq` for v1, `gptq_v2`), or convert the zero
    points once.

    ## Example
    `model.layers.0.mlp.up_proj.qweight`: zero points are 1 lower (modulo 16); with that undone the
    weight is equal to 'model.layers.0.mlp.up_proj.weight' of the first model
    """

    severity = Severity.ERROR
    help = "name the right convention in the configuration (gptq or gptq_v2), or shift once"
    since = "0.1"
