r"""Regular expressions and wildcards out of configuration files, matched in bounded time.

Patterns from strangers can make a backtracking matcher run for hours (`(a|aa)*$`). Here a pattern
becomes a state machine that looks at each character once. What the machine cannot express (back
references, look-around inside, flags) is refused, not guessed.

Read are: literals, `.`, classes, escapes (`\d \w \s` and their opposites, punctuation), groups,
`|`, `* + ? {m,n}` and their lazy forms, `^`, `$`, and look-aheads at the very beginning. Names are
printable ASCII; what a pattern says of any other name is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qassay.encodings.layers.pattern_trees import (
    ANY,
    END,
    MOST_NODES,
    Node,
    Parser,
    PatternError,
    glob_tree,
)

__all__ = ["Glob", "Pattern", "PatternError", "PatternSet"]

_MOST_WORK = 3_000_000
_NONE = 1 << 30


@dataclass(slots=True)
class _Machine:
    """States of a pattern and, as names ask for them, the sets of states reached together."""

    edges: list[tuple[int, int]] = field(default_factory=list)  # characters, next; 0: none
    free: list[list[int]] = field(default_factory=list)
    at_start: list[int] = field(default_factory=list)  # next state of '^', -1: none
    finals: dict[int, int] = field(default_factory=dict)  # the pattern that ends here
    ends: int = 0
    sets: dict[frozenset[int], int] = field(default_factory=dict)
    members: list[frozenset[int]] = field(default_factory=list)
    steps: list[dict[str, int]] = field(default_factory=list)
    accepts: list[int] = field(default_factory=list)  # the first pattern of a set, or _NONE
    work: int = 0

    def state(self) -> int:
        self.edges.append((0, 0))
        self.free.append([])
        self.at_start.append(-1)
        return len(self.edges) - 1

    def add(self, node: Node, start: int) -> int:
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
            ended = (self.finals[state] for state in key if state in self.finals)
            self.accepts.append(min(ended, default=_NONE))
        return number

    def step(self, number: int, char: str) -> int:
        bit = 1 << ord(char)
        edges = [self.edges[state] for state in self.members[number]]
        after = self.reach([target for mask, target in edges if mask & bit])
        self.steps[number][char] = after
        return after

    def run(self, name: str) -> int | None:
        """Return the number of the first pattern that matches, `_NONE`, or None for unknown."""
        number = 0
        best = self.accepts[0]
        for char in name:
            after = self.steps[number].get(char)
            if after is None:
                if self.work > _MOST_WORK:
                    return None
                after = self.step(number, char)
            number = after
            found = self.accepts[number]
            best = found if found < best else best  # `min` costs more than all the rest
            if not self.members[number] or not best:
                return best
        for _ in range(self.ends):
            known = self.steps[number].get(END)
            number = self.step(number, END) if known is None else known
            best = min(best, self.accepts[number])
        return best


def _machine(trees: Sequence[tuple[Node, bool]], ends: int) -> _Machine:
    """Return a machine for patterns together; True with those that match anywhere in a name."""
    machine = _Machine(ends=ends)
    start = machine.state()
    for number, (tree, search) in enumerate(trees):
        entry, begin = machine.state(), machine.state()
        machine.free[start].append(entry)
        machine.free[entry].append(begin)
        if search:
            machine.edges[entry] = (ANY, entry)
        machine.finals[machine.add(tree, begin)] = number
    machine.reach([start], first=True)
    return machine


class Pattern:
    """A pattern that names are matched against, from the beginning as `re.match` does.

    Args:
        text: A regular expression.
        search: Match anywhere in a name, as `re.search` does.

    Raises:
        PatternError: It is malformed, too large, or uses what is not read.
    """

    def __init__(self, text: str, *, search: bool = False) -> None:
        self.text = text
        self.ahead: list[tuple[bool, Node]] = []
        parser = Parser(text)
        started = parser.take("^")
        while parser.text.startswith(("(?!", "(?="), parser.at):
            wanted = parser.text[parser.at + 2] == "="
            parser.at += 3
            self.ahead.append((wanted, parser.alternatives()))
            if not parser.take(")"):
                raise PatternError("a group is not closed")
        if self.ahead and search and not started:
            raise PatternError("it looks ahead from anywhere")
        if not self.ahead:  # `^` belongs to the first alternative only
            parser, started = Parser(text), False
        self.tree = parser.alternatives()
        if parser.at != len(text):
            raise PatternError("a group is closed that was not opened")
        if self.ahead and self.tree.kind == "alt":
            raise PatternError("it looks ahead in one of its alternatives only")
        self.search = search and not started
        self.size = self.tree.size() + sum(inner.size() for _, inner in self.ahead)
        if self.size > MOST_NODES:
            raise PatternError("it is too large")


class Glob(Pattern):
    """A shell wildcard (`*`, `?`, `[abc]`, `[!abc]`) for whole names, as in Python's fnmatch."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.ahead = []
        self.tree = glob_tree(text)
        self.search = False
        self.size = self.tree.size()
        if self.size > MOST_NODES:
            raise PatternError("it is too large")


class PatternSet:
    """Patterns that are matched together: a name is gone through once, whatever their number.

    Args:
        patterns: Those that look ahead are matched one by one, and should be few.
    """

    MOST_TOGETHER = 20_000
    """States that patterns of a set may take together (`Pattern.size`)."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._numbers = [n for n, pattern in enumerate(patterns) if not pattern.ahead]
        trees = [(patterns[n].tree, patterns[n].search) for n in self._numbers]
        ends = max((pattern.text.count("$") + 1 for pattern in patterns), default=1)
        self._machine = _machine(trees, ends) if trees else None
        self._ahead = [
            (
                number,
                [(wanted, _machine([(tree, False)], ends)) for wanted, tree in pattern.ahead],
                _machine([(pattern.tree, pattern.search)], ends),
            )
            for number, pattern in enumerate(patterns)
            if pattern.ahead
        ]

    @property
    def work(self) -> int:
        """How much was done to make the machines."""
        return self._machine.work if self._machine else 0

    def first(self, name: str) -> int | None:
        """Return the number of the first pattern that a name matches, -1 for none.

        None where that cannot be told: the name is no printable ASCII, or patterns cost too much.
        """
        if not (name.isascii() and name.isprintable()):
            return None
        found = _NONE
        if self._machine is not None:
            seen = self._machine.run(name)
            if seen is None:
                return None
            found = _NONE if seen == _NONE else self._numbers[seen]
        for number, ahead, machine in self._ahead:
            if number > found:
                break
            results = [(wanted, inner.run(name)) for wanted, inner in ahead]
            last = machine.run(name)
            if last is None or any(seen is None for _, seen in results):
                return None
            if last != _NONE and all((seen != _NONE) is wanted for wanted, seen in results):
                return number
        return -1 if found == _NONE else found
