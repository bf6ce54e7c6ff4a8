"""Q604."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.comparing import TransformationRule


class ScaleMisassigned(TransformationRule, code="Q604", name="scale-misassigned"):
    """Scales or zero points belong to other groups or channels than in the other model.

    ## What it does
    `qassay compare` reports weights whose codes are equal and whose scales, zero points or
    minimums are those of the other model in other places: rolled by so many groups, permuted
    between groups or between rows, transposed, or reached by another `g_idx`. Each is checked on
    every row before it is reported.

    ## Why it is bad
    Each group is multiplied by the scale of another one. The scales themselves are sound, so that
    no look at one file alone can tell.

    ## How to fix it
    Write the scales in the order of the first model: transpose them if rows and groups changed
    places, and keep `g_idx` with the weight it was made for.

    ## Example
    `model.layers.0.mlp.up_proj.qweight`: scales are rolled by 1 group; with that undone the
    weight is equal to 'model.layers.0.mlp.up_proj.weight' of the first model
    """

    severity = Severity.ERROR
    help = "write scales, zero points and g_idx in the order of the first model"
    since = "0.1"
