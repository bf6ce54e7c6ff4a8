"""Values out of a configuration, each checked before it is believed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from qassay.containers.strict_json import is_integer
from qassay.core.container import Defect
from qassay.core.text import safe

MOST_DEFECTS = 32
_MOST_WORDS = 1 << 20


class Notes:
    """What is wrong in one configuration (Q106).

    Args:
        path: Its file, as reports name it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.defects: list[Defect] = []

    def add(
        self, message: str, key: str, *, expected: str | int | None = None, found: object = None
    ) -> None:
        """Record that `key` contradicts itself or something else; the first few are kept."""
        if len(self.defects) < MOST_DEFECTS:
            shown: str | int | None = None
            if isinstance(found, int) and not isinstance(found, bool):
                shown = found
            elif found is not None:
                shown = shown_value(found)
            self.defects.append(
                Defect(
                    code="Q106",
                    message=message,
                    path=self.path,
                    expected=expected,
                    found=shown,
                    data={"key": safe(key)},
                )
            )


def shown_value(value: object) -> str:
    """Return a value as a message shows it, short and harmless whatever it holds."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        inner = all(is_integer(item) for item in value) and len(value) <= 4
        return str(value) if inner else f"a list of {len(value)}"
    if isinstance(value, str):
        return f"'{safe(value, 60)}'"
    if value is None or isinstance(value, bool):
        return str(value).lower() if value is not None else "null"
    return repr(value)[:30]


class View:
    """One object of a configuration.

    A value of the wrong kind reads as None, and is noted; a missing one and null read as None.

    Args:
        raw: The object.
        source: Where it stands (`quantization_config`).
        notes: Takes what is wrong.
    """

    def __init__(self, raw: Mapping[str, Any], source: str, notes: Notes) -> None:
        self.raw = raw
        self.source = source
        self.notes = notes

    def at(self, key: str) -> str:
        """Return the path of a key."""
        return f"{self.source}.{safe(key, 80)}" if self.source else safe(key, 80)

    def odd(self, key: str, expected: str) -> None:
        """Note that a value is not what it has to be."""
        value = self.raw.get(key)
        self.notes.add(
            f"{self.at(key)} is {shown_value(value)}, which is not {expected}; it was ignored",
            self.at(key),
            expected=expected,
            found=value,
        )

    def first(self, *keys: str) -> str | None:
        """Return the first of some keys that has a value."""
        return next((key for key in keys if self.raw.get(key) is not None), None)

    def integer(
        self, *keys: str, low: int = 1, high: int = 1 << 31, also: tuple[int, ...] = ()
    ) -> int | None:
        """Return an integer from `low` to `high`, or one of `also`."""
        key = self.first(*keys)
        if key is None:
            return None
        value = self.raw[key]
        if is_integer(value) and (low <= value <= high or value in also):
            return int(value)
        extra = "".join(f", or {number}" for number in also)
        top = f" to {high}" if high < 1 << 31 else " or more"
        self.odd(key, f"an integer of {low}{top}{extra}")
        return None

    def flag(self, *keys: str) -> bool | None:
        """Return true or false."""
        key = self.first(*keys)
        if key is None:
            return None
        value = self.raw[key]
        if isinstance(value, bool):
            return value
        self.odd(key, "true or false")
        return None

    def word(self, *keys: str) -> str | None:
        """Return a text."""
        key = self.first(*keys)
        if key is None:
            return None
        value = self.raw[key]
        if isinstance(value, str):
            return value
        self.odd(key, "a text")
        return None

    def words(self, *keys: str) -> list[str]:
        """Return the texts of a list, of lists in it too; one text is a list of itself."""
        key = self.first(*keys)
        if key is None:
            return []
        value = self.raw[key]
        if isinstance(value, str):
            return [value]
        if not isinstance(value, list):
            self.odd(key, "a list of names")
            return []
        found: list[str] = []
        for item in value[:_MOST_WORDS]:
            inner = item if isinstance(item, list) else [item]
            found += [word for word in inner if isinstance(word, str) and word]
            if any(not isinstance(word, str) for word in inner):
                self.notes.add(
                    f"{self.at(key)} holds something that is no name; it was ignored",
                    self.at(key),
                    expected="names",
                )
        return found

    def view(self, key: str) -> View | None:
        """Return an object inside this one."""
        value = self.raw.get(key)
        if value is None:
            return None
        if isinstance(value, Mapping):
            return View(value, self.at(key), self.notes)
        self.odd(key, "an object")
        return None

    def views(self) -> Iterator[tuple[str, View]]:
        """Yield the objects inside this one by key."""
        for key, value in self.raw.items():
            if isinstance(value, Mapping):
                yield key, View(value, self.at(key), self.notes)
            elif value is not None:
                self.odd(key, "an object")

    def pair(self, key: str) -> tuple[int, int] | None:
        """Return two positive integers, rows and columns of a block."""
        value = self.raw.get(key)
        if value is None:
            return None
        if isinstance(value, list) and len(value) == 2 and all(map(is_integer, value)):
            rows, columns = value
            if 1 <= rows < 1 << 31 and 1 <= columns < 1 << 31:
                return int(rows), int(columns)
        self.odd(key, "two positive integers")
        return None
