"""Q607."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.diagnosing import DiagnosisRule


class TailNotCropped(DiagnosisRule, code="Q607", name="tail-not-cropped"):
    """Padded output channels were not cut off, so that every row begins in the wrong place.

    ## What it does
    `qassay diagnose` reads the outputs anew, as rows of N' channels with N' the next multiple
    of the lanes, and reports this where every one of them is then what the weights give. It
    also reports outputs that still have their N' columns. The tail tells how the padding was
    made: zeros where codes equal their zero point, other numbers where it is zero bytes.

    ## Why it is bad
    The first row of a batch is right and every other one is shifted: a model that decodes well
    token by token fails in prefill. A tail that is not cropped before attention, reshape or
    residual goes into whatever reads it.

    ## How to fix it
    Crop to N channels, `Y = Y'[..., :N]`, before anything else reads the output. Pad with codes
    that equal the zero point, scale 1 and bias 0 (`qassay pad`).

    ## Example
    rows of 128 output channels were read as rows of 96: the tail of 32 was not cropped; it
    holds zeros: padded channels whose codes equal their zero point
    """

    severity = Severity.ERROR
    help = "crop the output to N channels before anything else reads it"
    since = "0.1"
