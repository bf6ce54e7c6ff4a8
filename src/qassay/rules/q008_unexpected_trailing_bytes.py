"""Q008."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.base import ContainerRule


class UnexpectedTrailingBytes(ContainerRule, code="Q008", name="unexpected-trailing-bytes"):
    """Bytes of the file belong to no tensor.

    ## What it does
    Reports bytes after the last tensor or between two tensors that are not padding, and padding
    that is not zero.

    ## Why it is bad
    Bytes that nobody owns mean that a size, a shape or a type in the header is wrong, that a
    tensor was removed carelessly, or that something was appended: weights that are not read, or a
    payload that should not be there.

    ## How to fix it
    Check shape and type of the tensor before the bytes. If they are right, write the file again.

    ## Example
    `4096 bytes after tensor 'output.weight' belong to no tensor; expected a file of 9216 to 9216
    bytes; found 13312 bytes`
    """

    severity = Severity.WARNING
    help = "find out what the bytes are; if they are nothing, write the file again"
    since = "0.1"
