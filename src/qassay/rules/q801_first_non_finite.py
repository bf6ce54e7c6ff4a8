"""Q801."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.diagnosing import DiagnosisRule


class FirstNonFinite(DiagnosisRule, code="Q801", name="first-non-finite"):
    """An output is NaN or infinite where it should be finite.

    ## What it does
    `qassay diagnose` counts the outputs of a device that are not finite though weights and
    inputs give finite ones, and says where the first is. Of two dumps of a whole model it names
    the first tensor, in graph order, that is not finite.

    ## Why it is bad
    NaN spreads: every later layer, and every later token, is lost.

    ## How to fix it
    Look at the scales of the channels concerned, and at the layer's input: a value beyond f16
    that is converted, a division by a scale of zero, memory that was never written.

    ## Example
    4 of 9,984 outputs are not finite where they should be, the first in row 49, channel 17
    """

    severity = Severity.ERROR
    help = "look at the scale and the input of the first output that is not finite"
    since = "0.1"
