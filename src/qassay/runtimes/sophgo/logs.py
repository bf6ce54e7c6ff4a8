"""A compiler's log, taken apart: which block failed, at which stage, by which rule.

Blocks of a model are compiled in parallel, so their lines mix. Each failing process still names
itself: LLVM's handler prints `Program arguments: tpuc-opt IN.mlir ... -o OUT.mlir`, and the Python
driver `[!Error]: tpuc-opt ...`. The message came before that, from the same process or another
one. Messages are therefore kept in a pool until a command of a matching stage claims one: if all
that could be meant are alike, it is that one; if not, the block says "one of these".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from qassay.containers.opening import display_name
from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.runtimes.sophgo.commands import Command, base_name, command_in
from qassay.runtimes.sophgo.failures import Failure, failure_in
from qassay.runtimes.sophgo.mlir import MatMulRecord, MlirModule, read_mlir
from qassay.runtimes.sophgo.offenders import offending

LONGEST_LINE = 1 << 16
"""Characters of a line that are looked at; the rest of it is passed over."""

MOST_BLOCKS = 1024
MOST_COMMANDS = 1 << 16
_LONGEST_CHAIN = 64
"""Commands that are followed back; a block has about ten."""

_MOST_PENDING = 128
_MOST_TEXT = 400

_MOST_TROUBLES = 8
_TROUBLE = re.compile(
    r"Traceback \(most recent|^\s{0,99}\w{0,99}(?:Error|Exception)\b|\[!Error\]|core dumped"
    r"|Segmentation fault|^Aborted\b|\bKilled\b|out of memory|\bFAILED\b"
)
_MOST_PLACES = 8  # source lines looked for in one line
_LONGEST_PATH = 300
_PLACE = re.compile(r"\.(?:cpp|cc|c|h):(\d{1,7})\b")
_PATH = re.compile(r"[\w./+-]")
_UNREACHABLE = "UNREACHABLE executed at"


@dataclass(frozen=True, slots=True)
class Message:
    """An error that the log holds.

    Attributes:
        text: The line, cut to 400 characters, control characters escaped.
        failure: The known failure, or None.
        file: Source file that the compiler names; empty if it names none.
        file_line: The line in it; 0 if none.
        line: Where in the log, from 1.
    """

    text: str
    failure: Failure | None
    file: str
    file_line: int
    line: int

    @property
    def kind(self) -> str:
        """The known failure's id, or the text."""
        return self.failure.id if self.failure is not None else self.text


@dataclass(slots=True)
class Block:
    """A compilation that failed.

    Attributes:
        command: In full, as the log has it.
        input_mlir: The `.mlir` it read.
        output_mlir: What it was to write.
        stage: `weight-reorder`, `codegen`, ...; `unknown`.
        line: Where in the log the command stands, from 1.
        origin: The `.mlir` at the start of the chain of commands, the input itself if unknown.
        weight_file: The npz of the input, empty if unknown.
        weight_file_from: `mlir` (the text beside the log); `lowering`: the file that this block's
            lowering was told to write, from which later stages make files of their own; or empty.
        error: The message; None if there is none or it is not certain which.
        possible: Messages one of which is meant, where that is not certain.
        chip: Empty if unknown.
        layers: The Linears that break the rule; empty also where `layer_note` says why.
        layer_note: What is known about the layer, in words.
    """

    command: str
    input_mlir: str
    output_mlir: str
    stage: str
    line: int
    origin: str
    weight_file: str = ""
    weight_file_from: str = ""
    error: Message | None = None
    possible: tuple[Message, ...] = ()
    chip: str = ""
    layers: tuple[MatMulRecord, ...] = ()
    layer_note: str = ""

    @property
    def failure(self) -> Failure | None:
        """The known failure, also where it is only certain that it is one of several alike."""
        if self.error is not None:
            return self.error.failure
        kinds = {one.failure.id: one.failure for one in self.possible if one.failure is not None}
        alike = len(kinds) == 1 and all(one.failure is not None for one in self.possible)
        return next(iter(kinds.values())) if alike else None


@dataclass(slots=True)
class LogReport:
    """What a log says.

    Attributes:
        blocks: The failing compilations, in the order in which they named themselves.
        unclaimed: Errors that no command could be found for.
        one_shape: Whether the layers of all failing blocks have one shape; None if not known.
        shapes: `(N, K)` of the layers, each once.
        commands: How many commands of the compiler the log echoes.
        troubles: Lines that sound like an error of some other kind, the first few.
        lines: Number of lines read.
        cut_lines: Lines that were longer than is looked at.
        dropped: Blocks and errors beyond what is kept.
    """

    blocks: list[Block] = field(default_factory=list)
    unclaimed: list[Message] = field(default_factory=list)
    one_shape: bool | None = None
    shapes: tuple[tuple[int, int], ...] = ()
    commands: int = 0
    troubles: list[Message] = field(default_factory=list)
    lines: int = 0
    cut_lines: int = 0
    dropped: int = 0


Beside = Callable[[str], MlirModule | None]
"""Returns the `.mlir` of a bare file name, None where it is not there."""


def explain(lines: Iterable[str], beside: Beside | None = None) -> LogReport:
    """Take a log apart.

    Args:
        lines: Its lines; read once, in order.
        beside: How to get at a `.mlir` by its bare name.
    """
    reading = _Reading()
    for number, line in enumerate(lines, 1):
        reading.take(line, number)
    report = reading.finish()
    for block in report.blocks:
        _look_beside(block, beside)
    shapes = [(one.n, one.k) for block in report.blocks for one in block.layers]
    known = tuple(dict.fromkeys((n, k) for n, k in shapes if n is not None and k is not None))
    report.shapes = known
    if report.blocks and all(block.layers for block in report.blocks):
        report.one_shape = len(known) == 1
    return report


def explain_file(
    path: str | Path, folder: str | Path | None = None, given: Iterable[str | Path] = ()
) -> LogReport:
    """Take a log file apart, of any size.

    Args:
        path: The log.
        folder: Where the `.mlir` files lie; None for the log's own folder.
        given: `.mlir` files elsewhere, which count before those of the folder.

    Raises:
        InputError: The log cannot be read.
    """
    where = Path(path)
    home = where.parent if folder is None else Path(folder)
    named = {Path(one).name: Path(one) for one in given}

    def beside(name: str) -> MlirModule | None:
        file = named.get(name, home / name)
        try:
            return read_mlir(file) if file.is_file() else None
        except (InputError, OSError):
            return None

    try:
        with where.open("rb") as stream:
            return explain(_decoded(stream), beside)
    except OSError as error:
        raise InputError(
            "the log cannot be read", path=display_name(Path(path)), found=error.strerror
        ) from None


def _decoded(stream: BinaryIO) -> Iterator[str]:
    """Yield lines; of an endless one a bounded part, so that memory does not grow with it."""
    while line := stream.readline(LONGEST_LINE + 1):
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = stream.readline(LONGEST_LINE)
        yield line.decode("utf-8", "replace")


class _Reading:
    """The state while lines go by."""

    def __init__(self) -> None:
        self.report = LogReport()
        self._pending: list[Message] = []
        self._previous = ""
        self._made_by: dict[str, Command] = {}
        self._running: dict[tuple[str, str], tuple[Command, int]] = {}
        self._blocks: dict[tuple[str, str], Block] = {}
        self._candidates: dict[tuple[str, str], list[Message]] = {}

    def take(self, line: str, number: int) -> None:
        """Take in one line."""
        self.report.lines = number
        if line.isspace():  # quickly: a log may have millions of them
            self._previous = line
            return
        if len(line.rstrip("\r\n")) > LONGEST_LINE:
            self.report.cut_lines += 1
            line = line[:LONGEST_LINE]
        found = command_in(line)
        if found is None:
            self._message(line, number)
            if _TROUBLE.search(line) and len(self.report.troubles) < _MOST_TROUBLES:
                self.report.troubles.append(Message(_shown(line), None, "", 0, number))
            self._previous = line
            return
        self._previous = ""
        self.report.commands += 1
        kind, command = found
        if kind == "success":
            self._running.pop(command.key, None)
        elif kind == "failed":
            self._failed(command, number)
        elif len(self._made_by) < MOST_COMMANDS:
            self._made_by[base_name(command.output)] = command
            self._running[command.key] = (command, number)

    def _message(self, line: str, number: int) -> None:
        """Keep an error; add a source line to the one it belongs to."""
        failure = failure_in(line)
        places = _places(line)
        if failure is not None:
            # unbuffered lines of several processes can run into one
            times = max(line.count(fragment) for fragment in failure.fragments)
            file, at = places[0] if places else ("", 0)
            for _ in range(min(times, _MOST_PENDING)):
                self._keep(Message(_shown(line), failure, file, at, number))
            return
        unreachable = _UNREACHABLE in line
        assertion = "Assertion `" in line or ("[ERR]" in line and "failed!" in line)
        for file, at in places:
            if not self._place(file, at) and unreachable:
                known = failure_in(self._previous) is not None or _UNREACHABLE in self._previous
                before = "" if known else self._previous.strip()
                text = f"{before}: {line.strip()}" if before else line
                self._keep(Message(_shown(text), None, file, at, number))
        if assertion:
            file, at = places[0] if places else ("", 0)
            self._keep(Message(_shown(line), None, file, at, number))

    def _keep(self, message: Message) -> None:
        if len(self._pending) == _MOST_PENDING:
            del self._pending[0]
            self.report.dropped += 1
        self._pending.append(message)

    def _place(self, file: str, at: int) -> bool:
        """Give a source line to the first message that has none yet and can come from there."""
        for index, one in enumerate(self._pending):
            files = one.failure.files if one.failure is not None else ()
            if not one.file and (not files or base_name(file) in files):
                self._pending[index] = replace(one, file=file, file_line=at)
                return True
        return False

    def _failed(self, command: Command, number: int) -> None:
        self._running.pop(command.key, None)
        if command.key in self._blocks:
            return  # the driver repeats what LLVM's handler said
        if len(self._blocks) == MOST_BLOCKS:
            self.report.dropped += 1
            return
        block = Block(
            command=safe(command.text, LONGEST_LINE),
            input_mlir=safe(command.input),
            output_mlir=safe(command.output),
            stage=command.stage,
            line=number,
            origin=safe(self._nearest(command, "input").input),
            chip=safe(self._nearest(command, "chip").chip, 40),
        )
        maker = self._nearest(command, "weight_file")
        if maker.weight_file:
            block.weight_file, block.weight_file_from = safe(maker.weight_file), "lowering"
        self._blocks[command.key] = block
        self._claim(command.key, block)

    def _claim(self, key: tuple[str, str], block: Block) -> None:
        fitting = _finished([one for one in self._pending if _fits(one, block.stage)])
        if _alike(fitting):
            block.error = fitting[0]
            self._drop(fitting[0])
        else:
            self._candidates[key] = fitting

    def _drop(self, message: Message) -> None:
        self._pending = [one for one in self._pending if one is not message]

    def _nearest(self, command: Command, what: str) -> Command:
        """Follow the commands that made each input back to one that says `what`, or the first."""
        seen = {command.key}
        while len(seen) <= _LONGEST_CHAIN and (what == "input" or not getattr(command, what)):
            maker = self._made_by.get(base_name(command.input))
            if maker is None or maker.key in seen:
                break
            seen.add(maker.key)
            command = maker
        return command

    def finish(self) -> LogReport:
        """Settle what is open and return the report."""
        if not self._blocks and self._pending:
            # nobody named himself: a command that began and never came back may have been it
            matching = [
                one for one in self._running.values() if _fits(self._pending[0], one[0].stage)
            ]
            if len(matching) == 1:
                self._failed(*matching[0])
        while self._settle_one():
            pass
        for key, fitting in self._candidates.items():
            self._blocks[key].possible = tuple(fitting)
        meant = {id(one) for fitting in self._candidates.values() for one in fitting}
        self.report.blocks = list(self._blocks.values())
        self.report.unclaimed = [one for one in self._pending if id(one) not in meant]
        return self.report

    def _settle_one(self) -> bool:
        """Let a block have a message that, others being claimed, is the only one left for it."""
        pending = {id(one) for one in self._pending}
        for key, fitting in self._candidates.items():
            left = [one for one in fitting if id(one) in pending]
            if _alike(left):
                self._blocks[key].error = left[0]
                self._drop(left[0])
                del self._candidates[key]
                return True
        return False


def _finished(messages: list[Message]) -> list[Message]:
    """Return the messages that a process which now names itself may have written.

    Its own source line came before its name. A message that has none yet, where others of its
    kind have one, is from a process that is still about to print it.
    """
    placed = {one.kind for one in messages if one.file}
    return [one for one in messages if one.file or one.kind not in placed]


def _alike(messages: list[Message]) -> bool:
    """Whether there are messages and all of them say the same."""
    return len({(one.kind, one.file, one.file_line) for one in messages}) == 1


def _shown(line: str) -> str:
    return safe(line.strip(), _MOST_TEXT)


def _places(line: str) -> list[tuple[str, int]]:
    """Return the source files and lines that a line names."""
    found: list[tuple[str, int]] = []
    for match in _PLACE.finditer(line):
        start = match.start()
        while start > max(match.start() - _LONGEST_PATH, 0) and _PATH.match(line[start - 1]):
            start -= 1
        if start < match.start():
            found.append((safe(line[start : match.start(1) - 1], _LONGEST_PATH), int(match[1])))
        if len(found) == _MOST_PLACES:
            break
    return found


def _fits(message: Message, stage: str) -> bool:
    failure = message.failure
    return failure is None or not failure.stages or stage in (*failure.stages, "unknown")


def _look_beside(block: Block, beside: Beside | None) -> None:
    """Complete a block from its `.mlir`: weight file, chip, and the layers that break the rule."""
    module = None if beside is None else beside(base_name(block.input_mlir))
    if module is None:
        block.layer_note = "layer not in the log; put the .mlir beside it"
        return
    if module.weight_file:
        block.weight_file, block.weight_file_from = safe(module.weight_file), "mlir"
    block.chip = block.chip or safe(module.chip, 40)
    block.layers, block.layer_note = offending(module, block.failure, block.chip)
