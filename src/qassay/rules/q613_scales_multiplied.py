"""Q613."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import TransformationRule


class ScalesMultiplied(TransformationRule, code="Q613", name="scales-multiplied"):
    """All scales of a weight are the other model's times one number.

    ## What it does
    `qassay compare` reports weights that are equal but for one factor on every scale (or minimum),
    or whose scale of the whole tensor is inverted. By 2: an 8-bit float was meant as E4M3 FNUZ on
    one side and as E4M3 FN on the other. Inverted: NVFP4 of compressed-tensors divides by its
    `weight_global_scale`, modelopt and GGUF multiply by theirs.

    ## Why it is bad
    The layer's output is that many times too large or too small. With an inverted scale that is
    usually many thousand times.

    ## How to fix it
    Multiply the scales back, or invert the scale of the tensor once when converting between
    compressed-tensors and modelopt or GGUF.

    ## Example
    `model.layers.0.mlp.up_proj.weight_packed`: the scale of the whole tensor is inverted (divisor
    against multiplier); with that undone the weight is equal to
    'model.layers.0.mlp.up_proj.weight' of the first model
    """

    severity = Severity.ERROR
    help = "divide the scales by the factor, or invert the scale of the tensor once"
    since = "0.1"
