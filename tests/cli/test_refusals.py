"""What cannot be done is said in one line and ends with 2: no hang, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import qassay

ROOT = str(Path(qassay.__file__).parent.parent)


def shell(line: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of shell in which `qassay` is this one."""
    if line.startswith("qassay "):
        line = line.replace("qassay", f"{sys.executable} -m qassay", 1)
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        check=False,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": ROOT, **env},
    )


@pytest.mark.parametrize(
    "command", [["check"], ["inspect"], ["scales"], ["quantize", "--to", "Q8_0"]]
)
def test_an_empty_path_is_not_this_folder(run, command):
    result = run(*command, "", *(["x.gguf"] if "--to" in command else []))
    assert result.exit_code == 2
    assert "the path is empty" in result.stderr


@pytest.mark.parametrize("types", ["", ",", " , "])
def test_no_type_is_not_no_target(run, sound, types):
    result = run("check", sound, "--to", types)
    assert result.exit_code == 2
    assert "names no type" in result.stderr


@pytest.mark.parametrize("jobs", ["0", "1025", "99999999999999999999", "1.5"])
def test_jobs_out_of_range(run, sound, jobs):
    result = run("check", sound, "-j", jobs)
    assert result.exit_code == 2
    assert "--jobs" in result.stderr
    Path("own.toml").write_text(f"jobs = {jobs}", encoding="utf-8")
    result = run("check", sound, "--config", "own.toml")
    assert result.exit_code == 2
    assert "from 1 to 1024" in result.stderr


@pytest.mark.parametrize("line", [["--ignore", "Q"], ["--select", "Q2", "--ignore", "q2"]])
def test_a_selection_that_leaves_no_rule(run, sound, line):
    result = run("check", sound, *line)
    assert result.exit_code == 2
    assert "nothing would be checked" in result.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("line", ["check {} -f json", "check {}", "rules", "--help"])
def test_a_full_disk(sound, line):
    result = shell(f"qassay {line.format(sound)} >/dev/full")
    assert result.returncode == 2
    assert result.stderr.decode().strip().count("\n") == 0
    assert b"cannot be written: No space left on device" in result.stderr


@pytest.mark.parametrize("line", ["check {} -f json", "check {}", "rules"])
def test_a_closed_stdout(sound, line):
    result = shell(f"qassay {line.format(sound)} >&-")
    assert result.returncode == 2
    assert result.stderr.decode().strip().count("\n") == 0
    assert b"cannot be written: stdout is closed" in result.stderr


def test_a_closed_stdout_is_not_needed_for_a_file(sound, tmp_path):
    result = shell(f"qassay check {sound} -o {tmp_path}/r >&- 2>&-")
    assert result.returncode == 0
    assert "clean" in (tmp_path / "r").read_text()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_configuration_that_never_ends(sound):
    for name in ("/dev/zero", "pipe"):
        if name == "pipe":
            os.mkfifo(name)
        result = shell(f"qassay check {sound}", QASSAY_CONFIG=name)
        assert result.returncode == 2
        assert b"not a regular file" in result.stderr
    Path("pipe").rename("pyproject.toml")
    assert shell(f"qassay check {sound}").returncode == 0


def test_a_configuration_that_is_too_large(run, sound):
    Path("own.toml").write_bytes(b"#" * (1 << 20) + b"\n")
    result = run("check", sound, "--config", "own.toml")
    assert result.exit_code == 2
    assert "larger than" in result.stderr


@pytest.mark.parametrize(
    "line", ["check {}", "rules", "encodings", "explain Q201", "explain Q8_0", "env", "--help"]
)
def test_without_docstrings(sound, line):
    """`python -OO` removes the manual pages, and only them."""
    result = shell(f"{sys.executable} -OO -m qassay {line.format(sound)}")
    assert result.returncode == 0, result.stderr
    if line.startswith("explain"):
        assert b"run qassay without -OO" in result.stdout
