r"""Regular expressions and wildcards out of configuration files, matched in bounded time.

Patterns from strangers can make a backtracking matcher run for hours (`(a|aa)*$`). Here a pattern
becomes a state machine that looks at each character once. What the machine cannot express (back
references, look-around inside, flags) is refused, not guessed.

Read are: literals, `.`, classes, escapes (`\d \w \s` and their opposites, punctuation), groups,
`|`, `* + ? {m,n}` and their lazy forms, `^`, `$`, and look-aheads at the very beginning. Names are
printable ASCII; what a pattern says of any other name is not known.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

LONGEST = 1000
"""Characters of a pattern."""

_MOST_NODES = 2000
_DEEPEST = 20
_MOST_WORK = 300_000
_END = "\x7f"  # follows the name; no printable name holds it
_ANY = (1 << 127) - 1
_AT_END = 1 << 127
_DOT = _ANY & ~(1 << 10)
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
class _Node:
    """A piece of a pattern: a set of characters, `cat`, `alt`, `rep`, or the start `^`."""

    kind: str
    mask: int = 0
    parts: tuple[_Node, ...] = ()
    low: int = 0
    high: int | None = None

    def size(self) -> int:
        """Return how many states the piece takes."""
        inner = 2 + sum(part.size() for part in self.parts)
        if self.kind == "rep":
            inner *= max(self.low, self.high or 0, 1) + (self.high is None)
        return min(inner, _MOST_NODES + 1)


class _Parser:
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
        return self.text[self.at] if self.at < len(self.text) else ""

    def take(self, word: str) -> bool:
        if self.text.startswith(word, self.at):
            self.at += len(word)
            return True
        return False

    def alternatives(self) -> _Node:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise PatternError("its groups are nested too deeply")
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        self.depth -= 1
        return branches[0] if len(branches) == 1 else _Node("alt", parts=tuple(branches))

    def sequence(self) -> _Node:
        parts: list[_Node] = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeated())
            if parts[-1].kind == "start" and len(parts) > 1:
                raise PatternError("'^' stands inside")
        return _Node("cat", parts=tuple(parts))

    def repeated(self) -> _Node:
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
        if atom.kind == "start" or atom.mask == _AT_END:
            raise PatternError("it repeats '^' or '$'")
        self.take("?")  # a lazy quantifier matches the same names
        if self.peek() in ("*", "+", "?") or _COUNT.match(self.text, self.at):
            raise PatternError("it repeats a repetition")
        if many is not None and many < low:
            raise PatternError("the bounds of a repetition are the wrong way round")
        node = _Node("rep", parts=(atom,), low=low, high=many)
        if node.size() > _MOST_NODES:
            raise PatternError("it repeats too much")
        return node

    def atom(self) -> _Node:
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
            return _Node("cat", parts=(inner,))
        if char == "[":
            return _Node("set", self.character_class())
        if char in "*+?":
            raise PatternError("it repeats nothing")
        if char == "^":
            return _Node("start")
        if char == "$":
            return _Node("set", _AT_END)
        if char == ".":
            return _Node("set", _DOT)
        return _Node("set", self.escape() if char == "\\" else 1 << ord(char))

    def escape(self) -> int:
        char = self.peek()
        self.at += 1
        if char.lower() in _CLASSES and char:
            mask = _CLASSES[char.lower()]
            return mask if char.islower() else _ANY & ~mask
        if not char or char.isalnum():
            raise PatternError(f"'\\{char}' is not read")
        return 1 << ord(char)

    def character_class(self) -> int:
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
        return _ANY & ~mask if opposite else mask


@dataclass(slots=True)
class _Machine:
    """States of a pattern and, as names ask for them, the sets of states reached together."""

    whole: bool
    edges: list[tuple[int, int]] = field(default_factory=list)  # characters, next; 0: none
    free: list[list[int]] = field(default_factory=list)
    at_start: list[int] = field(default_factory=list)  # next state of '^', -1: none
    final: int = 0
    ends: int = 0
    sets: dict[frozenset[int], int] = field(default_factory=dict)
    members: list[frozenset[int]] = field(default_factory=list)
    steps: list[dict[str, int]] = field(default_factory=list)
    accepts: list[bool] = field(default_factory=list)
    work: int = 0

    def state(self) -> int:
        self.edges.append((0, 0))
        self.free.append([])
        self.at_start.append(-1)
        return len(self.edges) - 1

    def add(self, node: _Node, start: int) -> int:
        """Add a piece that begins at a state; return the state where it ends."""
        if node.kind == "set":
            end = self.state()
            self.edges[start] = (node.mask, end)
            return end
        if node.kind == "start":
            end = self.state()
            self.at_start[start] = end
            return end
        if node.kind == "cat":
            for part in node.parts:
                fresh = self.state()
                self.free[start].append(fresh)
                start = self.add(part, fresh)
            return start
        end = self.state()
        if node.kind == "alt":
            for part in node.parts:
                fresh = self.state()
                self.free[start].append(fresh)
                self.free[self.add(part, fresh)].append(end)
            return end
        for _ in range(node.low):
            fresh = self.state()
            self.free[start].append(fresh)
            start = self.add(node.parts[0], fresh)
        self.free[start].append(end)
        if node.high is None:
            fresh = self.state()
            self.free[start].append(fresh)
            last = self.add(node.parts[0], fresh)
            self.free[last] += [fresh, end]
        for _ in range((node.high or 0) - node.low):
            fresh = self.state()
            self.free[start].append(fresh)
            start = self.add(node.parts[0], fresh)
            self.free[start].append(end)
        return end

    def reach(self, states: list[int], *, first: bool = False) -> int:
        """Return the number of a set of states, with all that follow without a character."""
        found = set(states)
        while states:
            state = states.pop()
            after = self.free[state]
            if first and self.at_start[state] >= 0:
                after = [*after, self.at_start[state]]
            for other in after:
                if other not in found:
                    found.add(other)
                    states.append(other)
        self.work += 1 + len(found)
        key = frozenset(found)
        number = self.sets.setdefault(key, len(self.members))
        if number == len(self.members):
            self.members.append(key)
            self.steps.append({})
            self.accepts.append(self.final in key)
        return number

    def step(self, number: int, char: str) -> int:
        bit = 1 << ord(char)
        edges = [self.edges[state] for state in self.members[number]]
        after = self.reach([target for mask, target in edges if mask & bit])
        self.steps[number][char] = after
        return after

    def run(self, name: str) -> bool | None:
        number = 0
        for char in name:
            if self.accepts[number] and not self.whole:
                return True
            after = self.steps[number].get(char)
            if after is None:
                if self.work > _MOST_WORK:
                    return None
                after = self.step(number, char)
            number = after
            if not self.members[number]:
                return False
        for _ in range(self.ends):
            if self.accepts[number]:
                return True
            known = self.steps[number].get(_END)
            number = self.step(number, _END) if known is None else known
        return self.accepts[number]


def _machine(node: _Node, ends: int, *, whole: bool, search: bool = False) -> _Machine:
    if node.size() > _MOST_NODES:
        raise PatternError("it is too large")
    machine = _Machine(whole, ends=ends)
    start = machine.state()
    begin = machine.state()
    machine.free[start].append(begin)
    if search:
        machine.edges[start] = (_ANY, start)
    machine.final = machine.add(node, begin)
    machine.reach([start], first=True)
    return machine


class Pattern:
    """A pattern that names are matched against.

    Args:
        text: A regular expression, matched from the beginning of a name as `re.match` does.
        search: Match anywhere in a name, as `re.search` does.

    Raises:
        PatternError: It is malformed, too large, or uses what is not read.
    """

    def __init__(self, text: str, *, search: bool = False) -> None:
        parser = _Parser(text)
        self.text = text
        self.ahead: list[tuple[bool, _Machine]] = []
        started = parser.take("^")
        while parser.text.startswith(("(?!", "(?="), parser.at):
            wanted = parser.text[parser.at + 2] == "="
            parser.at += 3
            inner = parser.alternatives()
            if not parser.take(")"):
                raise PatternError("a group is not closed")
            self.ahead.append((wanted, _machine(inner, text.count("$"), whole=False)))
        if self.ahead and search and not started:
            raise PatternError("it looks ahead from anywhere")
        tree = parser.alternatives()
        if parser.at != len(text):
            raise PatternError("a group is closed that was not opened")
        if (self.ahead or started) and tree.kind == "alt":
            # `^a|b` and `(?!a)b|c` bind to the first branch only.
            if self.ahead:
                raise PatternError("it looks ahead in one of its alternatives only")
            tree = self._reparsed(text)
            started = False
        self._machine = _machine(tree, text.count("$"), whole=False, search=search and not started)

    @staticmethod
    def _reparsed(text: str) -> _Node:
        return _Parser(text).alternatives()

    def matches(self, name: str) -> bool | None:
        """Tell whether a name matches; None where that cannot be told."""
        if not (name.isascii() and name.isprintable()):
            return None
        for wanted, machine in self.ahead:
            seen = machine.run(name)
            if seen is None:
                return None
            if seen is not wanted:
                return False
        return self._machine.run(name)


class Glob(Pattern):
    """A shell wildcard (`*`, `?`, `[abc]`, `[!abc]`) for whole names, as in Python's fnmatch."""

    def __init__(self, text: str) -> None:
        parser = _Parser(text)
        self.text = text
        self.ahead = []
        parts: list[_Node] = []
        while char := parser.peek():
            parser.at += 1
            if char == "*":
                if not (parts and parts[-1].kind == "rep"):
                    parts.append(_Node("rep", parts=(_Node("set", _ANY),)))
            elif char == "?":
                parts.append(_Node("set", _ANY))
            elif char == "[" and (closed := _class_end(text, parser.at)):
                parts.append(_Node("set", _glob_class(text[parser.at : closed])))
                parser.at = closed + 1
            else:
                parts.append(_Node("set", 1 << ord(char)))
        self._machine = _machine(_Node("cat", parts=tuple(parts)), 0, whole=True)


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
    parser = _Parser(f"{'^' if opposite else ''}{shield}{inner}]")
    return parser.character_class()
