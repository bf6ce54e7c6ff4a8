"""What is imported when, and how processes end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qassay

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


def test_progress_is_for_terminals_and_large_inputs(sound, monkeypatch):
    import io

    from qassay.cli import checking

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def bar(*, shown: bool) -> bool:
        with checking._progress([sound], shown=shown) as step:
            if step is not None:
                step(100)
            return step is not None

    monkeypatch.setattr("sys.stderr", Terminal())
    assert not bar(shown=True)
    monkeypatch.setattr(checking, "PROGRESS_FROM", sound.stat().st_size)
    assert bar(shown=True)
    assert "checking" in sys.stderr.getvalue()
    assert not bar(shown=False)
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert not bar(shown=True)
