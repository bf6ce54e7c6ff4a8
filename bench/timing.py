"""Timing whole processes and functions: medians of interleaved runs, and ratios between them."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Command = Sequence[str]


def _usual(env: Mapping[str, str] | None) -> dict[str, str]:
    """Return the environment of a command: Python keeps what it compiles, as it does by default."""
    kept = {name: each for name, each in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, **(env or {})}


def wall(command: Command, env: Mapping[str, str] | None = None) -> float:
    """Return the seconds that a command takes; its output is thrown away."""
    start = time.perf_counter()
    done = subprocess.run(command, env=_usual(env), stdout=subprocess.DEVNULL, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
    return seconds


def interleaved(runs: int, jobs: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Run every job once to warm up, then `runs` rounds of all jobs in turn; return the times."""
    for job in jobs.values():
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(runs):
        for name, job in jobs.items():
            times[name].append(job())
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the median time of each job."""
    return {name: statistics.median(own) for name, own in times.items()}


def paired(times: Mapping[str, list[float]], name: str, base: str) -> float:
    """Return how many times as long as `base` a job takes: the median over the rounds.

    Round by round, so that a machine whose speed drifts does not decide.
    """
    rounds = zip(times[name], times[base], strict=True)
    return statistics.median(own / other for own, other in rounds)


def pin(threads: int) -> None:
    """Keep this process, and what it starts, on so many processors, where that can be done."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def seconds(function: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def peak_anonymous(command: Command, env: Mapping[str, str] | None = None) -> int:
    """Return the largest anonymous resident memory of a command, in bytes, sampled at 200 Hz."""
    process = subprocess.Popen(command, env=_usual(env), stdout=subprocess.DEVNULL)
    status = Path(f"/proc/{process.pid}/status")
    peak = 0
    while process.poll() is None:
        try:
            lines = status.read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            break
        for line in lines:
            if line.startswith("RssAnon:"):
                peak = max(peak, int(line.split()[1]) * 1024)
        time.sleep(0.005)
    process.wait()
    return peak


def verdict(name: str, value: float, bar: float | None, *, at_least: bool = False) -> bool:
    """Print one measured value beside its bar, if it has one; return whether that is met."""
    if bar is None:
        print(f"     {name:<58} {value:8.2f}", flush=True)
        return True
    met = value >= bar if at_least else value <= bar
    sign = ">=" if at_least else "<="
    print(f"{'ok  ' if met else 'MISS'} {name:<58} {value:8.2f}  ({sign} {bar:g})", flush=True)
    return met
