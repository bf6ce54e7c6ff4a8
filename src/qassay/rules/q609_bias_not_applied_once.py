"""Q609."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.diagnosing import DiagnosisRule


class BiasNotAppliedOnce(DiagnosisRule, code="Q609", name="bias-not-applied-once"):
    """The bias is not added, added twice, subtracted, or that of other channels.

    ## What it does
    `qassay diagnose` predicts the outputs with the bias left out, added twice (rounded in
    between or not) and subtracted, and reports the one that gives all of them. An input of
    zeros shows nothing but the bias.

    ## Why it is bad
    Every output of a channel is off by the same number, whatever the input. Cosines stay near
    one.

    ## How to fix it
    Add it once: in the Linear, or in a separate addition, not in both. A Linear that was split
    or that fell back to another operation is where it gets lost or doubled.

    ## Example
    the bias is added twice: 52 of 52 rows, 9,792 outputs equal bit for bit
    """

    severity = Severity.ERROR
    help = "add the bias once: in the Linear, or behind it"
    since = "0.1"
