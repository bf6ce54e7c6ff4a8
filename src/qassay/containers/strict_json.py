"""JSON from strangers: duplicates are kept, lies are bounded, and only one exception comes out."""

from __future__ import annotations

import json
from typing import Any


class JsonError(ValueError):
    """The text is not JSON; `offset` is where in it, in characters, if that is known."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


class JsonObject(dict[str, Any]):
    """A JSON object that remembers the members whose key it already had.

    Attributes:
        repeated: Later members with a key that came before, in order; the dict holds the first.
    """

    repeated: tuple[tuple[str, Any], ...] = ()


def _object(members: list[tuple[str, Any]]) -> JsonObject:
    result = JsonObject(members)
    if len(result) != len(members):
        result.clear()
        repeated = []
        for key, value in members:
            if key in result:
                repeated.append((key, value))
            else:
                result[key] = value
        result.repeated = tuple(repeated)
    return result


def _integer(text: str) -> int | float:
    # Python refuses integers of more than 4300 digits, older ones take quadratic time over them.
    # Nothing in a model file needs more than 20; longer ones are no sizes, so they become floats.
    return int(text) if len(text) <= 20 else float(text)


def _constant(text: str) -> Any:
    raise JsonError(f"{text} is no JSON value")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant, strict=True
)


def parse_json(text: str) -> tuple[Any, int]:
    """Return the JSON value at the start of `text`, and the index after it.

    Objects come as `JsonObject`; integers of more than 20 digits come as floats.

    Raises:
        JsonError: It is not JSON, holds NaN or Infinity, or is nested too deeply.
    """
    start = len(text) - len(text.lstrip(" \t\r\n"))
    try:
        return _DECODER.raw_decode(text, start)
    except JsonError:
        raise
    except json.JSONDecodeError as error:
        raise JsonError(error.msg, error.pos) from error
    except RecursionError as error:
        raise JsonError("it is nested too deeply") from error
    except ValueError as error:
        raise JsonError(str(error)) from error


def is_integer(value: object) -> bool:
    """Return whether `value` is a JSON integer; `true` is none, though Python says so."""
    return isinstance(value, int) and not isinstance(value, bool)
