"""Q704."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.fitting import FitRule


class RuntimePads(FitRule, code="Q704", name="runtime-pads"):
    """A runtime pads these layers with zeros, so that they take more memory than they should.

    ## What it does
    With `--on`: reports layers whose shape the runtime rounds up. A warning where nothing is said
    about it, an info where a warning tells.

    ## Why it is bad
    The result is right, but larger than its bits a weight promise, and every forward pass computes
    with the zeros.

    ## How to fix it
    Nothing has to be done. Where memory is short, keep such layers in another type.

    ## Example
    24 Linears (mlp.down_proj): K = 896 is no multiple of 1024; they are padded, without a word
    """

    severity = Severity.WARNING
    help = "nothing has to be done; expect more memory"
    since = "0.1"
