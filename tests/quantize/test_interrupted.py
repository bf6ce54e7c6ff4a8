"""Stopped at any moment: nothing under the final name, and the source as it was."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from qassay.encodings.registry import open_with_encodings
from qassay.run.options import CheckOptions

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


def interrupted_at(line: int, work) -> bool:
    """Run `work`, interrupted before the line of `new_file` that is run as number `line`."""
    seen = 0

    def trace(frame, event, _):
        nonlocal seen
        if not frame.f_code.co_filename.endswith("new_file.py"):
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("overwrite", [False, True])
def test_interrupted_between_any_two_lines(one_tensor, weights, overwrite):
    from qassay.run import quantize as module
    from qassay.run.quantize_plan import Wish, plan

    source = open_with_encodings(one_tensor(weights(2, 32)))
    wish = Wish.parse("ggml", "Q8_0")
    options = module.QuantizeOptions(wish, overwrite=overwrite, check=CheckOptions(jobs=1))
    planned = plan(source, wish)

    def work():
        module._write(planned, (), Path(OUT).resolve(), options)

    work()
    finished = digest(OUT)
    OUT.unlink()
    line, whole = 1, 0
    while interrupted_at(line, work):
        assert set(listing()) <= {"one.safetensors", "out.gguf"}, line
        if OUT.exists():
            assert digest(OUT) == finished
            OUT.unlink()
            whole += 1
        line += 1
    assert line > 40
    assert whole >= 1  # the last lines come after the file got its name


def test_a_source_cut_short_after_its_check(document, source, monkeypatch):
    from qassay.run import quantize as module

    real = module.pairs_of

    def cut(*arguments):
        pairs = real(*arguments)
        os.truncate(source, source.stat().st_size // 2)
        return pairs

    monkeypatch.setattr(module, "pairs_of", cut)
    made = document(source, OUT, "--to", "Q8_0", code=3)
    assert made["verdict"] == "incomplete"
    assert made["result"]["quantize"]["written"] is False
    assert made["coverage"]["checked"] == 0
    [skipped] = made["coverage"]["skipped"]
    assert skipped["name"] == "a.weight"
    assert "could be checked, and not be read again" in skipped["reason"]
    assert [each["code"] for each in made["findings"]] == ["Q901"]
    assert listing() == ["one.safetensors"]


def test_another_run_was_faster(run, source, monkeypatch):
    from qassay.run import quantize as module

    real = module.converted

    def taken(*arguments):
        yield from real(*arguments)
        OUT.write_bytes(b"another's")

    monkeypatch.setattr(module, "converted", taken)
    result = run(source, OUT, "--to", "Q8_0", code=2)
    assert "made a file of this name meanwhile" in result.stderr
    assert "name another file" in result.stderr
    assert "folder" not in result.stderr
    assert OUT.read_bytes() == b"another's"
    assert listing() == ["one.safetensors", "out.gguf"]
