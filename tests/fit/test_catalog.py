"""Conditions and catalogs: what is understood, what is refused, and what effects become."""

from __future__ import annotations

import contextlib
import copy

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from qassay.core.errors import DeclarationError, UsageError
from qassay.core.finding import Certainty, Severity
from qassay.runtimes.catalog import catalog, catalogs
from qassay.runtimes.catalog.expressions import Unknown, parse
from qassay.runtimes.catalog.grammar import Effect, read_catalog
from qassay.runtimes.fit import fit
from qassay.runtimes.fit_profile import Profile, parse_on
from qassay.runtimes.shapes.linear import Linear, Shapes
from qassay.runtimes.sophgo.named import aimed_at

# Conditions as published for other runtimes, written anew.
CONDITIONS = [
    "(Np % 64 == 0 and Kp % 128 == 0) or (Np % 128 == 0 and Kp % 64 == 0)",
    "g in (-1, 32, 64, 128) and (bits == 4 and not sym or bits in (4, 8) and sym)",
    "H % 128 == 0 and Ip % max(64, g) == 0",
    "Np % (32 // bits) == 0 and g > 0 and K % g == 0",
    "Kp % (g if g > 0 else K) == 0 and (g in (-1, 32) or g == K)",
    "g >= 16 and (g & (g - 1)) == 0",
    "(Np * bits // 8) % 32 == 0",
    "(K // g) % tp == 0",
    "N * K > 2048",
    "True",
    "False",
    "16 <= g < K",
]
VALUES = {"N": 96, "K": 4096, "Np": 48, "Kp": 4096, "H": 2048, "Ip": 768, "g": 128, "bits": 4,
          "tp": 2, "M": 1, "sym": True, "act_order": False}  # fmt: skip


@pytest.mark.parametrize("text", CONDITIONS)
@given(n=st.integers(1, 5000), k=st.integers(1, 9000), g=st.sampled_from([-1, 16, 32, 96, 128]),
       bits=st.sampled_from([2, 4, 8]), sym=st.booleans())  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_means_what_python_means(text, n, k, g, bits, sym):
    values = VALUES | {"N": n, "Np": n, "K": k, "Kp": k, "g": g, "bits": bits, "sym": sym}
    assert parse(text).holds(values) == bool(eval(text, {"max": max}, values))


@pytest.mark.parametrize(
    "text",
    [
        "", "N", "N ** 2 == 4", "N << 2 == 4", "N / 2 == 1", "__import__('os')", "N.real == 1",
        "lambda: 1", "[N for N in (1, 2)]", "Q == 1", "N == 'a'", "N in K", "N in ()",
        "not N", "1 if N else 2", "min(N) == 1", "max(N, *K) == 1", "print(1, 2) == 1",
        "N == 1 or", "(" * 300 + "N == 1", "-" * 60 + "1 == N", "N == 1; K", "N == 1\nK",
        "f'{N}' == '1'", "N is 1", "N == 1.5", "~N == 1", "N == 1" + " and N == 1" * 60,
        "'a' in 'abc'", "N @ K == 1", "(N := 3) == 3", "N == 9" + "9" * 60,
    ],
)  # fmt: skip
def test_refuses_what_is_no_condition(text):
    with pytest.raises(DeclarationError, match="condition"):
        parse(text)


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_refused_or_decided(text):
    try:
        condition = parse(text)
    except DeclarationError:
        return
    with contextlib.suppress(Unknown):
        assert condition.holds(VALUES) in (True, False)


def test_a_name_without_a_value_decides_only_where_it_matters():
    values = {"N": 64, "sym": None}
    assert parse("N % 64 == 0 or sym").holds(values)
    assert not parse("sym and N == 1").holds(values)
    with pytest.raises(Unknown, match="sym"):
        parse("N == 64 and sym").holds(values)
    with pytest.raises(Unknown, match="division"):
        parse("N % bits == 0").holds({"N": 64, "bits": 0})


def test_every_catalog_loads():
    assert "sophgo" in catalogs()
    for name in catalogs():
        found = catalog(name)
        assert found.rules
        for rule in found.rules:
            assert not rule.says.endswith(".")
    with pytest.raises(UsageError, match="no such runtime"):
        catalog("nothing")


def entry(**more):
    rule = {
        "id": "shape", "path": "wide", "dimension": "N", "condition": "Np % 64 == 0",
        "effect": "hard_error", "stage": "acceptance", "says": "N = {N} is no multiple of 64",
        "does": "it stops", "source": ["made up"], "confidence": "high",
    }  # fmt: skip
    return {**rule, **more}


def document(*rules, **more):
    return {"runtime": "made", "title": "made up", "rules": list(rules) or [entry()], **more}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"condition": "N ** 2"}, "Pow"),
        ({"condition": None}, "condition"),
        ({"effect": "explodes"}, "effect"),
        ({"stage": "later"}, "stage"),
        ({"confidence": "sure"}, "confidence"),
        ({"dimension": "Z"}, "dimension"),
        ({"says": "about {nothing}"}, "names that are known"),
        ({"says": ""}, "says"),
        ({"source": []}, "source"),
        ({"id": "No Id"}, "id"),
        ({"colour": "red"}, "mean nothing"),
        ({"applies": {"since": "unknown"}}, "words"),
        ({"applies": {"act_order": "yes"}}, "act_order"),
        ({"effect": "kernel_rejected"}, "path"),
        ({"when": "K"}, "number"),
    ],
)
def test_a_wrong_entry_is_named(change, said):
    with pytest.raises(DeclarationError, match=said):
        read_catalog(document(entry(**change)), "made.yaml")


@pytest.mark.parametrize("value", [None, [], 3, "text", {}, {"runtime": "x"}, {"rules": []}])
def test_a_wrong_document_is_refused(value):
    with pytest.raises(DeclarationError):
        read_catalog(value, "made.yaml")


def test_ids_are_unique_and_profiles_are_ours():
    with pytest.raises(DeclarationError, match="twice"):
        read_catalog(document(entry(), entry()), "made.yaml")
    with pytest.raises(DeclarationError, match="profile"):
        read_catalog(document(profile="os.path"), "made.yaml")


def judged(*rules, linear=None, version="", tp=1, paths=(), **more):
    about = read_catalog(document(*rules, paths=list(paths), **more), "made.yaml")
    profile = Profile(about)
    linear = linear or Linear(
        "a.up_proj", 96, 256, parallel="col", quantized=True, bits=4, group=32
    )
    shapes = Shapes("table", [linear], method="gptq")
    place = profile.place("", version or None)
    return fit("made", shapes, profile, profile.ask(shapes, place, "w4", None, tp))


WANTED = {
    "hard_error": ("Q701", Severity.ERROR),
    "corruption": ("Q702", Severity.ERROR),
    "silent_fallback": ("Q703", Severity.WARNING),
    "silent_skip": ("Q703", Severity.WARNING),
    "silent_padding": ("Q704", Severity.WARNING),
    "warned_fallback": ("Q703", Severity.INFO),
    "warned_skip": ("Q703", Severity.INFO),
    "logged_skip": ("Q703", Severity.INFO),
    "silent_slow_path": ("Q703", Severity.INFO),
    "warned_padding": ("Q704", Severity.INFO),
}


@pytest.mark.parametrize("effect", WANTED)
def test_effects(effect):
    [found] = judged(entry(effect=effect)).judgements
    assert (found.failure.code, found.failure.severity) == WANTED[effect]
    assert found.failure.certainty is Certainty.PROVEN


def test_every_effect_is_tested():
    assert {effect.value for effect in Effect} == {*WANTED, "kernel_rejected"}


def test_a_kernel_that_refuses_counts_where_no_other_takes_the_layer():
    one = entry(id="one", path="wide", effect="kernel_rejected")
    two = entry(id="two", path="narrow", effect="kernel_rejected", condition="Kp % 512 == 0")
    both = judged(one, two, paths=("wide", "narrow")).judgements
    assert [each.failure.code for each in both] == ["Q701", "Q701"]
    [told] = judged(one, two, paths=("wide", "narrow", "any")).judgements[:1]
    assert (told.failure.code, told.failure.severity) == ("Q703", Severity.INFO)


def test_an_open_range_of_versions_caps_certainty_and_says_why():
    open_range = {"since": "unknown", "words": "before PR 45295"}
    [found] = judged(entry(applies=open_range)).judgements
    assert found.failure.certainty is Certainty.LIKELY
    assert "before PR 45295" in found.failure.doubts[0]


def test_low_confidence_is_a_hint_and_fails_nobody():
    [found] = judged(entry(confidence="low")).judgements
    assert (found.failure.certainty, found.failure.severity) == (Certainty.HINT, Severity.WARNING)


@pytest.mark.parametrize(
    ("version", "fails"), [("1.9", False), ("1.10", True), ("1.11.3", True), ("2.0", False)]
)
def test_versions(version, fails):
    found = judged(entry(applies={"since": "1.10", "until": "2.0"}), version=version)
    assert bool(found.judgements) is fails


def test_symmetry_and_act_order_decide_whether_an_entry_counts():
    linear = Linear("a", 96, 256, quantized=True, bits=4, group=32, act_order=False)
    act = entry(applies={"act_order": True})
    assert not judged(act, linear=linear).judgements
    unknown = judged(entry(applies={"symmetric": True}), linear=linear)
    assert not unknown.judgements
    assert "sym" in unknown.unread[0].reason


def test_tensor_parallelism_splits_what_it_splits():
    column = Linear("a", 128, 256, parallel="col", quantized=True, bits=4, group=32)
    row = Linear("a", 128, 256, parallel="row", quantized=True, bits=4, group=32)
    assert not judged(entry(), linear=column).judgements
    assert judged(entry(), linear=column, tp=4).judgements
    assert not judged(entry(), linear=row, tp=4).judgements
    assert judged(entry(), linear=column, tp=3).unread  # 128 / 3: nobody splits so


def test_one_finding_a_reason():
    about = read_catalog(document(), "made.yaml")
    profile = Profile(about)
    linears = [Linear(f"l.{i}.up_proj", n, 256, quantized=True, bits=4, group=32)
               for i, n in enumerate([96, 96, 64, 48, 96])]  # fmt: skip
    shapes = Shapes("table", linears)
    found = fit("m", shapes, profile, profile.ask(shapes, profile.place("", None), None, None, 1))
    assert [[one.name for one in each.linears] for each in found.judgements] == [
        ["l.0.up_proj", "l.1.up_proj", "l.4.up_proj"], ["l.3.up_proj"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("", "names no runtime"),
        (":", "names no runtime"),
        ("sophgo:", "names no runtime"),
        ("sophgo:bm1684x@", "names no runtime"),
        ("a b", "names no runtime"),
        ("@1", "names no runtime"),
        ("sophgo", "wants a chip"),
        ("sophgo:bm9", "no such Sophgo chip"),
        ("sophgo:bm1684x@new", "no version of tpu-mlir"),
    ],
)
def test_a_wrong_place_is_the_same_usage_error_wherever_it_stands(word, says):
    with pytest.raises(UsageError, match=says) as of_fit:
        parse_on(word)
    with pytest.raises(UsageError, match=says) as of_others:  # pad, layout, probe, diagnose, budget
        aimed_at(word)
    assert str(of_fit.value) == str(of_others.value)


def test_a_runtime_that_is_not_known():
    with pytest.raises(UsageError):
        parse_on("nobody:x")
    with pytest.raises(UsageError, match="knows Sophgo's chips only"):
        aimed_at("nobody:x")


@pytest.mark.parametrize(
    ("word", "place"),
    [
        ("sophgo:bm1684x", "sophgo:bm1684x@1.30.2"),
        (" SOPHGO:BM1688@1.28.1 ", "sophgo:bm1688@1.28.1"),
        ("sophgo:bm1684x@v1.28.beta.0-37-g1", "sophgo:bm1684x@v1.28.beta.0-37-g1"),
    ],
)
def test_a_place_is_read_alike_wherever_it_stands(word, place):
    assert str(parse_on(word)[1]) == str(aimed_at(word)) == place


def test_yaml_of_the_grammar_page_is_what_is_read():
    found = read_catalog(yaml.safe_load(yaml.safe_dump(copy.deepcopy(document()))), "made.yaml")
    assert found.rules[0].condition.names == {"Np"}
