"""Q703."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.fitting import FitRule


class RuntimeFallsBack(FitRule, code="Q703", name="runtime-falls-back"):
    """A runtime runs these layers in another type or by another kernel than was asked for.

    ## What it does
    With `--on`: reports layers that the runtime leaves at 16 bits, quantizes though the checkpoint
    keeps them, or hands to another kernel. A warning where nothing is said about it, an info where
    a warning or a log line tells, or where another kernel takes the layer.

    ## Why it is bad
    The model is larger, slower or less exact than the command line says, and nobody knows.

    ## How to fix it
    Make the shape fit (another group size, padding), or ask for what the runtime does anyway.

    ## Example
    36 Linears (linear_attn.in_proj_b, linear_attn.in_proj_a): N = 16 is no multiple of 64, the
    lanes of bm1684x among which the weight reorder of this path (A16MatMul) deals scales and zero
    points; tpu-mlir 1.30.2 makes a plain 16-bit MatMul of it, without a word
    """

    severity = Severity.WARNING
    help = "make the shape fit, or ask for what the runtime does anyway"
    since = "0.1"
