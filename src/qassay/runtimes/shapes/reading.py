"""Reading numbers out of a `config.json` that nobody vouches for: every error names the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qassay.core.errors import InputError
from qassay.core.text import safe

LARGEST = {"num_hidden_layers": 4096, "depth": 4096, "num_experts": 65_536}
LARGEST_NUMBER = 1 << 28


class Keys:
    """One object of a configuration.

    Args:
        values: The object.
        path: The file, as reports name it.
        prefix: What stands before a key in messages: `text_config.`.
    """

    def __init__(self, values: Mapping[str, Any], path: str, prefix: str = "") -> None:
        self.values = values
        self.path = path
        self.prefix = prefix

    def get(self, key: str) -> Any:
        """Return the value of a key, None where there is none.

        Raises:
            InputError: The key stands twice: readers differ in which of the values they take.
        """
        if any(key == again for again, _ in getattr(self.values, "repeated", ())):
            raise self.refusal(key, "stands twice", "every key once")
        return self.values.get(key)

    def refusal(self, key: str, message: str, expected: str) -> InputError:
        """Return the error about a key."""
        found = self.values.get(key)
        shown = "no such key" if key not in self.values else safe(repr(found), 60)
        return InputError(
            f"{self.prefix}{key} {message}",
            path=self.path,
            expected=expected,
            found=shown,
            hint="name the model's own config.json, or a table of shapes (name,N,K)",
        )

    def number(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number.

        Raises:
            InputError: It is missing and has no default, is no whole number, or counts nothing.
        """
        value = self.get(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise self.refusal(key, "is missing", "a whole number")
        most = LARGEST.get(key, LARGEST_NUMBER)
        if type(value) is not int or not least <= value <= most:
            raise self.refusal(key, "is no size", f"a whole number from {least} to {most:,}")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """Return true or false.

        Raises:
            InputError: It is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refusal(key, "is neither true nor false", "true or false")
        return value

    def word(self, key: str) -> str:
        """Return a string, "" where there is none.

        Raises:
            InputError: It is something else.
        """
        value = self.get(key)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.refusal(key, "is no text", "text")
        return value

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return a list of whole numbers from 0 up, empty where there is none.

        Raises:
            InputError: It is something else.
        """
        value = self.get(key)
        if value is None:
            return ()
        if not _is_list(value) or any(type(one) is not int or one < 0 for one in value):
            raise self.refusal(key, "is no list of numbers", "a list of whole numbers")
        return tuple(value)

    def words(self, key: str, count: int, known: Sequence[str]) -> tuple[str, ...] | None:
        """Return a list of `count` known words, None where there is none.

        Raises:
            InputError: It is something else.
        """
        value = self.get(key)
        if value is None:
            return None
        if not _is_list(value) or len(value) != count:
            raise self.refusal(key, "has another length", f"a list of {count} words")
        if any(not isinstance(one, str) or one not in known for one in value):
            raise self.refusal(key, "has a word that is not known", f"some of {', '.join(known)}")
        return tuple(value)

    def inner(self, key: str) -> Keys | None:
        """Return an object inside, None where there is none.

        Raises:
            InputError: It is something else.
        """
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.refusal(key, "is no object", "an object")
        return Keys(value, self.path, f"{self.prefix}{key}.")


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
