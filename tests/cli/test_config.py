"""Configuration: where it is found, what wins, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def configure():
    """Write `[tool.qassay]` into the working folder's pyproject.toml."""

    def write(body: str, place: Path = Path("pyproject.toml")) -> Path:
        place.write_text(f"[project]\nname = 'x'\n[tool.qassay]\n{body}\n", encoding="utf-8")
        return place

    return write


def test_the_command_line_wins_over_the_environment_over_the_file(run, broken, configure):
    assert run("check", broken).exit_code == 1
    configure('fail-on = "never"')
    assert run("check", broken).exit_code == 0
    assert run("check", broken, QASSAY_FAIL_ON="error").exit_code == 1
    assert run("check", broken, "--fail-on", "never", QASSAY_FAIL_ON="error").exit_code == 0


@pytest.mark.parametrize(
    ("body", "file", "expected"),
    [
        ('select = ["Q4"]', "broken", lambda result: "Q201" not in result.stdout),
        ('ignore = ["Q2", "Q4"]', "broken", lambda result: result.exit_code == 0),
        ('ignore = ["q2,q4"]', "broken", lambda result: result.exit_code == 0),
        ('fail-on = "warning"', "warned", lambda result: result.exit_code == 1),
        ('severity = { Q201 = "info", Q401 = "warning" }', "broken", lambda r: r.exit_code == 0),
        ('severity = { q202 = "error" }', "warned", lambda result: result.exit_code == 1),
        ("jobs = 1", "sound", lambda result: result.exit_code == 0),
        ('stats = "full"\noutput-format = "json"', "sound", lambda r: '"codes"' in r.stdout),
        ("allow-incomplete = true", "partly", lambda result: result.exit_code == 0),
        ('output-format = "json"', "sound", lambda result: result.stdout.startswith("{")),
    ],
)
def test_every_key(run, request, configure, body, file, expected):
    configure(body)
    result = run("check", request.getfixturevalue(file))
    assert expected(result), result.output


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("selct = []", ["selct", "select"]),
        ("nonsense = 1", ["nonsense", "fail-on", "output-format"]),
        ('select = "Q2"', ["select", "list"]),
        ("select = [2]", ["select", "list"]),
        ('fail-on = "info"', ["fail-on", "never"]),
        ("fail-on = true", ["fail-on", "never"]),
        ("jobs = 0", ["jobs", "1"]),
        ("jobs = true", ["jobs", "1"]),
        ('jobs = "2"', ["jobs", "1"]),
        ('allow-incomplete = "yes"', ["allow-incomplete", "true or false"]),
        ('output-format = "xml"', ["output-format", "json"]),
        ('severity = { Q201 = "bad" }', ["severity", "warning"]),
        ("severity = []", ["severity", "table"]),
        ('stats = "some"', ["stats", "full"]),
    ],
)
def test_a_wrong_key_or_value_names_file_key_and_what_is_allowed(
    run, sound, configure, body, words
):
    configure(body)
    result = run("check", sound)
    assert result.exit_code == 2
    assert result.stdout == ""
    for word in ["pyproject.toml", *words]:
        assert word in result.stderr


@pytest.mark.parametrize("body", ['select = ["Q77"]', 'severity = { Q2 = "info" }'])
def test_a_code_of_no_rule_is_refused(run, sound, configure, body):
    configure(body)
    assert run("check", sound).exit_code == 2


def test_the_nearest_pyproject_upward_with_our_table_is_used(run, broken, configure, monkeypatch):
    configure('fail-on = "never"')
    inner = Path("a/b")
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[tool.other]\nqassay = 1\n", encoding="utf-8")
    monkeypatch.chdir(inner)
    assert run("check", broken).exit_code == 0
    configure('fail-on = "error"')
    assert run("check", broken).exit_code == 1


def test_a_config_file_of_its_own_has_the_keys_at_the_top(run, broken, configure):
    configure('fail-on = "error"')
    Path("qassay.toml").write_text('fail-on = "never"\n', encoding="utf-8")
    assert run("check", broken, "--config", "qassay.toml").exit_code == 0
    assert run("check", broken, QASSAY_CONFIG="qassay.toml").exit_code == 0
    place = configure('fail-on = "never"', Path("a").parent / "pyproject.toml")
    assert run("check", broken, "--config", place).exit_code == 0


@pytest.mark.parametrize(
    "text",
    ['fail-on = "never"\n', '[tool.qassay]\nfail-on = "never"\n[tool.other]\nx = 1\n'],
    ids=["top", "table"],
)
def test_a_config_file_may_have_the_table(run, broken, text):
    Path("d.toml").write_text(text, encoding="utf-8")
    assert run("check", broken, "--config", "d.toml").exit_code == 0


def test_settings_in_two_places_of_a_config_file_are_refused(run, sound):
    text = 'fail-on = "never"\n[tool.qassay]\njobs = 1\n'
    Path("d.toml").write_text(text, encoding="utf-8")
    result = run("check", sound, "--config", "d.toml")
    assert result.exit_code == 2
    assert "d.toml: fail-on stands outside the table [tool.qassay]" in result.stderr


def test_both_places_are_documented(run):
    text = " ".join(run("check", "--help").stdout.split())
    assert "from its table [tool.qassay], or from the top of the file if it has none" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('select = ["Q2", "nOnsense"]', "d.toml: select: no rule is called nOnsense"),
        ('ignore = ["Q77"]', "d.toml: ignore: no rule is called Q77"),
        ('severity = { q77 = "info" }', "d.toml: severity: no rule is called q77"),
    ],
)
def test_a_wrong_rule_names_file_and_key_and_no_option(run, sound, body, message):
    Path("d.toml").write_text(body, encoding="utf-8")
    result = run("check", sound, "--config", "d.toml")
    assert result.exit_code == 2
    assert message in result.stderr
    assert "--select" not in result.stderr
    assert "--ignore" not in result.stderr


def test_settings_may_name_rules(run, broken, warned, configure):
    configure('ignore = ["scale-not-finite", "value-not-finite"]')
    assert run("check", broken).exit_code == 0
    configure('severity = { zero-scale-with-live-codes = "error" }')
    assert run("check", warned).exit_code == 1


@pytest.mark.parametrize("text", ["fail-on = ", "= 3", "\udc80"])
def test_broken_toml_is_a_usage_error(run, sound, text):
    Path("own.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    result = run("check", sound, "--config", "own.toml")
    assert result.exit_code == 2
    assert "own.toml" in result.stderr


def test_broken_toml_that_is_not_about_us_is_let_be(run, sound):
    Path("pyproject.toml").write_text("[tool.other\n", encoding="utf-8")
    assert run("check", sound).exit_code == 0


def test_tool_qassay_has_to_be_a_table(run, sound):
    Path("pyproject.toml").write_text("[tool]\nqassay = 3\n", encoding="utf-8")
    assert run("check", sound).exit_code == 2
