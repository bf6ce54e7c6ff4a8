"""What a check is asked to do."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qassay.core.finding import Severity

if TYPE_CHECKING:
    from qassay.runtimes.targets import Chooser

CHUNK_BYTES = 16 << 20
"""Bytes read at a time: large enough to hide the cost of a task, small beside any memory."""


@dataclass(frozen=True, slots=True)
class FitOptions:
    """Where a model shall run.

    Attributes:
        on: The runtime: `sophgo:bm1684x@1.28.1`.
        to: The mode that floats are quantized to there; None: what the checkpoint states.
        group_size: Of floats that the runtime quantizes, -1 for one scale a row; None: its default.
        tp: Ranks of tensor parallelism.
    """

    on: str
    to: str | None = None
    group_size: int | None = None
    tp: int = 1


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """What to check and how.

    Attributes:
        select: Code prefixes of the rules to run; all when empty.
        ignore: Code prefixes of rules not to run; wins over `select`.
        severities: Severity by rule code that replaces the rule's own.
        jobs: Threads; None means one for each processor the process may use.
        chunk_bytes: Bytes read at a time.
        full_stats: Count the codes of every block, not of a sample.
        targets: What float tensors are meant to become: what that would do to them.
        importance: An importance file that shall be for the model.
        fit: Where the model shall run: what a runtime would do with it.
        progress: Called with the number of bytes just read, from any thread.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    severities: Mapping[str, Severity] = field(default_factory=dict)
    jobs: int | None = None
    chunk_bytes: int = CHUNK_BYTES
    full_stats: bool = False
    targets: tuple[Chooser, ...] = ()
    importance: str | os.PathLike[str] | None = None
    fit: FitOptions | None = None
    progress: Callable[[int], None] | None = None

    def runs(self, code: str) -> bool:
        """Tell whether the rule with `code` is to be run."""
        chosen = not self.select or code.startswith(self.select)
        return chosen and not code.startswith(self.ignore) if self.ignore else chosen

    @property
    def threads(self) -> int:
        """Number of threads to read with."""
        if self.jobs:
            return self.jobs
        try:
            return len(os.sched_getaffinity(0))
        except AttributeError:  # not on Linux
            return os.cpu_count() or 1
