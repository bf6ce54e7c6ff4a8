"""Q615."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.diagnosing import DiagnosisRule


class ActivationsQuantized(DiagnosisRule, code="Q615", name="activations-quantized"):
    """The device quantizes the input, which this arithmetic does not.

    ## What it does
    `qassay diagnose` predicts the outputs with inputs quantized to int8, with one scale a row,
    a group or for all rows, and reports it where it gives all of them bit for bit. One-hot
    inputs come through int8 unharmed: only random rows show it.

    ## Why it is bad
    Weights of 4 bits with 16-bit activations (W4A16) were chosen because activations have
    outliers: one of them costs every other feature of its row most of its digits.

    ## How to fix it
    Compile the layer for 16-bit activations, or accept it and calibrate for W4A8.

    ## Example
    activations are quantized to int8, one scale a row, ties even
    """

    severity = Severity.ERROR
    help = "compile the layer for 16-bit activations"
    since = "0.1"
