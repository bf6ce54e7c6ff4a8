"""Q701."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.fitting import FitRule


class RuntimeRejects(FitRule, code="Q701", name="runtime-rejects"):
    """A runtime stops at these layers: it has no path that takes them.

    ## What it does
    With `--on`: compares each Linear's shape, codes and groups with what the catalog of the runtime
    says, for the chip and version named. Layers that fail for one reason are one finding:
    `data.layers` names them, `data.stage` says where in the work it shows, `data.remedies` holds
    what was tried out and what each way costs. A kernel that refuses counts only where no other
    kernel of the runtime takes the layer.

    ## Why it is bad
    The conversion or the server ends with an error, often hours later, under a name that is not the
    layer's.

    ## How to fix it
    The "Fix:" line tells what helps: another group size, padding, keeping the layers at 16 bits,
    another chip or version; and what does not.

    ## Example
    36 Linears (linear_attn.in_proj_b, linear_attn.in_proj_a): N = 16 is no multiple of 64, the
    lanes of bm1684x among which the weight reorder of this path (A16MatMul) deals scales and zero
    points; tpu-mlir 1.28.1 aborts in --weight-reorder: 'invalid scale channel'
    """

    severity = Severity.ERROR
    help = "take another runtime, or keep these layers at 16 bits"
    since = "0.1"
