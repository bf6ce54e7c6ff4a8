"""Stopped at any moment: nothing under the final name, and the source as it was."""

from __future__ import annotations

import hashlib
import random
import signal
import time
from pathlib import Path

import pytest

OUT = Path("out.gguf")


def listing() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def source(one_tensor, weights):
    return one_tensor(weights(4096, 2048))


def wait_for_part(process, limit: float = 30) -> Path | None:
    """Wait until the temporary file is there; None when the process was faster."""
    end = time.monotonic() + limit
    while time.monotonic() < end and process.poll() is None:
        found = list(Path().glob(".out.gguf.*.part"))
        if found:
            return found[0]
    return None


def test_killed_at_random_moments(spawn, source):
    before = digest(source)
    clock = random.Random(7)
    process = spawn(source, OUT, "--to", "Q8_0", "-j", 2)
    started = time.monotonic()
    process.communicate(timeout=120)
    whole = time.monotonic() - started
    assert process.returncode == 0
    finished = digest(OUT)
    OUT.unlink()
    killed = 0
    for _ in range(8):
        process = spawn(source, OUT, "--to", "Q8_0", "-j", 2)
        time.sleep(whole * clock.random())
        process.kill()
        process.communicate(timeout=60)
        killed += process.returncode == -signal.SIGKILL
        if OUT.exists():  # it was whole already, and its own check went on
            assert digest(OUT) == finished
            OUT.unlink()
    assert killed >= 4
    assert digest(source) == before
    assert all(name.startswith((".out.gguf.", "one.")) for name in listing())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
def test_killed_while_writing(spawn, source, share):
    before = digest(source)
    process = spawn(source, OUT, "--to", "Q8_0", "-j", 1)
    part = wait_for_part(process)
    while part is not None and process.poll() is None:
        if not part.exists() or part.stat().st_size >= share * 4096 * 2048 * 34 / 32:
            break
    process.kill()
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not OUT.exists()
    assert digest(source) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_polite_signal_removes_the_unfinished_file(spawn, source, number):
    process = spawn(source, OUT, "--to", "Q4_0", "-j", 2)
    assert wait_for_part(process) is not None
    process.send_signal(number)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert told.strip() == b"interrupted"
    assert listing() == ["one.safetensors"]


def test_a_failure_in_the_middle_removes_the_unfinished_file(run, source, monkeypatch):
    from qassay.run import quantize_stream

    real, seen = quantize_stream.measure, []

    def fail(*arguments):
        seen.append(1)
        if len(seen) > 5:
            raise ZeroDivisionError("planted")
        return real(*arguments)

    monkeypatch.setattr(quantize_stream, "measure", fail)
    result = run(source, OUT, "--to", "Q8_0", "-j", 2, code=2)
    assert "internal error: ZeroDivisionError" in result.stderr
    assert listing() == ["one.safetensors"]
