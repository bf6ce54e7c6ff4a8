"""Q608."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import FaultRule


class NanHidden(FaultRule, code="Q608", name="nan-hidden"):
    """NaN or infinity has become an ordinary number.

    ## What it does
    `qassay compare` with a float model counts weights that are not finite in the source and finite
    in the quantized model. `qassay diagnose` does the same with outputs of a device: an input or a
    weight that is NaN has to show in every output that it reaches.

    ## Why it is bad
    A NaN that vanishes turns into an ordinary wrong number. Nothing later can tell it from a right
    one, and where it began is no longer to be found.

    ## How to fix it
    Mend the source, and quantize again with a quantizer that refuses NaN or lets it through. On a
    device: no maximum, clamp or conversion to integers that drops it.

    ## Example
    `blk.0.ffn_up.weight`: 1 of 65,536 weights is NaN or infinite in the source and an ordinary
    number here
    """

    severity = Severity.ERROR
    help = "mend the source and quantize again; let NaN through where it comes up"
    since = "0.1"
