"""What is imported when, and how processes end."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import qassay
from qassay.cli import progress

ROOT = str(Path(qassay.__file__).parent.parent)
HEAVY = ("numpy", "numba", "rich", "llvmlite")


def imported(*args: object) -> set[str]:
    """Return the modules that a command line ends up with."""
    script = (
        "import sys\n"
        "from qassay.cli.main import cli\n"
        "try:\n"
        "    cli.main(sys.argv[1:], prog_name='qassay')\n"
        "finally:\n"
        "    print('\\n'.join(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ROOT},
        timeout=120,
    )
    assert done.stdout, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "args", [["--help"], ["--version"], ["check", "--help"], ["inspect", "--help"], []]
)
def test_help_imports_nothing_heavy(args):
    modules = imported(*args) if args else imported("-h")
    assert "qassay.cli.main" in modules
    assert not modules & set(HEAVY)


def test_a_small_check_imports_neither_numba_nor_rich(sound):
    modules = imported("check", sound)
    assert "numpy" in modules
    assert not modules & {"numba", "llvmlite", "rich"}


def test_inspect_of_a_sound_file_loads_only_what_reads_headers(sound):
    modules = imported("inspect", sound)
    assert "qassay.containers.gguf" in modules
    layers = {name.split(".")[1] for name in modules if name.startswith("qassay.")}
    assert not layers & {"rules", "run", "kernels"}


def test_env_imports_no_numba():
    assert not imported("env") & {"numba", "llvmlite"}


def test_python_m_runs_it(spawn, sound):
    done = spawn("check", sound)
    assert done.returncode == 0
    assert done.stderr == b""
    assert done.stdout.endswith(b"clean: no errors, no warnings\n")


@pytest.mark.parametrize("args", [["check"], ["rules"], ["explain", "schema"], ["--help"]])
def test_a_reader_that_leaves_is_no_fault(args, broken):
    args = [*args, str(broken)] if args == ["check"] else args
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "qassay", *args],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            env={**os.environ, "PYTHONPATH": ROOT},
            timeout=120,
        )
    finally:
        os.close(writer)
    assert done.stderr == b""
    assert done.returncode == (1 if args[0] == "check" else 0)


def test_an_encoding_without_the_characters_gets_escapes(spawn, tmp_path):
    from qassay.testing.gguf_writer import write_gguf

    path = tmp_path / "m.gguf"
    path.write_bytes(write_gguf({"general.name": "naïve ☃"}, []))
    done = spawn("inspect", path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"na\\xefve \\u2603" in done.stdout


def test_uncached_kernels_are_said_once_on_stderr(run, sound, monkeypatch):
    from qassay.cli import checking

    class Jit:
        uncached = ("a", "b")

    monkeypatch.setitem(checking.sys.modules, "qassay.kernels.jit", Jit)
    result = run("check", sound)
    assert result.stderr.count("compiles them anew") == 1
    assert result.exit_code == 0
    assert run("check", sound, "-q").stderr == ""


def test_an_unknown_command_gets_a_suggestion(run, sound):
    assert "did you mean check" in run("chekc", "x").stderr
    assert "qassay check MODEL" in run(sound).stderr
    assert run("chekc").exit_code == 2


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def bar_of(monkeypatch, stderr, *, shown: bool = True, after: float = 0.0) -> str:
    """Return what a run of a moment, 100 bytes long, leaves on stderr."""
    monkeypatch.setattr("sys.stderr", stderr)
    monkeypatch.setattr(progress, "AFTER", after)
    with progress.progress("checking", 100, shown=shown) as step:
        if step is not None:
            step(50)
            deadline = time.monotonic() + 20
            while after == 0 and "50/100" not in stderr.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
    return stderr.getvalue()


def test_progress_appears_on_a_terminal_once_time_has_passed_whatever_the_size(monkeypatch):
    assert progress.AFTER == 1
    shown = bar_of(monkeypatch, Terminal())
    assert "checking" in shown
    assert "50/100 bytes" in shown
    assert bar_of(monkeypatch, Terminal(), after=60) == ""
    assert bar_of(monkeypatch, Terminal(), shown=False) == ""
    assert bar_of(monkeypatch, io.StringIO()) == ""


def test_a_bar_that_comes_too_late_does_not_come(monkeypatch):
    monkeypatch.setattr("sys.stderr", Terminal())
    late = progress._LateBar("checking", 100)
    late.close()
    late.show()
    late.step(1)
    assert sys.stderr.getvalue() == ""


def test_check_counts_what_it_reads(run, sound, monkeypatch):
    from qassay.cli import checking

    seen = []

    @contextlib.contextmanager
    def record(what, total, *, shown):
        seen.append((what, total, shown))
        yield seen.append

    monkeypatch.setattr(checking, "progress", record)
    run("check", sound)
    assert seen[0] == ("checking", sound.stat().st_size, True)
    assert sum(seen[1:]) == 528
    seen.clear()
    run("check", sound, "--no-progress")
    assert seen[0][2] is False
