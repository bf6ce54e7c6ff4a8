"""A scanner for the text that tpu-mlir prints: one operation a line, no MLIR library.

Only what is needed of the language: modules and their attributes, operations in generic form
(`%5 = "tpu.A16MatMul"(%1, %2) {a = 1 : i64} : (tensor<..>, ..) -> tensor<..> loc(#loc7)`),
tensor types and locations. Every function walks its text once, by index, so that the work is
proportional to the text whatever it holds; regular expressions have no nested repetition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from qassay.core.errors import InputError
from qassay.core.text import safe

LONGEST_LINE = 1 << 20
MOST_LINES = 1 << 21
MOST_OPERANDS = 1 << 12
_MOST_AXES = 16
_MOST_DIGITS = 18
_OPEN = {"(": ")", "[": "]", "{": "}", "<": ">"}
_CLOSE = frozenset(_OPEN.values())
_MARK = re.compile(r'->|["()\[\]{}<>]')  # an arrow closes nothing
_COMMA = re.compile(r'[,"(\[{<]')
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}

Value = bool | int | float | str | tuple["Value", ...]
"""An attribute: a constant, a list of them, or text that qassay does not take apart."""


class MlirError(InputError):
    """A text is no MLIR of tpu-mlir, or contradicts itself.

    Attributes:
        line: Number of the line, from 1; 0 where no single line is at fault.
    """

    def __init__(self, message: str, line: int = 0, **more: str) -> None:
        where = f"line {line}: {message}" if line else message
        super().__init__(where, **more)  # type: ignore[arg-type]
        self.line = line


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a value.

    Attributes:
        dtype: As MLIR spells it: `bf16`, `ui8`, `f32`; `none` for no value.
        shape: The dimensions; None where they are not all known.
    """

    dtype: str
    shape: tuple[int, ...] | None

    @property
    def elements(self) -> int | None:
        """Number of elements, None where the shape is not known."""
        if self.shape is None:
            return None
        count = 1
        for size in self.shape:
            count *= size
        return count

    def __str__(self) -> str:
        axes = "?" if self.shape is None else "x".join(map(str, self.shape))
        return f"{axes}x{self.dtype}" if self.dtype != "none" else "none"


NO_VALUE = TensorType("none", None)


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    Attributes:
        line: Its line, from 1.
        function: The function that holds it.
        result: `%5`; empty if it has none.
        name: `tpu.A16MatMul`.
        operands: SSA names.
        attributes: By name.
        operand_types: One an operand.
        result_types: One a result.
        loc: What `loc(...)` holds.
    """

    line: int
    function: str
    result: str
    name: str
    operands: tuple[str, ...]
    attributes: dict[str, Value]
    operand_types: tuple[TensorType, ...]
    result_types: tuple[TensorType, ...]
    loc: str


def skip(text: str, at: int, line: int) -> int:
    """Return the index behind the bracket or string that opens at `at`.

    Raises:
        MlirError: It does not end, or ends with another bracket.
    """
    stack: list[str] = []
    while True:
        mark = _MARK.search(text, at)
        if mark is None:
            raise MlirError("the line ends inside brackets", line, expected=safe(text[-40:]))
        char, at = mark[0], mark.end()
        if char == '"':
            at = _behind_string(text, mark.start(), line)
        elif char in _OPEN:
            stack.append(_OPEN[char])
        elif char in _CLOSE and (not stack or stack.pop() != char):
            raise MlirError("brackets do not match", line, found=safe(text[at - 1 : at + 39]))
        if not stack and char != "->":
            return at


def _behind_string(text: str, at: int, line: int) -> int:
    end = at + 1
    while True:
        quote = text.find('"', end)
        if quote < 0:
            raise MlirError("a string does not end", line, found=safe(text[at : at + 40]))
        slashes = quote - 1
        while slashes > at and text[slashes] == "\\":
            slashes -= 1
        if (quote - 1 - slashes) % 2 == 0:
            return quote + 1
        end = quote + 1


def pieces(text: str, line: int) -> Iterator[str]:
    """Yield the parts between top-level commas, without white space around them."""
    at = start = 0
    while (mark := _COMMA.search(text, at)) is not None:
        if mark[0] == ",":
            yield text[start : mark.start()].strip()
            start = at = mark.end()
        else:
            at = skip(text, mark.start(), line)
    last = text[start:].strip()
    if last:
        yield last


def unquoted(text: str, line: int) -> str:
    """Return what a string literal `"..."` stands for; bytes given in hexadecimal are UTF-8."""
    if len(text) < 2 or text[0] != '"' or _behind_string(text, 0, line) != len(text):
        raise MlirError("no string", line, found=safe(text, 60))
    body = text[1:-1]
    if "\\" not in body:
        return body
    out = bytearray()
    at = 0
    while at < len(body):
        slash = body.find("\\", at)
        if slash < 0 or slash + 1 >= len(body):
            out += body[at:].encode("utf-8", "surrogatepass")
            break
        out += body[at:slash].encode("utf-8", "surrogatepass")
        mark = body[slash + 1]
        if mark in _ESCAPES:
            out += _ESCAPES[mark].encode()
            at = slash + 2
            continue
        digits = body[slash + 1 : slash + 3]
        try:
            out.append(int(digits, 16))
        except ValueError:
            raise MlirError("an unknown escape in a string", line, found=safe(digits)) from None
        at = slash + 3
    return out.decode("utf-8", "replace")


def value(text: str, line: int) -> Value:
    """Return an attribute's value; text that is no constant comes back as it is."""
    if text.startswith('"'):
        end = _behind_string(text, 0, line)
        return unquoted(text[:end], line)
    if text.startswith("[") and text.endswith("]"):
        return tuple(value(part, line) for part in _flat(text[1:-1], line))
    if text in ("true", "false"):
        return text == "true"
    number, _, kind = text.partition(":")
    number = number.strip()
    if kind and kind.strip().startswith(("f", "bf")):
        try:
            return float(number)
        except ValueError:
            return text
    digits = number[1:] if number[:1] == "-" else number
    if digits.isascii() and digits.isdigit() and len(digits) <= _MOST_DIGITS:
        return int(number)
    return text


def _flat(text: str, line: int) -> Iterator[str]:
    """Yield list elements; nested lists stay text, so that no depth is followed."""
    for part in pieces(text, line):
        yield f" {part}" if part.startswith("[") else part


def attributes(text: str, line: int) -> dict[str, Value]:
    """Return the attributes between braces, by name; a name alone is true."""
    found: dict[str, Value] = {}
    for part in pieces(text, line):
        name, equals, rest = part.partition("=")
        name = name.strip()
        found[name] = value(rest.strip(), line) if equals else True
    return found


def tensor_type(text: str, line: int) -> TensorType:
    """Return what `tensor<1x4x256xbf16, 4295000064 : i64>` says; `none` is no value."""
    text = text.strip()
    if text == "none":
        return NO_VALUE
    if not (text.startswith(("tensor<", "memref<", "vector<")) and text.endswith(">")):
        return TensorType(safe(text, 60), None)
    inner = next(pieces(text[text.index("<") + 1 : -1], line), "")
    shape: list[int] = []
    known = True
    while True:
        head, times, rest = inner.partition("x")
        digits = head.isascii() and head.isdigit()
        if not times or not (digits or head in ("?", "*")):
            return TensorType(safe(inner, 60), tuple(shape) if known else None)
        if len(head) > _MOST_DIGITS or len(shape) == _MOST_AXES:
            raise MlirError("no such tensor can be", line, found=safe(text, 80))
        known = known and digits
        if digits:
            shape.append(int(head))
        inner = rest


def operation(text: str, line: int, function: str) -> Operation | None:
    """Return the operation that a stripped line holds, None if it is none in generic form.

    Raises:
        MlirError: It begins like one and does not end like one.
    """
    result = ""
    if text.startswith("%"):
        result, equals, text = text.partition("=")
        if not equals:
            return None
        result = result.strip().partition(":")[0]
        text = text.lstrip()
    if not text.startswith('"'):
        return None
    end = _behind_string(text, 0, line)
    name = text[1 : end - 1]
    if text[end : end + 1] != "(":
        return None
    at = skip(text, end, line)
    operands = tuple(pieces(text[end + 1 : at - 1], line))
    if len(operands) > MOST_OPERANDS:
        raise MlirError("too many operands", line, found=str(len(operands)))
    rest = text[at:].lstrip()
    if rest.startswith("({"):
        # A region follows; its operations have lines of their own.
        return Operation(line, function, result, name, operands, {}, (), (), "")
    found: dict[str, Value] = {}
    for opening in ("<{", "{"):
        if rest.startswith(opening):
            end = skip(rest, 0, line)
            found |= attributes(rest[len(opening) : end - len(opening)], line)
            rest = rest[end:].lstrip()
    if not rest.startswith(":"):
        raise MlirError(f"{safe(name, 60)} has no type", line, found=safe(rest, 40))
    inputs, outputs, loc = _signature(rest[1:].lstrip(), line)
    if len(inputs) != len(operands):
        raise MlirError(
            f"{safe(name, 60)} has another number of operands than of types",
            line,
            expected=f"{len(operands)} types",
            found=str(len(inputs)),
        )
    return Operation(line, function, result, name, operands, found, inputs, outputs, loc)


def _signature(text: str, line: int) -> tuple[tuple[TensorType, ...], tuple[TensorType, ...], str]:
    """Return operand types, result types and location of `(..) -> .. loc(..)`."""
    if not text.startswith("("):
        raise MlirError("no list of operand types", line, found=safe(text, 40))
    end = skip(text, 0, line)
    inputs = tuple(tensor_type(part, line) for part in pieces(text[1 : end - 1], line))
    rest = text[end:].lstrip()
    if not rest.startswith("->"):
        raise MlirError("no result type", line, found=safe(rest, 40))
    rest = rest[2:].lstrip()
    at = rest.find(" loc(")
    head = rest if at < 0 else rest[:at]
    written, tail = head.strip(), rest[len(head) :].lstrip()
    if written.startswith("("):
        written = written[1:-1]
    outputs = tuple(tensor_type(part, line) for part in pieces(written, line))
    loc = ""
    if tail.startswith("loc("):
        loc = tail[4 : skip(tail, 3, line) - 1].strip()
    return inputs, outputs, loc
