"""Q001."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.base import ContainerRule


class TruncatedData(ContainerRule, code="Q001", name="truncated-data"):
    """The file ends before its header or a tensor does.

    ## What it does
    Compares where the header says that each field and each tensor ends with the size of the file.

    ## Why it is bad
    The missing weights do not exist. A loader refuses the file, or reads whatever lies in memory
    behind it.

    ## How to fix it
    Download or copy the file again and compare its size (better: its checksum) with the source. If
    the file was written by a converter, look for a full disk or a crash in its log.

    ## Example
    `tensor 'blk.1.ffn_up.weight' is cut: 64 of its 4096 bytes lie past the end of the file;
    expected a file of at least 9216 bytes; found 9152 bytes`
    """

    severity = Severity.ERROR
    help = "download or copy the file again and compare its size"
    since = "0.1"
