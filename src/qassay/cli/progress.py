"""A progress bar on stderr for whatever takes longer than a second."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

AFTER = 1.0
"""Seconds before the bar appears: short runs neither flicker nor pay for its import."""


@contextlib.contextmanager
def progress(what: str, total: int, *, shown: bool) -> Iterator[Callable[[int], None] | None]:
    """Yield what to call, from any thread, with each number of bytes done; None without a bar.

    Args:
        what: What is going on, in a word.
        total: About how many bytes there are.
        shown: Whether the user wants a bar; where stderr is no terminal there is none.
    """
    if not shown or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bar = _LateBar(what, total)
    timer = threading.Timer(AFTER, bar.show)
    timer.daemon = True
    timer.start()
    try:
        yield bar.step
    finally:
        timer.cancel()
        bar.close()


class _LateBar:
    """Counts from the start, and shows a bar once it is told to."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._closed = False
        self._bar: Any = None
        self._lock = threading.Lock()

    def step(self, nbytes: int) -> None:
        """Count bytes done."""
        with self._lock:
            self._done += nbytes
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done)

    def show(self) -> None:
        """Show the bar, with what was done before."""
        bar = _bar(self._what)  # imports while the work goes on
        with self._lock:
            if self._closed:
                return
            bar.add_task("", total=self._total, completed=self._done)
            bar.start()
            self._bar = bar

    def close(self) -> None:
        """Take the bar away, and let none appear any more."""
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()


def _bar(what: str) -> Any:
    from rich.console import Console  # noqa: PLC0415 - only a long run pays for it
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    return Progress(what, *columns, console=Console(stderr=True), transient=True)
