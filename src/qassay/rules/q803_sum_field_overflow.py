"""Q803."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.diagnosing import DiagnosisRule


class SumFieldOverflow(DiagnosisRule, code="Q803", name="sum-field-overflow"):
    """A sum leaves the range of the accumulator, or of the field that keeps it.

    ## What it does
    `qassay diagnose` reports an f16 accumulator where the outputs that are not finite are just
    those whose products add up beyond 65504: each has a sum of magnitudes above 60000, one at
    least a true sum above 65504, and nothing that stayed finite is larger than that.

    ## Why it is bad
    Loud inputs, which real activations have, turn into infinities; quiet ones look perfect.

    ## How to fix it
    Accumulate in float32, or scale the input or the weight down and the output up.

    ## Example
    4 outputs of 192 overflow as in an f16 accumulator: each adds up beyond 65504
    """

    severity = Severity.WARNING
    help = "accumulate in float32"
    since = "0.1"
