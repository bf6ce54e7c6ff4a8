"""Q003."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.base import ContainerRule


class MalformedHeader(ContainerRule, code="Q003", name="malformed-header"):
    """The header breaks the rules of its format.

    ## What it does
    Reads every field of the header and reports what the format does not allow: a wrong magic or
    version, counts and lengths that cannot be, unknown value types, repeated keys, names that are
    not UTF-8, shapes that do not fit the tensor's type. Things that the format allows and that
    loaders stumble over are graded warning.

    ## Why it is bad
    What follows a wrong length or type cannot be found at all; a wrong shape gives wrong weights.

    ## How to fix it
    Download the file again. If its checksum is that of the source, the program that wrote it has a
    defect: use a current version of it.

    ## Example
    `rows of tensor 'blk.0.attn_q.weight' hold 40 weights, no whole number of Q8_0 blocks; expected
    a multiple of 32; found 40`
    """

    severity = Severity.ERROR
    help = "download the file again; if that does not help, write it again"
    since = "0.1"
