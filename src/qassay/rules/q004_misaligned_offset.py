"""Q004."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.base import ContainerRule


class MisalignedOffset(ContainerRule, code="Q004", name="misaligned-offset"):
    """A tensor does not begin where the format's alignment asks for.

    ## What it does
    Checks that the offset of each tensor is a multiple of the alignment: `general.alignment` (32
    when it is not stated) in GGUF, the element size in safetensors.

    ## Why it is bad
    Loaders that map the file into memory either refuse it or read the tensor slowly or with faults
    on processors that need aligned addresses. In GGUF an odd offset is often simply a wrong one.

    ## How to fix it
    Write the file again with a current version of its converter.

    ## Example
    `the offset of tensor 'b.weight' is no multiple of the alignment 32; expected a multiple of 32;
    found 300`
    """

    severity = Severity.WARNING
    help = "write the file again with the alignment that its format asks for"
    since = "0.1"
