"""Every option does what its help says, from the command line, the environment and a file."""

from __future__ import annotations

import json
import re
import stat

import click
import numpy as np
import pytest

import qassay
from qassay.cli.main import cli
from qassay.testing.gguf_writer import write_gguf


def codes(result) -> set[str]:
    return {finding["code"] for finding in json.loads(result.stdout)["findings"]}


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ([], {"Q201", "Q401"}),
        (["--select", "Q2"], {"Q201"}),
        (["--select", "q401"], {"Q401"}),
        (["--select", "Q4,Q201"], {"Q201", "Q401"}),
        (["--select", "Q4", "--select", "Q201"], {"Q201", "Q401"}),
        (["--ignore", "Q2"], {"Q401"}),
        (["--select", "Q", "--ignore", "Q401"], {"Q201"}),
        (["--select", "Q4", "--ignore", "Q401"], set()),
    ],
)
def test_select_and_ignore(run, broken, options, found):
    assert codes(run("check", broken, "-f", "json", *options)) == found


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_an_unknown_code_names_near_ones(run, sound, option):
    result = run("check", sound, option, "Q210")
    assert result.exit_code == 2
    assert option in result.stderr
    assert "perhaps Q20" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("scale-not-finite", {"Q201"}),
        ("Scale_Not_Finite,q401", {"Q201", "Q401"}),
        ("value-not-finite", {"Q401"}),
    ],
)
def test_rules_may_be_named(run, broken, word, found):
    assert codes(run("check", broken, "-f", "json", "--select", word)) == found
    left = {"Q201", "Q401"} - found
    assert codes(run("check", broken, "-f", "json", "--ignore", word)) == left


def test_an_unknown_rule_is_echoed_as_given_and_suggested(run, sound):
    result = run("check", sound, "--ignore", "Unexpected-trailing-byte")
    assert result.exit_code == 2
    assert "--ignore: no rule is called Unexpected-trailing-byte" in result.stderr
    assert "perhaps Q008 unexpected-trailing-bytes" in result.stderr


def test_an_unknown_rule_from_the_environment_names_the_variable(run, sound):
    result = run("check", sound, QASSAY_SELECT="q2,nonsense")
    assert result.exit_code == 2
    assert "QASSAY_SELECT: no rule is called nonsense" in result.stderr


def test_the_report_says_which_rules_ran(run, sound):
    document = json.loads(run("check", sound, "--select", "Q2", "-f", "json").stdout)
    assert document["result"]["rules"]
    assert all(code.startswith("Q2") for code in document["result"]["rules"])


@pytest.mark.parametrize("form", ["text", "json"])
def test_output_file_takes_the_report_and_leaves_stdout_empty(run, broken, tmp_path, form):
    shown = run("check", broken, "-f", form)
    target = tmp_path / "report"
    written = run("check", broken, "-f", form, "--output-file", target)
    assert written.exit_code == shown.exit_code == 1
    assert written.stdout == ""
    assert target.read_text(encoding="utf-8") == shown.stdout
    assert [path.name for path in tmp_path.glob(".*")] == []


def test_output_file_keeps_the_mode_of_the_old_file(run, sound, tmp_path):
    target = tmp_path / "report"
    target.write_text("old")
    target.chmod(0o640)
    run("check", sound, "-o", target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert target.read_text(encoding="utf-8") != "old"


def test_output_file_is_left_alone_when_the_run_fails(run, sound, tmp_path):
    target = tmp_path / "report"
    target.write_text("old")
    assert run("check", sound, "-o", target, "--select", "Q77").exit_code == 2
    assert target.read_text(encoding="utf-8") == "old"


def test_output_file_in_no_folder_is_a_usage_error(run, sound, tmp_path):
    result = run("check", sound, "-o", tmp_path / "none" / "report")
    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_an_unknown_format_lists_those_there_are(run, sound):
    result = run("check", sound, "--output-format", "sarif2")
    assert result.exit_code == 2
    assert "text" in result.stderr
    assert "json" in result.stderr


ESCAPE = "\x1b["


@pytest.mark.parametrize(
    ("options", "env", "colored"),
    [
        ([], {}, False),
        (["--color", "always"], {}, True),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        (["--color", "never"], {}, False),
        ([], {"QASSAY_COLOR": "always"}, True),
    ],
)
def test_color(spawn, broken, options, env, colored):
    output = spawn("check", broken, *options, **env).stdout.decode()
    assert (ESCAPE in output) is colored


def test_color_changes_nothing_but_color(run, broken):
    colored = run("check", broken, "--color", "always").stdout
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == run("check", broken).stdout


def test_color_auto_on_a_terminal(monkeypatch):
    from pathlib import Path

    from qassay.cli.options import Output

    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    monkeypatch.setattr("sys.stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert Output("text", None, "auto", 0).colored()
    assert not Output("text", Path("file"), "auto", 0).colored()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Output("text", None, "auto", 0).colored()
    assert Output("text", None, "always", 0).colored()


def test_json_is_never_colored(run, broken):
    assert ESCAPE not in run("check", broken, "-f", "json", "--color", "always").stdout


def test_the_width_of_the_terminal_does_not_matter_in_a_pipe(spawn, broken):
    outputs = {spawn("check", broken, COLUMNS=width).stdout for width in ("20", "80", "400")}
    assert len(outputs) == 1


def test_quiet_and_verbose(run, broken, warned):
    normal = run("check", broken).stdout
    quiet = run("check", broken, "-q").stdout
    assert "Scales" in normal
    assert "Scales" not in quiet
    assert "Q201" in quiet
    assert quiet.splitlines()[-1] == normal.splitlines()[-1]
    both = run("check", broken, "-q", "-v")
    assert both.exit_code == 2


def test_jobs_change_nothing(run, broken):
    outputs = {run("check", broken, "-f", "json", "--jobs", jobs).stdout for jobs in (1, 2, 7)}
    assert len(outputs) == 1
    assert run("check", broken, "--jobs", "0").exit_code == 2


def test_full_stats_bring_the_codes(run, sound):
    document = json.loads(run("check", sound, "-f", "json", "--stats", "full").stdout)
    counts = document["tensors"][0]["codes"]["counts"]
    assert sum(counts.values()) == 256
    with qassay.open(sound) as model:
        raw = model.tensors["blk.0.ffn_up.weight"].raw().reshape(8, 34)
    stored = raw[:, 2:].copy().view(np.int8)
    codes, seen = np.unique(stored, return_counts=True)
    assert counts == {str(code): int(count) for code, count in zip(codes, seen, strict=True)}
    assert codes.min() < 0


def test_the_size_of_a_file_does_not_shape_the_document(run, sound, tmp_path):
    large = tmp_path / "large.gguf"
    large.write_bytes(write_gguf({}, [("w", 8, (32, 1025), bytes(34 * 1025))]))
    for path in (sound, large):
        document = json.loads(run("check", path, "-f", "json").stdout)
        assert "codes" not in document["tensors"][0]
        document = json.loads(run("check", path, "-f", "json", "--stats", "full").stdout)
        assert "codes" in document["tensors"][0]


def test_help_says_what_is_sampled(run):
    from qassay.kernels.chunk import CODE_SAMPLE

    text = " ".join(run("check", "--help").stdout.split())
    assert f"the codes of the first {CODE_SAMPLE} blocks of each tensor" in text


# One environment variable and what it has to do, for every option of check.
BY_ENVIRONMENT = {
    "QASSAY_SELECT": ("Q2,Q401", lambda result: "Q401" in result.stdout),
    "QASSAY_IGNORE": ("Q2", lambda result: "Q201" not in result.stdout),
    "QASSAY_FAIL_ON": ("never", lambda result: result.exit_code == 0),
    "QASSAY_EXIT_ZERO": ("1", lambda result: result.exit_code == 0),
    "QASSAY_ALLOW_INCOMPLETE": ("1", lambda result: result.exit_code == 1),
    "QASSAY_OUTPUT_FORMAT": ("json", lambda result: result.stdout.startswith("{")),
    "QASSAY_OUTPUT_FILE": ("report", lambda result: result.stdout == ""),
    "QASSAY_COLOR": ("always", lambda result: ESCAPE in result.stdout),
    "QASSAY_QUIET": ("1", lambda result: "Scales" not in result.stdout),
    "QASSAY_VERBOSE": ("1", lambda result: "Q201" in result.stdout),
    "QASSAY_JOBS": ("0", lambda result: result.exit_code == 2),
    "QASSAY_STATS": ("none", lambda result: result.exit_code == 2),
    "QASSAY_NO_PROGRESS": ("1", lambda result: result.exit_code == 1),
    "QASSAY_TO": ("Q9", lambda result: result.exit_code == 2),
    "QASSAY_ON": ("no-such-runtime", lambda result: result.exit_code == 2),
    "QASSAY_TP": ("0", lambda result: result.exit_code == 2),
    "QASSAY_GROUP_SIZE": ("0", lambda result: result.exit_code == 2),
    "QASSAY_IMATRIX": ("nowhere", lambda result: result.exit_code == 2),
    "QASSAY_CONFIG": ("nowhere.toml", lambda result: result.exit_code == 2),
}


@pytest.mark.parametrize("variable", BY_ENVIRONMENT)
def test_environment(run, broken, variable):
    value, expected = BY_ENVIRONMENT[variable]
    assert expected(run("check", broken, **{variable: value}))


# What one run is about, and no habit of a user.
ABOUT_ONE_RUN = {"key", "to", "type_for", "force"}
ABOUT_ONE_RUN |= {"published", "tensor", "block", "store", "codes", "rounding", "plot"}
ABOUT_ONE_RUN |= {"weights", "inputs", "device", "reference", "graph", "limit", "no_pairs"}
ABOUT_ONE_RUN |= {"layer", "float_layer", "input_name", "output_name", "group_size", "weight_bits"}
ABOUT_ONE_RUN |= {"params", "shapes", "groups", "measure", "mlir", "inverse", "shape"}
ABOUT_ONE_RUN |= {
    "scale",
    "zero_point",
    "half",
    "multiple",
    "layers",
    "destination",
    "seed",
    "rows",
}


def test_every_option_has_an_environment_variable():
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        for option in command.params:
            if isinstance(option, click.Option) and option.name not in ABOUT_ONE_RUN:
                wanted = "QASSAY_" + option.name.upper()
                assert option.envvar == wanted, (name, option.name)
    check = cli.get_command(context, "check")
    named = {option.envvar for option in check.params if isinstance(option, click.Option)}
    assert named == set(BY_ENVIRONMENT)
