"""Q602."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import FaultRule


class RoundingBias(FaultRule, code="Q602", name="rounding-bias"):
    """Codes are rounded the wrong way, for weights of one sign or of both.

    ## What it does
    `qassay compare` of a float model with a quantized one adds up, apart for weights below and
    above zero, by how many steps codes lie off the nearest code. Rounding to the nearest gives 0,
    and so do methods that move codes on purpose. It reports a mean of more than 0.2 steps:
    +1 below zero and 0 above is `(int)(x + 0.5)`, a cast that cuts off toward zero; +0.5 below and
    -0.5 above cuts the fraction off; -0.5 on both sides rounds down.

    ## Why it is bad
    Errors of one sign do not cancel: they add up over every row, as a bias of each output.

    ## How to fix it
    Round with `roundf`, `rintf` or `lroundf`, or add 0.5 with the sign of the number, and quantize
    again.

    ## Example
    `blk.0.ffn_up.weight`: codes are off by +0.99 steps on average for weights below zero and by
    +0.00 above, as (int)(x + 0.5) rounds them; the error is 2.7 times what the nearest codes cost
    """

    severity = Severity.WARNING
    help = "round to the nearest (roundf, rintf) and quantize again"
    since = "0.1"
