"""How a report is to look: colour, width, how much of it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

import click

_STYLES = {
    "error": {"fg": "red", "bold": True},
    "warning": {"fg": "yellow", "bold": True},
    "info": {"fg": "cyan"},
    "good": {"fg": "green", "bold": True},
    "name": {"bold": True},
    "quiet": {"dim": True},
}


@dataclass(frozen=True, slots=True)
class Look:
    """How a report is to look.

    Attributes:
        color: Whether to write ANSI colours.
        width: Terminal columns to wrap sentences at; None (no terminal) never wraps.
        verbosity: -1 for the least, 0, 1 for everything.
        invocation: The command line that makes the same report again, "" where none is known.
    """

    color: bool = False
    width: int | None = None
    verbosity: int = 0
    invocation: str = ""

    def paint(self, text: str, style: str) -> str:
        """Return `text` in a style: `error`, `warning`, `info`, `good`, `name`, `quiet`."""
        if not self.color or not text:
            return text
        return click.style(text, **_STYLES[style])  # type: ignore[arg-type]

    def sentence(self, text: str, indent: str = "  ", *, hanging: str = "") -> Iterator[str]:
        """Yield the lines of a sentence, wrapped only for a terminal."""
        if self.width is None:
            yield indent + text
            return
        yield from textwrap.wrap(
            text,
            max(self.width - 1, 40),
            initial_indent=indent,
            subsequent_indent=indent + hanging,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [indent.rstrip()]
