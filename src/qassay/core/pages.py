"""Docstrings that are manual pages. `python -OO` takes them away: all else works without them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable

STRIPPED = sys.flags.optimize >= 2
"""Whether this process runs under `-OO`."""
_GONE = "python -OO has removed this page: run qassay without -OO to read it."


def page(subject: type) -> str:
    """Return the manual page of a declaration."""
    return inspect.cleandoc(subject.__doc__ or _GONE)


def first_sentence(subject: type) -> str:
    """Return the first sentence of that page."""
    return page(subject).splitlines()[0]


def demanded(parts: Iterable[str]) -> list[str]:
    """Return those of the parts of a declaration that it can have in this process."""
    return [part for part in parts if not (STRIPPED and part == "__doc__")]
