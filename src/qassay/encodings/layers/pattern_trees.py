r"""Regular expressions and wildcards as trees; what is not read is refused (`PatternError`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

LONGEST = 1000
"""Characters of a pattern."""

MOST_NODES = 2000
_DEEPEST = 20
END = "\x7f"  # follows the name; no printable name holds it
ANY = (1 << 127) - 1
AT_END = 1 << 127
_DOT = ANY & ~(1 << 10)
_COUNT = re.compile(r"\{(?=[\d,])(\d*)(,(\d*))?\}")


class PatternError(ValueError):
    """The pattern is not read; the message says why."""


def _mask(chars: str) -> int:
    return sum(1 << ord(char) for char in set(chars))


def _span(low: int, high: int) -> int:
    return (1 << (high + 1)) - (1 << low)


_DIGIT = _span(48, 57)
_WORD = _DIGIT | _span(65, 90) | _span(97, 122) | _mask("_")
_SPACE = _mask(" \t\n\r\f\v")
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}


@dataclass(frozen=True, slots=True)
class Node:
    """A piece of a pattern: a set of characters, `cat`, `alt`, `rep`, or the start `^`."""

    kind: str
    mask: int = 0
    parts: tuple[Node, ...] = ()
    low: int = 0
    high: int | None = None

    def size(self) -> int:
        """Return how many states the piece takes."""
        inner = 2 + sum(part.size() for part in self.parts)
        if self.kind == "rep":
            inner *= max(self.low, self.high or 0, 1) + (self.high is None)
        return min(inner, MOST_NODES + 1)


class Parser:
    """Reads a regular expression, by recursive descent."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST:
            raise PatternError(f"it is longer than {LONGEST} characters")
        if not (text.isascii() and text.isprintable()):
            raise PatternError("it holds characters other than printable ASCII")
        self.text = text
        self.at = 0
        self.depth = 0

    def peek(self) -> str:
        """Return the next character, "" at the end."""
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self, word: str) -> bool:
        """Step over a word if it comes next."""
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def alternatives(self) -> Node:
        """Read branches with `|` between them."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise PatternError("its groups are nested too deeply")
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        self.depth -= 1
        return branches[0] if len(branches) == 1 else Node("alt", parts=tuple(branches))

    def sequence(self) -> Node:
        """Read pieces up to the end of a branch."""
        parts: list[Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeated())
            if parts[-1].kind == "start" and len(parts) > 1:
                raise PatternError("'^' stands inside")
        return Node("cat", parts=tuple(parts))

    def repeated(self) -> Node:
        """Read a piece and how often it comes."""
        atom = self.atom()
        many: int | None = None
        counted = _COUNT.match(self.text, self.at)
        if self.take("*"):
            low = 0
        elif self.take("+"):
            low = 1
        elif self.take("?"):
            low, many = 0, 1
        elif counted:
            self.at = counted.end()
            low = int(counted[1] or 0)
            many = low if counted[2] is None else int(counted[3]) if counted[3] else None
        else:
            return atom
        if atom.kind == "start" or atom.mask == AT_END:
            raise PatternError("it repeats '^' or '$'")
        self.take("?")  # a lazy quantifier matches the same names
        if self.peek() in ("*", "+", "?") or _COUNT.match(self.text, self.at):
            raise PatternError("it repeats a repetition")
        if many is not None and many < low:
            raise PatternError("the bounds of a repetition are the wrong way round")
        node = Node("rep", parts=(atom,), low=low, high=many)
        if node.size() > MOST_NODES:
            raise PatternError("it repeats too much")
        return node

    def atom(self) -> Node:
        """Read a character, a class, a group or an anchor."""
        char = self.text[self.at]
        if _COUNT.match(self.text, self.at):
            raise PatternError("it repeats nothing")
        self.at += 1
        if char == "(":
            if self.take("?") and not self.take(":"):
                raise PatternError("it looks around, names a group or sets flags")
            inner = self.alternatives()
            if not self.take(")"):
                raise PatternError("a group is not closed")
            return Node("cat", parts=(inner,))
        if char == "[":
            return Node("set", self.character_class())
        if char in "*+?":
            raise PatternError("it repeats nothing")
        if char == "^":
            return Node("start")
        if char == "$":
            return Node("set", AT_END)
        if char == ".":
            return Node("set", _DOT)
        return Node("set", self.escape() if char == "\\" else 1 << ord(char))

    def escape(self) -> int:
        """Read what follows a backslash, as a set of characters."""
        char = self.peek()
        self.at += 1
        if char.lower() in _CLASSES and char:
            mask = _CLASSES[char.lower()]
            return mask if char.islower() else ANY & ~mask
        if not char or char.isalnum():
            raise PatternError(f"'\\{char}' is not read")
        return 1 << ord(char)

    def character_class(self) -> int:
        """Read the rest of `[...]`, as a set of characters."""
        opposite = self.take("^")
        mask, first = 0, True
        while first or self.peek() != "]":
            first = False
            char = self.peek()
            if not char:
                raise PatternError("a character class is not closed")
            self.at += 1
            low = self.escape() if char == "\\" else 1 << ord(char)
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                last = self.peek()
                self.at += 1
                high = self.escape() if last == "\\" else 1 << ord(last)
                if low.bit_count() != 1 or high.bit_count() != 1 or high < low:
                    raise PatternError("a range of characters is not read")
                low = _span(low.bit_length() - 1, high.bit_length() - 1)
            mask |= low
        self.at += 1
        return ANY & ~mask if opposite else mask


def glob_tree(text: str) -> Node:
    """Return a shell wildcard for whole names as a tree.

    Raises:
        PatternError: It is too long, or a class in it is not read.
    """
    parser = Parser(text)
    parts: list[Node] = []
    while char := parser.peek():
        parser.at += 1
        if char == "*":
            if not (parts and parts[-1].kind == "rep"):
                parts.append(Node("rep", parts=(Node("set", ANY),)))
        elif char == "?":
            parts.append(Node("set", ANY))
        elif char == "[" and (closed := _class_end(text, parser.at)):
            parts.append(Node("set", _glob_class(text[parser.at : closed])))
            parser.at = closed + 1
        else:
            parts.append(Node("set", 1 << ord(char)))
    return Node("cat", parts=(*parts, Node("set", AT_END)))


def _class_end(text: str, start: int) -> int:
    """Return where the class that begins at `start` is closed, 0 where it is not."""
    first = start + (text[start : start + 1] == "!")
    return text.find("]", first + 1) if first < len(text) and "]" in text[first + 1 :] else 0


def _glob_class(inner: str) -> int:
    if "\\" in inner:
        raise PatternError("a character class holds a backslash")
    opposite = inner.startswith("!")
    inner = inner[1:] if opposite else inner
    # As the first character `^` is one of the class here, in a regular expression it is not.
    shield = "\\" if inner.startswith("^") and not opposite else ""
    parser = Parser(f"{'^' if opposite else ''}{shield}{inner}]")
    return parser.character_class()
