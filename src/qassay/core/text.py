"""Names out of files are untrusted: nothing in them may reach a terminal or a page as control."""

from __future__ import annotations

import unicodedata

_LONGEST = 200


def safe(text: str, limit: int = _LONGEST) -> str:
    """Return `text` with control, format and lone-surrogate characters escaped, cut to `limit`.

    Every character that a terminal could act on (C0, C1, bidirectional overrides, line
    separators) becomes its Python escape, so that the result is one printable line.
    """
    if len(text) > limit:
        text = f"{text[: limit - 3]}..."
    if text.isascii() and text.isprintable() and "\\" not in text:
        return text
    return "".join(_escape(char) for char in text)


def _escape(char: str) -> str:
    if char == "\\":
        return "\\\\"
    if unicodedata.category(char)[0] in "CZ" and char != " ":
        return char.encode("unicode_escape", "surrogatepass").decode("ascii")
    return char
