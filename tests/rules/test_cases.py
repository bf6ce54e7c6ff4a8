"""Runs every case of `cases/`, and asks of every rule that it has cases and a manual."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from qassay.rules.base import MANUAL_SECTIONS
from qassay.rules.registry import all_rules
from qassay.run.options import CheckOptions
from qassay.testing.recipes import differences, load_cases, run_case

FOLDER = Path(__file__).parent / "cases"
CASES = [case for path in sorted(FOLDER.glob("*.yml")) for case in load_cases(path)]
IDS = [f"{case.rule}-{case.name}" for case in CASES]
WAYS = {
    "one_thread": ("reference", CheckOptions(jobs=1)),
    "two_threads_small_chunks": ("reference", CheckOptions(jobs=2, chunk_bytes=1000)),
    "seven_threads_tiny_chunks": ("reference", CheckOptions(jobs=7, chunk_bytes=1)),
    "fast": ("fast", CheckOptions(jobs=2)),
    "fast_tiny_chunks": ("fast", CheckOptions(jobs=2, chunk_bytes=200)),
}


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_case(case, tmp_path, monkeypatch):
    reports = {}
    # No kernel and no chunk has a part in what a device's outputs say.
    ways = {"one_thread": WAYS["one_thread"]} if "linear" in case.recipe else WAYS
    for way, (kernels, options) in ways.items():
        monkeypatch.setenv("QASSAY_KERNELS", kernels)
        folder = tmp_path / way
        folder.mkdir()
        result = run_case(case, folder, options)
        assert [rule.code for rule, _ in result.facts.crashed] == case.recipe.get("crashed", [])
        wrong = differences(case, result.findings)
        assert not wrong, f"{way}:\n" + "\n".join(wrong)
        reports[way] = [repr(finding.to_dict()) for finding in result.findings]
    for way, report in reports.items():
        assert report == reports["one_thread"], way


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
class TestRule:
    def test_has_failing_and_passing_cases(self, rule):
        own = [case for case in CASES if case.rule == rule.code]
        assert any(case.fails for case in own), "no case in which the rule finds something"
        assert any(not case.fails for case in own), "no case in which it finds nothing"
        assert len(own) >= 3, "an odd but legal case is wanted, too"

    def test_has_a_manual(self, rule):
        doc = rule.__doc__ or ""
        first = rule.title()
        assert first.endswith("."), "the first line is a sentence"
        assert "\n\n" in doc.strip(), "and stands alone"
        assert tuple(re.findall(r"^    ## (.+)$", doc, re.MULTILINE)) == MANUAL_SECTIONS
        for part in re.split(r"^    ## .+$", doc, flags=re.MULTILINE):
            assert part.strip(), "no section is empty"

    def test_file_is_called_after_code_and_name(self, rule):
        module = rule.__module__.rpartition(".")[2]
        assert module == f"{rule.code.lower()}_{rule.name.replace('-', '_')}"

    def test_help_is_one_sentence_without_a_full_stop(self, rule):
        assert rule.help
        assert not rule.help.endswith(".")
        assert "\n" not in rule.help


def test_codes_and_names_are_unique():
    rules = all_rules()
    assert len({rule.code for rule in rules}) == len(rules)
    assert len({rule.name for rule in rules}) == len(rules)


def test_every_case_file_belongs_to_a_rule():
    codes = {rule.code for rule in all_rules()}
    assert {path.stem for path in FOLDER.glob("*.yml")} <= codes
    for path in FOLDER.glob("*.yml"):
        assert {case.rule for case in load_cases(path)} == {path.stem}
