"""Q601."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import FaultRule


class ErrorAboveBound(FaultRule, code="Q601", name="error-above-bound"):
    """A quantized weight is further from its source than its scheme explains.

    ## What it does
    `qassay compare` of a float model with a quantized one works out what quantizing should cost:
    from the encoding, and from the range of each group of the source. It reports a tensor whose
    RMSE is more than 2.5 times that, rows above 4 times, columns and groups above 5 and 6 times;
    rows and columns that decode to zeros; and weights that lie beyond all codes of their group.
    Known faults (other rows, shifted zero points, swapped nibbles) are undone first and reported by
    their own rules. Sound files, those of GPTQ and searched scales among them, stay below 1.4.
    What is above is looked at again: rows whose error is 1/100 of the usual, weights of few
    distinct values, groups that were given up for a column of great importance, and single columns
    where GPTQ chose all codes together are not reported.
    An error where a row or column is lost, codes are saturated, or a tensor or a row costs more
    than 6 times what it should; a warning elsewhere.

    ## Why it is bad
    What is beyond the expected error is damage, not rounding: it can be avoided at the same size.

    ## How to fix it
    Quantize the tensor again from the source. The message tells codes from scales: codes that are
    not the nearest were moved or rounded wrongly, scales that are too large or too small were
    computed from other weights, or stored too coarsely. A group whose weights all have one sign
    needs a quantizer that extends its range to zero, or a symmetric one.

    ## Example
    `model.layers.0.mlp.up_proj.weight`: the error is 4.2 times what ggml.q4_k should cost here
    (codes: 4.1 times what the nearest would cost; scales: 1.02 times)
    """

    severity = Severity.WARNING
    help = "quantize the tensor again from its source, and compare again"
    since = "0.1"
