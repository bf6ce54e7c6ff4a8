"""Conditions on shapes, `N % P == 0 and (g <= 0 or K % g == 0)`: parsed, never run as code.

The syntax is Python's, read by `ast` and then walked by the functions below. There are whole
numbers, flags (true or false) and words; `+ - * // % &`, comparisons, `in` a list of constants,
`and`, `or`, `not`, `x if flag else y`, `min` and `max`. There are no powers, no shifts, no calls
beside those two, and every text is short, so that a condition always ends soon.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qassay.core.errors import DeclarationError

Value = int | bool | str
Values = Mapping[str, "Value | None"]
Step = Callable[[Values], Value]

LONGEST = 400
DEEPEST = 24
LARGEST = 1 << 80

NAMES: Mapping[str, str] = {
    "N": "number",  # output channels of the whole layer
    "K": "number",  # input features
    "Np": "number",  # the same on one rank of tensor parallelism
    "Kp": "number",
    "H": "number",  # hidden size, for experts
    "Ip": "number",  # intermediate size of an expert on one rank
    "g": "number",  # group size, -1 for one scale a row
    "bits": "number",
    "tp": "number",
    "M": "number",  # rows of the activations
    "sym": "flag",
    "act_order": "flag",
    "quantized": "flag",  # whether the checkpoint holds codes
    "role": "word",
    "method": "word",
    "format": "word",
    "kind": "word",
}
"""Names that every runtime's conditions may use; a catalog declares others under `facts`."""

_CHARACTERS = re.compile(r"""[\w\s()<>=!%&*/+,.'":-]+""", re.ASCII)
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitAnd: operator.and_,
}
_ORDERED: Mapping[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Unknown(Exception):  # noqa: N818 - an answer, not a fault
    """A condition cannot be decided: a name has no value, or a division is by zero."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed condition.

    Attributes:
        text: As written.
        names: The names in it.
        step: Gives its value for values of the names.
    """

    text: str
    names: frozenset[str]
    step: Step

    def holds(self, values: Values) -> bool:
        """Return whether it is true.

        Raises:
            Unknown: That depends on a name without a value.
        """
        return bool(self.step(values))


def parse(text: str, facts: Mapping[str, str] | None = None) -> Expression:
    """Return the condition that `text` is.

    Args:
        text: The condition.
        facts: Kinds (`number`, `flag`, `word`) of names beside `NAMES`.

    Raises:
        DeclarationError: It is no condition: another syntax, a name that is not known, words
            where numbers belong.
    """
    if not isinstance(text, str) or not 0 < len(text) <= LONGEST or not _CHARACTERS.fullmatch(text):
        raise _refusal(str(text)[:80], "it is no short line of names, numbers and operators")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _refusal(text, f"it cannot be parsed: {type(error).__name__}") from error
    parser = _Parser(text, {**NAMES, **(facts or {})})
    kind, step = parser.visit(tree.body, 0)
    if kind != "flag":
        raise _refusal(text, f"it is a {kind}, neither true nor false")
    return Expression(text, frozenset(parser.used), step)


def _refusal(text: str, why: str) -> DeclarationError:
    return DeclarationError(
        f"condition {text!r}: {why}",
        expected="such as N % 64 == 0 and (g <= 0 or K % g == 0)",
    )


def _always(value: Value) -> Step:
    return lambda _: value


class _Parser:
    """Turns a syntax tree into functions, and knows what kind of value each gives."""

    def __init__(self, text: str, kinds: Mapping[str, str]) -> None:
        self.text, self.kinds = text, kinds
        self.used: set[str] = set()

    def visit(self, node: ast.expr, depth: int) -> tuple[str, Step]:
        """Return the kind of a node's value, and what gives the value."""
        if depth > DEEPEST:
            raise _refusal(self.text, "it is nested too deeply")
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        if method is None:
            raise _refusal(self.text, f"{type(node).__name__} is not understood")
        found: tuple[str, Step] = method(node, depth + 1)
        return found

    def _wanted(self, node: ast.expr, depth: int, kind: str) -> Step:
        found, step = self.visit(node, depth)
        if found != kind:
            raise _refusal(self.text, f"a {kind} is wanted where a {found} stands")
        return step

    def _constant(self, node: ast.Constant, depth: int) -> tuple[str, Step]:
        del depth
        value = node.value
        if isinstance(value, bool):
            return "flag", _always(value)
        if isinstance(value, int) and value < LARGEST:
            return "number", _always(value)
        if isinstance(value, str):
            return "word", _always(value)
        raise _refusal(self.text, f"{value!r:.40} is not understood")

    def _name(self, node: ast.Name, depth: int) -> tuple[str, Step]:
        del depth
        name = node.id
        if name not in self.kinds:
            raise _refusal(self.text, f"the name {name} is not known")
        self.used.add(name)

        def look(values: Values) -> Value:
            value = values.get(name)
            if value is None:
                raise Unknown(name)
            return value

        return self.kinds[name], look

    def _binop(self, node: ast.BinOp, depth: int) -> tuple[str, Step]:
        apply = _ARITHMETIC.get(type(node.op))
        if apply is None:
            raise _refusal(self.text, f"{type(node.op).__name__} is not understood")
        left = self._wanted(node.left, depth, "number")
        right = self._wanted(node.right, depth, "number")
        operation = type(node.op).__name__

        def step(values: Values) -> Value:
            try:
                result = apply(int(left(values)), int(right(values)))
            except ZeroDivisionError as error:
                raise Unknown(f"a division by zero ({operation})") from error
            if abs(result) > LARGEST:
                raise Unknown("a number that is too large")
            return result

        return "number", step

    def _unaryop(self, node: ast.UnaryOp, depth: int) -> tuple[str, Step]:
        if isinstance(node.op, ast.Not):
            inner = self._wanted(node.operand, depth, "flag")
            return "flag", lambda values: not inner(values)
        if isinstance(node.op, ast.USub):
            inner = self._wanted(node.operand, depth, "number")
            return "number", lambda values: -int(inner(values))
        raise _refusal(self.text, f"{type(node.op).__name__} is not understood")

    def _boolop(self, node: ast.BoolOp, depth: int) -> tuple[str, Step]:
        parts = [self._wanted(part, depth, "flag") for part in node.values]
        decides = isinstance(node.op, ast.Or)

        def step(values: Values) -> Value:
            unknown: Unknown | None = None
            for part in parts:
                try:
                    if bool(part(values)) is decides:
                        return decides  # whatever the others are, known or not
                except Unknown as error:  # noqa: PERF203
                    unknown = unknown or error
            if unknown is not None:
                raise unknown
            return not decides

        return "flag", step

    def _ifexp(self, node: ast.IfExp, depth: int) -> tuple[str, Step]:
        test = self._wanted(node.test, depth, "flag")
        kind, then = self.visit(node.body, depth)
        other = self._wanted(node.orelse, depth, kind)
        return kind, lambda values: then(values) if test(values) else other(values)

    def _call(self, node: ast.Call, depth: int) -> tuple[str, Step]:
        names = {"min": min, "max": max}
        function = names.get(node.func.id) if isinstance(node.func, ast.Name) else None
        if function is None or node.keywords or not 2 <= len(node.args) <= 4:
            raise _refusal(self.text, "the only calls are min and max of two to four numbers")
        parts = [self._wanted(part, depth, "number") for part in node.args]
        chosen = function
        return "number", lambda values: chosen(int(part(values)) for part in parts)

    def _compare(self, node: ast.Compare, depth: int) -> tuple[str, Step]:
        steps: list[Step] = []
        left = node.left
        for sign, right in zip(node.ops, node.comparators, strict=True):
            steps.append(self._one(sign, left, right, depth))
            left = right
        return "flag", lambda values: all(bool(step(values)) for step in steps)

    def _one(self, sign: ast.cmpop, left: ast.expr, right: ast.expr, depth: int) -> Step:
        if isinstance(sign, ast.In | ast.NotIn):
            return self._among(left, right, depth, inside=isinstance(sign, ast.In))
        if type(sign) in _ORDERED:
            compare = _ORDERED[type(sign)]
            one, two = (self._wanted(side, depth, "number") for side in (left, right))
            return lambda values: compare(int(one(values)), int(two(values)))
        if not isinstance(sign, ast.Eq | ast.NotEq):
            raise _refusal(self.text, f"{type(sign).__name__} is not understood")
        kind, first = self.visit(left, depth)
        second = self._wanted(right, depth, kind)
        same = isinstance(sign, ast.Eq)
        return lambda values: (first(values) == second(values)) is same

    def _among(self, left: ast.expr, right: ast.expr, depth: int, *, inside: bool) -> Step:
        kind, step = self.visit(left, depth)
        if not isinstance(right, ast.Tuple | ast.List) or not right.elts:
            raise _refusal(self.text, "what follows `in` is a list of constants")
        among = {self._wanted(part, depth, kind)({}) for part in right.elts if _fixed(part)}
        if len([part for part in right.elts if _fixed(part)]) != len(right.elts):
            raise _refusal(self.text, "what follows `in` is a list of constants")
        return lambda values: (step(values) in among) is inside


def _fixed(node: ast.expr) -> bool:
    """Tell whether a node is a constant, perhaps with a minus sign."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant)
