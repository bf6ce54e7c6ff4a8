"""The table of exit codes: the same for every command and output format."""

from __future__ import annotations

import pytest

from qassay.report.registry import renderers

CLEAN, FINDINGS, FAULT, INCOMPLETE = 0, 1, 2, 3


@pytest.mark.parametrize("form", renderers())
@pytest.mark.parametrize(
    ("files", "options", "code"),
    [
        (["sound"], [], CLEAN),
        (["sound"], ["--fail-on", "warning"], CLEAN),
        (["empty"], [], CLEAN),
        (["broken"], [], FINDINGS),
        (["broken"], ["--fail-on", "warning"], FINDINGS),
        (["broken"], ["--fail-on", "never"], CLEAN),
        (["broken"], ["--exit-zero"], CLEAN),
        (["broken"], ["--exit-zero", "--fail-on", "error"], CLEAN),
        (["broken"], ["--ignore", "Q2,Q4"], CLEAN),
        (["warned"], [], CLEAN),
        (["warned"], ["--fail-on", "warning"], FINDINGS),
        (["partly"], [], INCOMPLETE),
        (["partly"], ["--allow-incomplete"], CLEAN),
        (["partly"], ["--exit-zero"], INCOMPLETE),
        (["partly"], ["--fail-on", "never"], INCOMPLETE),
        (["missing"], [], INCOMPLETE),
        (["missing"], ["--allow-incomplete"], CLEAN),
        (["sound", "broken"], [], FINDINGS),
        (["sound", "partly"], [], INCOMPLETE),
        (["partly", "broken"], [], FINDINGS),
        (["partly", "broken"], ["--exit-zero"], INCOMPLETE),
        (["missing", "broken"], ["--allow-incomplete"], FINDINGS),
        (["sound"], ["--select", "Q77"], FAULT),
        (["broken"], ["--select", "Q77"], FAULT),
        (["broken"], ["--fail-on", "info"], FAULT),
        (["broken"], ["--no-such-option"], FAULT),
        ([], [], FAULT),
    ],
)
def test_check(run, request, tmp_path, form, files, options, code):
    paths = [
        tmp_path / "missing.gguf" if name == "missing" else request.getfixturevalue(name)
        for name in files
    ]
    assert run("check", *paths, "--output-format", form, *options).exit_code == code


@pytest.mark.parametrize("form", renderers())
def test_a_crashed_rule_is_an_internal_fault_whatever_else_was_found(
    run, broken, monkeypatch, form
):
    from qassay.rules.q203_subnormal_scale import SubnormalScale

    def crash(self, tensor):
        raise IndexError("planted")

    monkeypatch.setattr(SubnormalScale, "check", crash)
    result = run("check", broken, "--exit-zero", "--allow-incomplete", "-f", form)
    assert result.exit_code == FAULT
    assert "Q902" in result.stdout
    assert "Q201" in result.stdout


@pytest.mark.parametrize("form", renderers())
@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["rules"], CLEAN),
        (["encodings"], CLEAN),
        (["env"], CLEAN),
        (["explain", "Q201"], CLEAN),
        (["explain", "Q4_K"], CLEAN),
        (["explain", "nonsense"], FAULT),
    ],
)
def test_commands_that_only_tell(run, form, args, code):
    assert run(*args, "--output-format", form).exit_code == code


@pytest.mark.parametrize("form", renderers())
@pytest.mark.parametrize(
    ("file", "code"),
    [("sound", CLEAN), ("broken", CLEAN), ("partly", CLEAN), ("missing", INCOMPLETE)],
)
def test_inspect(run, request, tmp_path, form, file, code):
    path = tmp_path / "missing" if file == "missing" else request.getfixturevalue(file)
    assert run("inspect", path, "-f", form).exit_code == code


def test_inspect_fails_on_a_broken_structure(run, sound):
    sound.write_bytes(sound.read_bytes()[:-300])
    result = run("inspect", sound)
    assert result.exit_code == FINDINGS
    assert "Q001" in result.stdout


@pytest.mark.parametrize("command", [["check"], ["env"]])
def test_a_bad_kernel_choice_is_a_usage_error(run, sound, command):
    args = [*command, sound] if command == ["check"] else command
    result = run(*args, QASSAY_KERNELS="turbo")
    assert result.exit_code == FAULT
    assert "QASSAY_KERNELS" in result.stderr
    assert result.stdout == ""


def test_an_unexpected_exception_is_one_line(run, sound, monkeypatch):
    from qassay.cli import checking

    def crash(*args, **kwargs):
        raise ZeroDivisionError("one\nline \x1b[31m")

    monkeypatch.setattr(checking, "check", crash)
    result = run("check", sound)
    assert result.exit_code == FAULT
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("internal error: ZeroDivisionError: one\\nline \\x1b[31m")
    assert "Traceback" in run("check", sound, QASSAY_DEBUG="1").stderr


def test_an_interrupt_exits_130(run, sound, monkeypatch):
    from qassay.cli import checking

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(checking, "check", interrupt)
    result = run("check", sound)
    assert result.exit_code == 130
    assert "interrupted" in result.stderr
    assert result.stdout == ""
