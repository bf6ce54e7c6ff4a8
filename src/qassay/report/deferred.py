"""A part of a document that is made when somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class Deferred(Mapping[str, Any]):
    """What a function returns, asked for once and only when needed: a text report needs none of it.

    Args:
        make: Returns the part; a function of a module, or a `partial` of one, can be pickled.
    """

    def __init__(self, make: Callable[[], Mapping[str, Any]]) -> None:
        self._make = make
        self._made: Mapping[str, Any] | None = None

    def _part(self) -> Mapping[str, Any]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: str) -> Any:
        return self._part()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._part())

    def __len__(self) -> int:
        return len(self._part())
