"""Laying out sections as text: columns line up, nothing is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qassay.report.look import Look
from qassay.report.page import Column, Lines, Pairs, Section, Table
from qassay.report.words import width


def section(part: Section, look: Look) -> Iterator[str]:
    """Yield the lines of one section, its title first."""
    if part.title:
        yield look.paint(part.title, "name")
    if isinstance(part, Table):
        yield from _table(part, look)
    elif isinstance(part, Pairs):
        longest = max((width(name) for name, _ in part.pairs), default=0)
        for name, value in part.pairs:
            yield f"  {look.paint(_padded(name, longest), 'quiet')}  {value}".rstrip()
    elif isinstance(part, Lines):
        for line in part.lines:
            yield line if part.bare else f"  {line}".rstrip()


def _table(table: Table, look: Look) -> Iterator[str]:
    rows = table.rows if look.verbosity > 0 else table.rows[: table.shown]
    widths = [
        max([width(column.title), *(width(row[place]) for row in rows)])
        for place, column in enumerate(table.columns)
    ]
    titles = tuple(column.title for column in table.columns)
    yield look.paint(_row(titles, table.columns, widths), "quiet")
    for row in rows:
        yield _row(row, table.columns, widths)
    if len(rows) < len(table.rows):
        rest = len(table.rows) - len(rows)
        yield from look.sentence(f"and {rest:,} more (-v lists all, as the JSON report does)")
    if table.note:
        yield from look.sentence(table.note)


def _row(cells: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> str:
    laid = [
        _padded(cell, size, right=column.right)
        for cell, column, size in zip(cells, columns, widths, strict=True)
    ]
    return f"  {'  '.join(laid)}".rstrip()


def _padded(text: str, size: int, *, right: bool = False) -> str:
    gap = " " * max(0, size - width(text))
    return gap + text if right else text + gap
