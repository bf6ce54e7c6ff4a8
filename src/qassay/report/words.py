"""Numbers and names as reports print them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def size(nbytes: int) -> str:
    """Return a number of bytes in decimal units: `253.1 MB`."""
    if nbytes < 1000:
        return f"{nbytes} B"
    amount = float(nbytes)
    unit = 0
    while amount >= 999.95 and unit < len(_UNITS) - 1:
        amount /= 1000
        unit += 1
    return f"{amount:.1f} {_UNITS[unit]}"


def count(number: int, noun: str) -> str:
    """Return a number with its noun: `1 tensor`, `1,234 tensors`."""
    plural = noun if number == 1 else f"{noun}s"
    return f"{number:,} {plural}"


def number(value: float | str | None) -> str:
    """Return a measured number in at most five significant digits; `-` where there is none."""
    if value is None:
        return "-"
    if isinstance(value, (str, bool)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return "NaN" if value != value else f"{value:.5g}"  # noqa: PLR0124 - only NaN differs


def bits(nbytes: int, weights: int) -> float | None:
    """Return bits per weight to four decimals, None for no weights."""
    return round(nbytes * 8 / weights, 4) if weights else None


def shape(dims: Iterable[int]) -> str:
    """Return a shape as `[N, K]`."""
    return f"[{', '.join(str(dim) for dim in dims)}]"


def plain(text: str) -> str:
    """Return `text` as one printable line, backslashes left alone.

    For sentences, whose names were escaped where the sentence was made: the last guard before a
    terminal. Names alone go through `core.text.safe`, which can be read back.
    """
    if text.isprintable():
        return text
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if unicodedata.category(char)[0] in "CZ" and char != " ":
        return char.encode("unicode_escape", "surrogatepass").decode("ascii")
    return char


def width(text: str) -> int:
    """Return how many terminal columns `text` takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(unicodedata.combining(char) > 0 for char in text)
