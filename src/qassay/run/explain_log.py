"""`qassay explain-log`: what a compiler's log says, as blocks and findings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qassay.containers.opening import display_name
from qassay.core.container import Skipped
from qassay.core.errors import InputError
from qassay.core.finding import Certainty, Finding, numbered
from qassay.core.text import safe
from qassay.run.rejections import rejection
from qassay.runtimes.sophgo.commands import base_name
from qassay.runtimes.sophgo.failures import Failure
from qassay.runtimes.sophgo.logs import Block, LogReport, Message, explain_file
from qassay.runtimes.sophgo.mlir import read_mlir

_STAGE = "compile"
"""Which of the four stages a finding belongs to; `step` is the compiler's own."""

_MOST_NAMES = 512


@dataclass(slots=True)
class Explained:
    """A log, explained.

    Attributes:
        path: As reports name it.
        nbytes: Its bytes.
        log: What was read out of it.
        findings: One for each known failure, step and chip.
        unknown: What is not recognised, and why.
    """

    path: str
    nbytes: int
    log: LogReport
    findings: list[Finding] = field(default_factory=list)
    unknown: list[Skipped] = field(default_factory=list)


def explain_log(path: Path, mlir: Sequence[Path] = ()) -> Explained:
    """Explain a log, with the `.mlir` files beside it and those that are given.

    Raises:
        InputError: The log, or a `.mlir` that was named, cannot be read.
    """
    for one in mlir:
        read_mlir(one)  # what is named has to be readable; what merely lies there need not
    if path.is_dir():
        raise InputError("this is a folder", path=display_name(path), expected="a log file")
    log = explain_file(path, given=mlir)
    try:
        nbytes = path.stat().st_size
    except OSError:
        nbytes = 0
    done = Explained(display_name(path), nbytes, log)
    done.findings = list(numbered(_findings(done)))
    done.unknown = list(_unknown(done))
    return done


def _findings(done: Explained) -> Iterator[Finding]:
    groups: dict[tuple[str, str, str], list[Block]] = {}
    for block in done.log.blocks:
        if block.failure is not None:
            groups.setdefault((block.failure.id, block.stage, block.chip), []).append(block)
    for blocks in groups.values():
        yield _of_blocks(done, blocks)
    loose: dict[str, list[Message]] = {}
    for message in done.log.unclaimed:
        if message.failure is not None:
            loose.setdefault(message.failure.id, []).append(message)
    for messages in loose.values():
        yield _of_messages(done, messages)


def _of_blocks(done: Explained, blocks: list[Block]) -> Finding:
    first = blocks[0]
    failure = first.failure
    assert failure is not None  # noqa: S101 - the caller looked
    layers = [one for block in blocks for one in block.layers]
    names = list(dict.fromkeys(safe(one.name) for one in layers))
    errors = [block.error or next(iter(block.possible), None) for block in blocks]
    data = _data(failure, [one for one in errors if one is not None])
    data.update(
        step=first.stage,
        chip=first.chip,
        blocks=[block.input_mlir for block in blocks][:_MOST_NAMES],
        layers=[one.name for one in layers][:_MOST_NAMES],
        shapes=[[one.n, one.k] for one in layers][:_MOST_NAMES],
        note=first.layer_note,
    )
    if layers:
        shapes = dict.fromkeys((one.n, one.k) for one in layers)
        shown = ", ".join(f"[{n}, {k}]" for n, k in list(shapes)[:4])
        who = f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''} {shown}"
    else:
        who = first.layer_note
    where = f"{len(blocks)} block{'s' if len(blocks) > 1 else ''} at {first.stage}"
    return rejection(
        f"{where}: {_said(failure, errors[0])}: {failure.rule}"
        f"{f' ({failure.condition})' if failure.condition else ''}; {who}",
        path=done.path,
        tensor=layers[0].name if len(layers) == 1 else None,
        count=max(len(layers), len(blocks)),
        help=failure.remedy,
        data=data,
    )


def _of_messages(done: Explained, messages: list[Message]) -> Finding:
    failure = messages[0].failure
    assert failure is not None  # noqa: S101 - the caller looked
    data = _data(failure, messages)
    data.update(step=failure.stages[0] if len(failure.stages) == 1 else "unknown", blocks=[],
                layers=[], shapes=[], note="command and layer are not in the log")  # fmt: skip
    return rejection(
        f"{_said(failure, messages[0])}: {failure.rule}"
        f"{f' ({failure.condition})' if failure.condition else ''}; command and layer not in the"
        " log",
        path=done.path,
        count=len(messages),
        help=failure.remedy,
        data=data,
        certainty=Certainty.LIKELY,
    )


def _said(failure: Failure, message: Message | None) -> str:
    """Return what the compiler printed, with its source line where it is known."""
    words = next((one for one in failure.fragments if message and one in message.text),
                 failure.fragments[0])  # fmt: skip
    if message is None or not message.file:
        return words
    return f"{words} ({base_name(message.file)}:{message.file_line})"


def _data(failure: Failure, messages: list[Message]) -> dict[str, Any]:
    placed = next((one for one in messages if one.file), None)
    return {
        "stage": _STAGE,
        "failure": failure.id,
        "rule": failure.rule,
        "condition": failure.condition,
        "cause": failure.cause,
        "source": failure.source,
        "file": placed.file if placed else None,
        "file_line": placed.file_line if placed else None,
        "lines": [one.line for one in messages][:_MOST_NAMES],
    }


def _unknown(done: Explained) -> Iterator[Skipped]:
    log = done.log
    for block in log.blocks:
        if block.failure is None:
            error = block.error or next(iter(block.possible), None)
            said = f": {error.text}" if error is not None else ""
            yield Skipped(
                f"{block.input_mlir} (line {block.line})",
                f"failed at {block.stage} for a reason that is not recognised{said}",
            )
    for message in log.unclaimed:
        if message.failure is None:
            yield Skipped(
                f"line {message.line}", f"an error that is not recognised: {message.text}"
            )
    if log.dropped:
        yield Skipped("the rest", f"{log.dropped} further errors or blocks were not kept")
    if log.blocks or log.unclaimed:
        return
    for trouble in log.troubles:
        yield Skipped(f"line {trouble.line}", f"an error that is not recognised: {trouble.text}")
    if not log.commands and not log.troubles:
        yield Skipped(done.path, "no command and no error of tpu-mlir in this log")
