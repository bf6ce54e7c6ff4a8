"""Q105."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.base import ContainerRule


class AmbiguousEncoding(ContainerRule, code="Q105", name="ambiguous-encoding"):
    """The tensors of a weight can be read in several ways, and nothing decides which is meant.

    ## What it does
    Reports weights whose names, dtypes and shapes fit several encodings where the configuration
    names none of them, and weights with two scales that exclude each other (`weight_scale` and
    `weight_scale_inv`). Such a weight is not decoded, and its tensors are listed as not checked.

    ## Why it is bad
    Programs guess, each in its own way: the same file gives other weights in another program.

    ## How to fix it
    Put the configuration of the quantizer beside the weights (`quantization_config` in
    `config.json`), or remove the scale that does not belong there.

    ## Example
    `the tensors of model.layers.0.mlp.down_proj fit several encodings: awq, gptq`
    """

    severity = Severity.WARNING
    help = "put the quantizer's configuration beside the weights, so that one reading is left"
    since = "0.1"
