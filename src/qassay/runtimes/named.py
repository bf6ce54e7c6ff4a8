"""`--on RUNTIME[:VARIANT][@VERSION]`: the one word for a runtime, wherever one is named."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qassay.core.errors import UsageError
from qassay.core.text import safe

_ON = re.compile(r"(?P<runtime>[\w.-]+)(:(?P<variant>[\w.-]+))?(@(?P<version>\S+))?")


@dataclass(frozen=True, slots=True)
class Named:
    """The parts of such a word.

    Attributes:
        runtime: In lower case.
        variant: Chip, kernel or target, in lower case; "" where none is named.
        version: As given; None where none is.
    """

    runtime: str
    variant: str
    version: str | None


def named(word: str) -> Named:
    """Return the parts of a word of `--on`; whether there is such a runtime is not looked at.

    Raises:
        UsageError: It is no such word.
    """
    found = _ON.fullmatch(word.strip())
    if found is None:
        raise UsageError(
            "--on names no runtime",
            expected="RUNTIME:VARIANT or RUNTIME:VARIANT@VERSION, such as sophgo:bm1684x@1.28.1",
            found=safe(repr(word), 60),
        )
    return Named(found["runtime"].lower(), (found["variant"] or "").lower(), found["version"])
