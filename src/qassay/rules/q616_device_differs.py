"""Q616."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.diagnosing import DiagnosisRule


class DeviceDiffers(DiagnosisRule, code="Q616", name="device-differs"):
    """A device's outputs are not what its weights give, and no single fault explains all of it.

    ## What it does
    `qassay diagnose` reports this where outputs differ by more than rounding and none of the
    faults that it knows, nor any pair of them, gives these outputs; where a fault explains a
    part of the difference only, and says which part; and where whole output channels give
    nothing. It never names the least bad guess. Of two dumps of a whole model it names the first
    tensor, in graph order, of another shape, with channels of zeros, or with an error beyond
    `--limit`.

    ## Why it is bad
    The layer computes something else than its weights say.

    ## How to fix it
    Run `qassay probe` for the layer, if these were other inputs, and diagnose its outputs: one-
    hot rows take sums, accumulators and activations out of the question. Then look at the worst
    channels.

    ## Example
    differs from what the weights give in 96 of 96 output channels, and none of 413 faults and
    16,437 pairs explains it
    """

    severity = Severity.ERROR
    help = "run the inputs of `qassay probe` on the device, and diagnose those"
    since = "0.1"
