"""Q002."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.base import ContainerRule


class OverlappingTensors(ContainerRule, code="Q002", name="overlapping-tensors"):
    """Two tensors claim the same bytes of the file.

    ## What it does
    Sorts the tensors by offset and reports each one that begins before the one ahead of it ends.

    ## Why it is bad
    At least one of the two has a wrong offset, shape or type, so its weights are another tensor's.
    Files that share bytes on purpose are not foreseen by the formats, and loaders refuse them.

    ## How to fix it
    Write the file again from its source. If only one offset is wrong, the gap that it left behind
    (Q008) shows where the tensor really lies.

    ## Example
    `tensor 'b.weight' begins inside tensor 'a.weight': 32 bytes are shared; expected an offset of
    320 or more; found 288`
    """

    severity = Severity.ERROR
    help = "write the file again; do not use the tensors that share bytes"
    since = "0.1"
