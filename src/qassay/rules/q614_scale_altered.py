"""Q614."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.diagnosing import DiagnosisRule


class ScaleAltered(DiagnosisRule, code="Q614", name="scale-altered"):
    """Scales are stored with fewer digits than the device's type has, or with others.

    ## What it does
    `qassay diagnose` predicts the outputs with scales cut off instead of rounded, with a few
    decimals, as powers of two, in another 16-bit type, or not rounded at all, and reports the
    one that gives all of them bit for bit.

    ## Why it is bad
    Every weight of a group is off by the same factor. Two decimals of a scale of 0.004 are
    nothing at all; bits cut off make all weights smaller, so that errors add up.

    ## How to fix it
    Round scales to the nearest number of the type that the device takes, once.

    ## Example
    scales are cut to bf16, not rounded: 52 of 52 rows, 9,792 outputs equal bit for bit
    """

    severity = Severity.ERROR
    help = "round scales to nearest in the type that the device takes"
    since = "0.1"
