"""Q617."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import FaultRule


class ValuesNotFinite(FaultRule, code="Q617", name="values-not-finite"):
    """Values of the second model are NaN or infinite, be they so in the first model or not.

    ## What it does
    `qassay compare` with a float model counts values that are not finite, before it measures
    anything: those that were ordinary numbers in the source, and those that are not finite on both
    sides. Neither takes part in any other number of the report.

    ## Why it is bad
    One NaN in a weight makes every output that it takes part in NaN. Comparers that replace NaN by
    zero, or let NaN equal NaN, call such tensors close.

    ## How to fix it
    Where the source is finite, look at the scales: an f16 scale overflows from weights of 524,160
    on (Q4_0), a group of equal weights may divide by zero. Where it is not, mend the source first.

    ## Example
    `blk.0.ffn_up.weight`: 32 of 65,536 weights are ordinary numbers in the source and NaN or
    infinite here
    """

    severity = Severity.ERROR
    help = "look at the scales there (`qassay check`), or mend the source, and quantize again"
    since = "0.1"
