"""Reading tpu-mlir's `.mlir` text: which Linears it holds, and how each one is described.

Every stage is understood: TOP (as the converter writes it), lowered (`TPU_LOWERED`), before and
after `--weight-reorder` (`TPU_REORDERED`), final (`TPU_ADDRESSED`, layer groups included).

Operands of `A16MatMul` are (input, weight, scale, zero point, bias), those of `MatMul` (input,
right, bias, ...). N is taken from the output and K from the input: a packed weight holds two
codes a byte and may be transposed, so its own dimensions are checked, not believed.
The text says chip and mode; it does not say which version wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from qassay.containers.opening import display_name
from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.runtimes.sophgo.mlir_text import (
    LONGEST_LINE,
    MOST_LINES,
    MlirError,
    Operation,
    TensorType,
    Value,
    attributes,
    operation,
    skip,
    unquoted,
)

LARGEST_TEXT = 1 << 26
"""Bytes of `.mlir` that are read; a 70-layer model has a few million."""

MOST_LINEARS = 1 << 16

OPERATIONS = ("top.A16MatMul", "tpu.A16MatMul", "top.MatMul", "tpu.MatMul")

_MODULE = re.compile(r"\s*module(?: @(\"[^\"]{0,400}\"|[^\s\"]{1,400}))? attributes \{")
_FUNCTION = re.compile(r"\s*func\.func (?:private )?@([\w.$-]{1,400})")
_LOC = re.compile(r"\s*(#loc\w{0,20}) = loc\(")
_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a Linear.

    Attributes:
        name: Where it comes from: for weights the key in the npz.
        type: Its type, shape in the order of the text.
        is_weight: Whether it is a constant of the weight file.
    """

    name: str
    type: TensorType
    is_weight: bool


@dataclass(frozen=True, slots=True)
class MatMulRecord:
    """One `A16MatMul` or `MatMul`.

    Attributes:
        op: `tpu.A16MatMul`, ...
        name: Its location's name: what the converter called the layer.
        line: In the text, from 1.
        function: The function that holds it.
        input: Activations, or None.
        weight: The right operand.
        scale: `[N, K/g]` before the reorder, `[P, h, w]` after it; None for a MatMul.
        zero_point: The same; None for a MatMul, or where it lies within the scale.
        bias: Or None.
        output: Type of the result.
        weight_bits: None for a MatMul.
        q_group_size: None for a MatMul.
        w_transpose: Whether the weight is `[N, K]` (`right_transpose` of TOP and MatMul).
        sign: Attribute of `tpu.A16MatMul`; None elsewhere.
        dq_type: `NONE`, or a type of dynamic quantization.
        n: Output channels, None where unknown.
        k: Input features, None where unknown.
        lanes: P where the scale is already in the device's order; None before.
    """

    op: str
    name: str
    line: int
    function: str
    input: Operand | None
    weight: Operand
    scale: Operand | None
    zero_point: Operand | None
    bias: Operand | None
    output: TensorType
    weight_bits: int | None
    q_group_size: int | None
    w_transpose: bool
    sign: bool | None
    dq_type: str
    n: int | None
    k: int | None
    lanes: int | None

    @property
    def quantized(self) -> bool:
        """Whether it is an A16MatMul."""
        return self.op.endswith(".A16MatMul")


@dataclass(frozen=True, slots=True)
class MlirModule:
    """What a `.mlir` text says.

    Attributes:
        name: Of the module.
        chip: `bm1684x`; `ALL` before a chip is chosen.
        mode: `W4BF16`, ...; empty in TOP.
        state: `TOP_F32`, `TPU_LOWERED`, `TPU_REORDERED`, `TPU_ADDRESSED`.
        platform: `LLM`, `LLM_QUANTIZED`, `ONNX`, ...
        weight_file: The npz that holds its weights, a bare name beside the text.
        q_group_size: The module's own, None where it has none.
        q_symmetric: The same.
        attributes: All of the outer module's, by name.
        weights: Type of every constant, by npz key.
        linears: In the order of the text.
        results: Names of what operations compute, in the order of the text, constants left out.
    """

    name: str
    chip: str
    mode: str
    state: str
    platform: str
    weight_file: str
    q_group_size: int | None
    q_symmetric: bool | None
    attributes: Mapping[str, Value]
    weights: Mapping[str, TensorType]
    linears: tuple[MatMulRecord, ...]
    results: tuple[str, ...] = ()

    def named(self, name: str) -> MatMulRecord | None:
        """Return the Linear of that name, the first if there are several."""
        return next((one for one in self.linears if one.name == name), None)


@dataclass(slots=True)
class _Reading:
    name: str = ""
    attributes: dict[str, Value] = field(default_factory=dict)
    modules: int = 0
    function: str = ""
    locs: dict[str, str] = field(default_factory=dict)
    defined: dict[tuple[str, str], Operation] = field(default_factory=dict)
    linears: list[Operation] = field(default_factory=list)


def read_mlir(path: str | Path) -> MlirModule:
    """Read a `.mlir` file.

    Raises:
        InputError: It cannot be read or is too large.
        MlirError: It is no text of tpu-mlir, is cut off, or contradicts itself.
    """
    where = Path(path)
    try:
        size = where.stat().st_size
        if not where.is_file() or size > LARGEST_TEXT:
            raise InputError(
                "no .mlir text",
                path=display_name(where),
                expected=f"a file of at most {LARGEST_TEXT} bytes",
                found=f"{size} bytes",
            )
        with where.open("rb") as stream:
            text = stream.read(LARGEST_TEXT + 1).decode("utf-8", "replace")
    except OSError as error:
        raise InputError(
            "the file cannot be read", path=display_name(Path(path)), found=error.strerror
        ) from None
    try:
        return parse_mlir(text)
    except MlirError as error:
        error.path = display_name(where)
        raise


def parse_mlir(text: str) -> MlirModule:
    """Return what a `.mlir` text says; see `read_mlir`."""
    reading = _Reading()
    depth = 0
    for number, line in enumerate(_lines(text), 1):
        depth += _one_line(reading, line, number)
    if not reading.modules:
        raise MlirError("no module of tpu-mlir in this text", expected="module @NAME attributes {")
    if depth != 0:
        raise MlirError("the text is cut off", expected="as many } as {", found=f"{depth} open")
    names = _Names(reading)
    records = tuple(_record(one, names) for one in reading.linears)
    outer = reading.attributes
    return MlirModule(
        name=reading.name,
        chip=_word(outer, "module.chip"),
        mode=_word(outer, "module.mode"),
        state=_word(outer, "module.state"),
        platform=_word(outer, "module.platform"),
        weight_file=_word(outer, "module.weight_file"),
        q_group_size=_number(outer, "module.q_group_size"),
        q_symmetric=_flag(outer, "module.q_symmetric"),
        attributes=outer,
        weights=names.weights(),
        linears=records,
        results=names.results(),
    )


def across(before: MlirModule, after: MlirModule) -> list[tuple[MatMulRecord, MatMulRecord | None]]:
    """Pair the Linears of two stages by name: what each was, and what became of it (or None).

    A Linear that fell back has `quantized` before and not after.
    """
    later: dict[str, MatMulRecord] = {}
    for one in after.linears:
        later.setdefault(one.name, one)
    return [(one, later.get(one.name)) for one in before.linears]


def _lines(text: str) -> Iterable[str]:
    lines = text.split("\n")
    if len(lines) > MOST_LINES:
        raise MlirError("too many lines", expected=f"at most {MOST_LINES}", found=str(len(lines)))
    return lines


def _one_line(reading: _Reading, line: str, number: int) -> int:
    """Take in one line and return by how many braces it opens more than it closes."""
    stripped = line.strip()
    if not stripped or stripped.startswith("//"):
        return 0
    if len(line) > LONGEST_LINE:
        raise MlirError("the line is too long", number, found=f"{len(line)} characters")
    loc = _LOC.match(line)
    if loc is not None:
        end = skip(line, loc.end() - 1, number)
        reading.locs[loc[1]] = line[loc.end() : end - 1].strip()
        return 0
    module = _MODULE.match(line)
    if module is not None:
        end = skip(line, module.end() - 1, number)
        if not reading.modules:
            reading.name = (module[1] or "").strip('"')
            reading.attributes = attributes(line[module.end() : end - 1], number)
        reading.modules += 1
        if not line[end:].strip().startswith("{"):
            raise MlirError("the module has no body", number, expected="{")
        return 1
    function = _FUNCTION.match(line)
    if function is not None:
        reading.function = function[1]
        return int(stripped.endswith("{"))
    if stripped.startswith("}"):
        return -1  # `}`, `} loc(..)`, and `}) {..} : ..` behind a region
    found = operation(stripped, number, reading.function)
    if found is None:
        return int(stripped.endswith("{"))
    if found.result:
        reading.defined[found.function, found.result] = found
    if found.name in OPERATIONS:
        if len(reading.linears) == MOST_LINEARS:
            raise MlirError("too many Linears", number, expected=f"at most {MOST_LINEARS}")
        reading.linears.append(found)
    return int(stripped.endswith("({"))


class _Names:
    """Where operands come from: through loads back to a constant, and locations to names."""

    def __init__(self, reading: _Reading) -> None:
        self._reading = reading
        self._known: dict[str, str] = {}  # many operations may share a long location

    def of(self, found: Operation) -> str:
        """Return the name that an operation's location gives it."""
        text, name = found.loc, ""
        passed: list[str] = []
        for _ in range(_DEEPEST):
            if text in self._known:
                name = self._known[text]
                break
            if text.startswith("#"):
                passed.append(text)
                text = self._reading.locs.get(text, "")
            elif text.startswith("fused["):
                text = text[6:].split(",", 1)[0].rstrip("]").strip()
            elif text.startswith('"'):
                end = skip(text, 0, found.line)
                name = unquoted(text[:end], found.line)
                break
            else:
                break
        self._known.update(dict.fromkeys(passed, name))
        return name

    def weights(self) -> dict[str, TensorType]:
        """Return the type of every constant by name."""
        return {
            self.of(one): one.result_types[0]
            for one in self._reading.defined.values()
            if one.name == "top.Weight" and one.result_types
        }

    def results(self) -> tuple[str, ...]:
        """Return the names of all that is computed, each once, in the order of the text."""
        found = (self.of(one) for one in self._reading.defined.values() if one.name != "top.Weight")
        return tuple(dict.fromkeys(name for name in found if name))

    def operand(self, found: Operation, index: int) -> Operand | None:
        """Return an operand, None where there is none."""
        if index >= len(found.operands) or found.operand_types[index].dtype == "none":
            return None
        ssa = found.operands[index]
        source = self._reading.defined.get((found.function, ssa))
        for _ in range(_DEEPEST):
            if source is None or source.name != "tpu.Load" or not source.operands:
                break
            source = self._reading.defined.get((found.function, source.operands[0]))
        if source is None:
            return Operand(ssa, found.operand_types[index], False)
        constant = source.name == "top.Weight"
        return Operand(self.of(source), found.operand_types[index], constant)


def _record(found: Operation, names: _Names) -> MatMulRecord:
    kind = found.name.rpartition(".")[2]
    quantized = kind == "A16MatMul"
    weight = names.operand(found, 1)
    if weight is None or len(found.result_types) != 1:
        raise MlirError(
            f"{found.name} lacks a weight or a result", found.line, expected="input, weight, ..."
        )
    said = found.attributes
    scale = names.operand(found, 2) if quantized else None
    shape = scale.type.shape if scale is not None else None
    record = MatMulRecord(
        op=found.name,
        name=names.of(found),
        line=found.line,
        function=found.function,
        input=names.operand(found, 0),
        weight=weight,
        scale=scale,
        zero_point=names.operand(found, 3) if quantized else None,
        bias=names.operand(found, 4 if quantized else 2),
        output=found.result_types[0],
        weight_bits=_number(said, "weight_bits") if quantized else None,
        q_group_size=_number(said, "q_group_size") if quantized else None,
        w_transpose=bool(_flag(said, "w_transpose") or _flag(said, "right_transpose")),
        sign=_flag(said, "sign"),
        dq_type=_word(said, "dq_type"),
        n=None if _flag(said, "output_transpose") else _last(found.result_types[0]),
        k=None if _flag(said, "left_transpose") else _last(found.operand_types[0]),
        lanes=shape[0] if shape is not None and len(shape) == 3 else None,
    )
    _check(record)
    return record


def _check(record: MatMulRecord) -> None:
    """Compare the packed weight with N and K.

    Raises:
        MlirError: They cannot belong together.
    """
    shape, n, k = record.weight.type.shape, record.n, record.k
    if not record.quantized or shape is None or n is None or k is None:
        return
    bits = record.weight_bits
    if bits not in (4, 8):
        raise MlirError(
            f"A16MatMul {safe(record.name, 80)} has no weight_bits that are known",
            record.line,
            expected="4 or 8",
            found=str(bits),
        )
    # In the older form the weight is [K, N] and the last axis is packed all the same.
    rows, columns = (n, k) if record.w_transpose else (k, n)
    if len(shape) < 2 or shape[-2] != rows or shape[-1] * 8 != columns * bits:
        raise MlirError(
            f"A16MatMul {safe(record.name, 80)}: weight, input and output disagree",
            record.line,
            expected=f"a weight of {rows}x{columns * bits // 8} for N = {n}, K = {k}, {bits} bits",
            found=str(record.weight.type),
        )


def _last(kind: TensorType) -> int | None:
    return kind.shape[-1] if kind.shape else None


def _word(said: Mapping[str, Value], name: str) -> str:
    found = said.get(name, "")
    return found if isinstance(found, str) else ""


def _number(said: Mapping[str, Value], name: str) -> int | None:
    found = said.get(name)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _flag(said: Mapping[str, Value], name: str) -> bool | None:
    found = said.get(name)
    return found if isinstance(found, bool) else None
