"""From what `run.explain_log` found to the document, and the pages about blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qassay.core.text import safe
from qassay.report.document import Coverage, Input, NotChecked, Report
from qassay.report.page import Lines, Pairs, Section
from qassay.report.words import count, plain, shape
from qassay.run.explain_log import Explained
from qassay.runtimes.sophgo.logs import Block, Message
from qassay.runtimes.sophgo.mlir import MatMulRecord, Operand

_BLOCKS = 16


def report_of(done: Explained) -> Report:
    """Return the report of one log."""
    log = done.log
    note = f"{count(log.lines, 'line')}, {count(len(log.blocks), 'failing block')}"
    return Report(
        "explain-log",
        inputs=(Input(done.path, "log", done.nbytes, note),),
        coverage=Coverage(
            skipped=tuple(NotChecked(one.name, done.path, one.reason) for one in done.unknown)
        ),
        findings=tuple(done.findings),
        result=_result(done),
        sections=tuple(_sections(done)),
        judged=False,
    )


def _result(done: Explained) -> dict[str, Any]:
    log = done.log
    return {
        "blocks": [_block(one) for one in log.blocks],
        "one_shape": log.one_shape,
        "shapes": [list(one) for one in log.shapes],
        "unclaimed": [_message(one) for one in log.unclaimed],
        "commands": log.commands,
        "lines": log.lines,
        "cut_lines": log.cut_lines,
        "dropped": log.dropped,
    }


def _block(block: Block) -> dict[str, Any]:
    failure = block.failure
    return {
        "input": block.input_mlir,
        "output": block.output_mlir,
        "origin": block.origin,
        "weight_file": block.weight_file or None,
        "weight_file_from": block.weight_file_from or None,
        "command": block.command,
        "line": block.line,
        "step": block.stage,
        "chip": block.chip or None,
        "error": None if block.error is None else _message(block.error),
        "possible": [_message(one) for one in block.possible],
        "failure": None if failure is None else failure.id,
        "rule": None if failure is None else failure.rule,
        "condition": failure.condition if failure is not None and failure.condition else None,
        "remedy": None if failure is None else failure.remedy,
        "layers": [_layer(one) for one in block.layers],
        "note": block.layer_note,
    }


def _message(message: Message) -> dict[str, Any]:
    return {
        "text": message.text,
        "failure": None if message.failure is None else message.failure.id,
        "file": message.file or None,
        "file_line": message.file_line or None,
        "line": message.line,
    }


def _layer(one: MatMulRecord) -> dict[str, Any]:
    return {
        "name": one.name,
        "operation": one.op,
        "mlir_line": one.line,
        "n": one.n,
        "k": one.k,
        "input": _type(one.input),
        "weight": _type(one.weight),
        "output": str(one.output),
        "scale": _type(one.scale),
        "zero_point": _type(one.zero_point),
        "bias": _type(one.bias),
        "weight_bits": one.weight_bits,
        "q_group_size": one.q_group_size,
        "w_transpose": one.w_transpose,
    }


def _type(operand: Operand | None) -> str | None:
    return None if operand is None else str(operand.type)


def _sections(done: Explained) -> Iterator[Section]:
    log = done.log
    for block in log.blocks[:_BLOCKS]:
        yield Pairs(f"Block {safe(block.origin or block.input_mlir)}", tuple(_pairs(block)))
    lines = []
    if len(log.blocks) > _BLOCKS:
        lines.append(f"and {len(log.blocks) - _BLOCKS:,} more blocks, in the JSON report")
    if len(log.blocks) > 1:
        lines.append(_shapes(done))
    if not log.blocks and not done.findings and not done.unknown:
        lines.append(f"{count(log.commands, 'command')}, and none of them failed")
    if log.cut_lines:
        lines.append(f"{count(log.cut_lines, 'line')} longer than is looked at")
    if lines:
        yield Lines("", tuple(lines))


def _shapes(done: Explained) -> str:
    log = done.log
    shown = ", ".join(shape(one) for one in log.shapes[:8])
    if log.one_shape is None:
        return "whether the failing blocks share one shape is not known: layers are not in the log"
    if log.one_shape:
        return f"all {len(log.blocks)} failing blocks share one shape: {shown}"
    return f"the failing blocks have {len(log.shapes)} shapes: {shown}"


def _pairs(block: Block) -> Iterator[tuple[str, str]]:
    failure = block.failure
    yield "command", plain(block.command)
    yield "input", safe(block.input_mlir)
    if block.weight_file:
        where = {"mlir": "as the .mlir says", "lowering": "as lowering wrote it"}
        yield "weight file", f"{safe(block.weight_file)} ({where[block.weight_file_from]})"
    else:
        yield "weight file", "not in the log"
    yield "failed at", f"{block.stage}, line {block.line} of the log"
    error = block.error
    if error is not None:
        yield "error", plain(error.text)
        if error.file:
            yield "source", f"{plain(error.file)}:{error.file_line}"
    elif block.possible:
        yield "error", f"one of {count(len(block.possible), 'message')} of the log"
    else:
        yield "error", "no message in the log"
    if failure is not None:
        yield "rule", f"{failure.rule}{f': {failure.condition}' if failure.condition else ''}"
        yield "cause", failure.cause
    else:
        yield "rule", "not recognised"
    yield "layer", plain(block.layer_note)
    for one in block.layers[:4]:
        sizes = f"N = {one.n}, K = {one.k}"
        yield (
            "",
            f"{safe(one.name)}: {sizes}, {one.weight_bits} bits, q_group_size {one.q_group_size},"
            f" scale {_type(one.scale)}, zero point {_type(one.zero_point)}",
        )
