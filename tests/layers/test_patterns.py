"""The matcher of patterns against Python's own `re` and `fnmatch`, and its bounds."""

from __future__ import annotations

import fnmatch
import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qassay.encodings.layers.patterns import Glob, Pattern, PatternError, PatternSet

ALPHABET = "ab.1|()*+?$^[]-{2,}\\d_:!="


def matches(pattern: Pattern, name: str) -> bool | None:
    found = PatternSet([pattern]).first(name)
    return None if found is None else found == 0


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
    assert matches(pattern, name) is (found is not None)


@settings(max_examples=1000, deadline=None)
@given(text=st.text("ab.*?[]!-1^", min_size=1, max_size=8), name=NAMES)
def test_says_what_fnmatch_says(text: str, name: str) -> None:
    try:
        glob = Glob(text)
    except PatternError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert matches(glob, name) is fnmatch.fnmatchcase(name, text)


@pytest.mark.parametrize(
    ("text", "name", "fits"),
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
def test_real_patterns(text: str, name: str, fits: bool) -> None:
    assert (re.match(text, name) is not None) is fits
    assert matches(Pattern(text), name) is fits


@pytest.mark.parametrize(
    "text", [r"(a)\1", r"(?i)a", r"(?P<x>a)", r"a(?!b)", r"\bword", "(", ")", "[a", "a**", "é",
             "a{9999}", "x" * 1001, "(?!a)b|c", "*"],
)  # fmt: skip
def test_what_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


@pytest.mark.parametrize("text", [r"(a|aa)+$", r"(.*.*.*)*x", r"(a*)*$", r"(a?){60}a{60}"])
def test_no_backtracking(text: str) -> None:
    machine = PatternSet([Pattern(text)])
    assert machine.first("a" * 500 + "b") in (0, -1)
    assert machine.work < 300_000


def test_work_is_bounded() -> None:
    machine = PatternSet([Pattern("(a|b)*a" + "(a|b)" * 60 + "c")])
    found = set()
    for seed in range(1, 400):
        bits = format(pow(3, seed, 2**200), "0200b")
        found.add(machine.first(bits.translate({48: "a", 49: "b"})))
    assert machine.work < 4_000_000
    assert None in found


def test_the_first_of_several_counts() -> None:
    texts = [r".*x$", r"^(?!.*gate).*mlp", r".*mlp\.gate", r".*"]
    machine = PatternSet([Pattern(text) for text in texts])
    names = ["a.mlp.x", "a.mlp.up", "a.mlp.gate", "b"]
    assert [machine.first(name) for name in names] == [0, 1, 2, 3]
    assert PatternSet([]).first("a") == -1


def test_names_that_are_not_plain_text_are_not_known() -> None:
    assert matches(Pattern(".*"), "é") is None
    assert matches(Pattern(".*"), "a\n") is None
