"""Collecting defects: every one counted, the first thousand of a kind kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from qassay.core.container import Defect

MOST_OF_A_CODE = 1000
"""A hostile file can hold a fault in every entry; more than this of one code is only counted."""

HEADER_BROKEN = "its header could not be read to the end; tensors behind the break are not known"
"""Why a file whose header breaks off is not fully checked."""


class HeaderError(Exception):
    """Reading of a header cannot go on; caught inside this package, never raised out of it.

    Args:
        code: The rule that will report it.
        message: One sentence naming the defect.
        offset: Byte offset in the file of the field that is wrong.
        expected: What a sound file holds there.
        found: What this one holds.
        fix: What to do, where the rule's own advice would not help.
    """

    def __init__(
        self,
        code: str,
        message: str,
        offset: int,
        *,
        expected: str | int | None = None,
        found: str | int | None = None,
        fix: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.offset = offset
        self.expected = expected
        self.found = found
        self.fix = fix


class DefectLog:
    """The defects of one file while it is read.

    Args:
        path: The file, as reports name it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._defects: list[Defect] = []
        self._counts: Counter[str] = Counter()

    def add(
        self,
        code: str,
        message: str,
        *,
        tensor: str | None = None,
        at: int | None = None,
        expected: str | int | None = None,
        found: str | int | None = None,
        fix: str = "",
        minor: bool = False,
        **data: Any,
    ) -> None:
        """Record a defect; arguments as in `Defect` (`at` is its byte offset, `fix` its help)."""
        self._counts[code] += 1
        if self._counts[code] > MOST_OF_A_CODE:
            return
        self._defects.append(
            Defect(
                code=code,
                message=message,
                path=self.path,
                tensor=tensor,
                byte_offset=at,
                expected=expected,
                found=found,
                help=fix,
                minor=minor,
                data=data,
            )
        )

    def add_error(self, error: HeaderError) -> None:
        """Record what ended the reading of a header."""
        self.add(
            error.code,
            error.message,
            at=error.offset,
            expected=error.expected,
            found=error.found,
            fix=error.fix,
        )

    def take(self, defects: Iterable[Defect]) -> None:
        """Record defects that another log has finished."""
        self._defects.extend(defects)

    def finish(self) -> list[Defect]:
        """Return the defects; one more per code says how many were only counted."""
        defects = list(self._defects)
        for code, count in self._counts.items():
            more = count - MOST_OF_A_CODE
            if more > 0:
                defects.append(
                    Defect(
                        code=code,
                        message=f"{more} more defects of this kind are not listed",
                        path=self.path,
                        data={"count": more},
                    )
                )
        return defects
