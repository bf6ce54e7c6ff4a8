"""Letting a polite signal to end a process clean up as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let a polite signal to end raise, as Ctrl-C does, so that unfinished files go."""

    def interrupt(number: int, frame: Any) -> NoReturn:  # noqa: ARG001
        raise KeyboardInterrupt

    before: dict[int, Any] = {}
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None:
            with contextlib.suppress(ValueError):  # not in the main thread
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    before[number] = signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
