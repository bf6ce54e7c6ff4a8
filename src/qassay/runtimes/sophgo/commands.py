"""The commands that a log echoes: `tpuc-opt IN.mlir --pass=... -o OUT.mlir`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Kind = Literal["running", "success", "failed"]

_MARKS: tuple[tuple[str, Kind], ...] = (
    ("[Running]:", "running"),
    ("[Success]:", "success"),
    ("[!Error]:", "failed"),
    ("Program arguments:", "failed"),
)
_STAGES = (
    # The last that applies counts: one command runs several passes.
    ("--init-qtable", "top-optimize"),
    ("--shape-infer", "top-optimize"),
    ("--processor-assign", "lowering"),
    ("--convert-top-to-tpu", "lowering"),
    ("--processor-tpu-optimize", "tpu-optimize"),
    ("--dev-parallel", "dev-parallel"),
    ("--weight-reorder", "weight-reorder"),
    ("--subnet-divide", "layer-group"),
    ("--layer-group", "layer-group"),
    ("--address-assign", "layer-group"),
    ("--codegen", "codegen"),
)
_WEIGHT_FILE = re.compile(r"\bweightFileName=([^\s\"']{1,300})")
_CHIP = re.compile(r"\bchip=(\w{1,40})")


@dataclass(frozen=True, slots=True)
class Command:
    """An echoed command.

    Attributes:
        text: In full.
        input: The `.mlir` it reads.
        output: What follows `-o`.
        stage: By its passes; `unknown` if none is known.
        weight_file: The npz that lowering is told to write.
        chip: The chip it is told.
    """

    text: str
    input: str
    output: str
    stage: str
    weight_file: str
    chip: str

    @property
    def key(self) -> tuple[str, str]:
        """What tells it from others: the handler prints more options than the driver."""
        return self.stage, base_name(self.input)


def base_name(path: str) -> str:
    """Return the part of a path behind the last slash of either kind."""
    return path.replace("\\", "/").rpartition("/")[2]


def command_in(line: str) -> tuple[Kind, Command] | None:
    """Return the command that a line echoes, and what is said of it."""
    for mark, kind in _MARKS:
        at = line.find(mark)
        if at >= 0:
            found = parse_command(line[at + len(mark) :].strip())
            return None if found is None else (kind, found)
    return None


def parse_command(text: str) -> Command | None:
    """Return what a `tpuc-opt` command line says, None if it is none."""
    words = text.split()
    if not words or base_name(words[0]) != "tpuc-opt":
        return None
    source = next((one for one in words[1:] if one.endswith(".mlir") and one[0] != "-"), "")
    if not source:
        return None
    output = ""
    if "-o" in words[:-1]:
        output = words[words.index("-o") + 1]
    flags = {one.partition("=")[0] for one in words if one.startswith("--")}
    stage = "unknown"
    for flag, name in _STAGES:
        if flag in flags:
            stage = name
    weight_file, chip = _WEIGHT_FILE.search(text), _CHIP.search(text)
    return Command(
        text,
        source,
        output,
        stage,
        weight_file[1] if weight_file else "",
        chip[1].lower() if chip else "",
    )
