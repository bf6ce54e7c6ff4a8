"""The matcher of patterns against Python's own `re` and `fnmatch`, and its bounds."""

from __future__ import annotations

import fnmatch
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qassay.encodings.layers.patterns import Glob, Pattern, PatternError

ALPHABET = "ab.1|()*+?$^[]-{2,}\\d_:!="
NAMES = st.text("ab.1_-", max_size=8)


@settings(max_examples=3000, deadline=None)
@given(text=st.text(ALPHABET, min_size=1, max_size=9), name=NAMES, search=st.booleans())
def test_says_what_re_says(text: str, name: str, search: bool) -> None:
    try:
        pattern = Pattern(text, search=search)
    except PatternError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # `[[`, `--` in a class
        theirs = re.compile(text)
    found = theirs.search(name) if search else theirs.match(name)
    assert pattern.matches(name) is (found is not None)


@settings(max_examples=1000, deadline=None)
@given(text=st.text("ab.*?[]!-1^", min_size=1, max_size=8), name=NAMES)
def test_says_what_fnmatch_says(text: str, name: str) -> None:
    try:
        glob = Glob(text)
    except PatternError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert glob.matches(name) is fnmatch.fnmatchcase(name, text)


@pytest.mark.parametrize(
    ("text", "name", "matches"),
    [
        (r".*\.(18|20)\..*(down|gate).*", "model.layers.18.mlp.gate_proj", True),
        (r".*\.(18|20)\..*(down|gate).*", "model.layers.17.mlp.gate_proj", False),
        (r"^(?!.*visual).*q_proj$", "model.layers.0.q_proj", True),
        (r"^(?!.*visual).*q_proj$", "model.visual.0.q_proj", False),
        (r"(?:model\.)?layers\.\d+?\.[^.]+\.w[123]", "layers.12.moe.w2", True),
        (r"a{2,3}$", "aaaa", False),
        (r"^a|b", "b", True),
    ],
)
def test_real_patterns(text: str, name: str, matches: bool) -> None:
    assert (re.match(text, name) is not None) is matches
    assert Pattern(text).matches(name) is matches


@pytest.mark.parametrize(
    "text", [r"(a)\1", r"(?i)a", r"(?P<x>a)", r"a(?!b)", r"\bword", "(", ")", "[a", "a**", "é",
             "a{9999}", "x" * 1001, "(?!a)b|c", "*"],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


@pytest.mark.parametrize("text", [r"(a|aa)+$", r"(.*.*.*)*x", r"(a*)*$", r"(a?){60}a{60}"])
def test_no_backtracking(text: str) -> None:
    machine = Pattern(text)
    assert machine.matches("a" * 500 + "b") in (False, True)
    assert machine._machine.work < 150_000


def test_work_is_bounded() -> None:
    pattern = Pattern("(a|b)*a" + "(a|b)" * 60)
    found = {pattern.matches(format(i * 2654435761 % 2**200, "0200b").translate({48: "a", 49: "b"}))
             for i in range(1, 40)}  # fmt: skip
    assert pattern._machine.work < 400_000
    assert found <= {True, False, None}


def test_names_that_are_not_plain_text_are_not_known() -> None:
    assert Pattern(".*").matches("é") is None
    assert Pattern(".*").matches("a\n") is None
