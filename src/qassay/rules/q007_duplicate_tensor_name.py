"""Q007."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.base import ContainerRule


class DuplicateTensorName(ContainerRule, code="Q007", name="duplicate-tensor-name"):
    """A tensor name appears twice.

    ## What it does
    Reports every tensor name that a file, or the files of one sharded model, list more than once.

    ## Why it is bad
    Which of the two is used depends on the loader; most take the last one silently.

    ## How to fix it
    Find out which of the two is right and write the file again without the other one.

    ## Example
    `tensor name 'blk.0.attn_q.weight' appears twice; expected every name once; found again at byte
    431, first at byte 310`
    """

    severity = Severity.ERROR
    help = "write the file again with every name once"
    since = "0.1"
