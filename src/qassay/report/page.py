"""What a command wants shown beside findings and coverage: tables, pairs, lines of text.

A command builds sections; a renderer lays them out. So a new command needs no new renderer, and
a new renderer serves every command. Cells are text that is already escaped.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        title: Its heading.
        right: Whether cells line up on the right, as numbers do.
    """

    title: str
    right: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under column headings. A cell of "" is left blank.

    Attributes:
        shown: How many rows are shown unless everything is asked for; None for all.
        listed: Whether its rows are tensors that the HTML report lists anyway, with more of each.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    shown: int | None = None
    listed: bool = False


@dataclass(frozen=True, slots=True)
class Pairs:
    """Names and values, one pair a line."""

    title: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Lines:
    """Text laid out already, line by line; `bare` text is for other programs to read."""

    title: str
    lines: tuple[str, ...]
    bare: bool = False


Section = Table | Pairs | Lines
