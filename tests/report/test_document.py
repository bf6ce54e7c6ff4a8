"""The document: strict, complete, the same every time, and as its published schema says."""

from __future__ import annotations

import json
import math
import pickle
from importlib.resources import files
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner

import qassay
from qassay.cli.main import cli
from qassay.core.container import Container, Skipped
from qassay.core.finding import Certainty, Finding, Severity
from qassay.encodings.registry import all_encodings, by_id
from qassay.report.document import Coverage, NotChecked, Report
from qassay.report.strict import strict
from qassay.rules.base import ModelFacts
from qassay.run.check import CheckResult
from qassay.testing.content import healthy
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors

SCHEMA = json.loads((files("qassay.report") / "schema" / "report-v1.json").read_text("utf-8"))
REAL = Path(__file__).resolve().parents[3] / "shared" / "fixtures" / "real"


def refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def document(*args: object) -> dict[str, object]:
    """Return what the command line prints as JSON, checked against the schema."""
    result = CliRunner().invoke(cli, [*map(str, args), "--output-format", "json"])
    made = json.loads(result.stdout, parse_constant=refuse)
    jsonschema.validate(made, SCHEMA, cls=jsonschema.Draft202012Validator)
    return made


@pytest.fixture
def every(tmp_path):
    """A GGUF with a tensor of every encoding that GGUF has, some of it broken."""
    tensors = []
    for encoding in all_encodings().values():
        for label in encoding.stored_as:
            if label.key[0] == "ggml":
                data = healthy(encoding, 512 // encoding.block).copy()
                data[:8] = 0xFF
                tensors.append((encoding.id, label.key[1], (256, 2), data.tobytes()))
    path = tmp_path / "every.gguf"
    path.write_bytes(write_gguf({"general.architecture": "x"}, tensors))
    return path


def test_the_schema_is_a_schema():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("stats", ["default", "full"])
def test_check_of_every_encoding(every, stats):
    made = document("check", every, "--stats", stats)
    assert made["verdict"] == "findings"
    assert {"scales", "dead_blocks", "dead_rows"} <= set(made["tensors"][-1] | made["tensors"][7])
    assert made["coverage"]["checked"] == made["coverage"]["tensors"] > 20


def test_inputs_of_every_sort(tmp_path):
    (tmp_path / "cut.gguf").write_bytes(b"GGUF\x03")
    (tmp_path / "lfs.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    folder = tmp_path / "folder"
    folder.mkdir()
    data = write_safetensors([("w", "F16", [2, 2], bytes(8)), ("odd", "F7", [1], b"")])
    (folder / "model.safetensors").write_bytes(data)
    names = ["cut.gguf", "lfs.gguf", "folder", "missing"]
    made = document("check", *(tmp_path / name for name in names))
    assert [given["path"] for given in made["inputs"]] == names
    assert [given["format"] for given in made["inputs"]] == ["gguf", "unknown", "folder", "unknown"]
    for name in names:
        document("check", tmp_path / name)
        document("inspect", tmp_path / name)


@pytest.mark.parametrize(
    "args", [["rules"], ["encodings"], ["env"], ["explain", "Q201"], ["explain", "q4_k"]]
)
def test_commands_that_only_tell(args):
    made = document(*args)
    assert made["verdict"] is None
    assert made["command"] == args[0]


@pytest.mark.skipif(not REAL.exists(), reason="the real files are not here")
def test_real_files():
    paths = [*REAL.glob("*/*.gguf"), *REAL.glob("*/*.safetensors"), *REAL.glob("checkpoints/*")]
    assert len(paths) > 10
    for path in paths:
        document("check", path)
        document("inspect", path)


def test_the_schema_refuses_what_is_not_in_it(every):
    made = document("check", every)
    for spoil in (
        lambda doc: doc.update(extra=1),
        lambda doc: doc["findings"][0].update(severity="fatal"),
        lambda doc: doc["tensors"][0].update(mood="good"),
        lambda doc: doc["result"].update(mood="good"),
        lambda doc: doc.update(verdict="fine"),
        lambda doc: doc.pop("coverage"),
    ):
        spoiled = json.loads(json.dumps(made))
        spoil(spoiled)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(spoiled, SCHEMA)


def test_the_same_input_gives_the_same_bytes_wherever_it_lies(every, tmp_path, monkeypatch):
    def dump(path, **options) -> str:
        return json.dumps(qassay.check(path, **options).to_dict())

    first = dump(every)
    other = tmp_path / "elsewhere"
    other.mkdir()
    (other / every.name).write_bytes(every.read_bytes())
    assert dump(other / every.name) == first
    assert dump(every, jobs=3, chunk_bytes=1024) == first
    monkeypatch.chdir(other)
    assert dump(every.name) == first
    assert str(tmp_path) not in first


def test_totals_are_those_of_all_blocks(tmp_path):
    q8 = by_id("q8_0")
    parts = [healthy(q8, 4, "random", seed=seed).copy() for seed in (1, 2)]
    parts[1][:2] = [0, 0x80]  # -0.0
    scales = np.concatenate(
        [part.reshape(-1, 34)[:, :2].copy().view("<f2")[:, 0] for part in parts]
    )
    tensors = [(f"t{at}", 8, (64, 2), part.tobytes()) for at, part in enumerate(parts)]
    path = tmp_path / "m.gguf"
    path.write_bytes(write_gguf({}, tensors))
    total = qassay.check(path).to_dict()["result"]["totals"]["ggml.q8_0"]
    magnitudes = np.abs(scales.astype(float))
    assert total["tensors"] == 2
    assert total["weights"] == 256
    assert total["scales"]["d"] == {
        "blocks": 8,
        "min_nonzero": magnitudes[magnitudes > 0].min(),
        "max": magnitudes.max(),
        "median": np.sort(magnitudes[magnitudes > 0])[3],
        "zero": 1,
        "subnormal": 0,
        "nonfinite": 0,
        "negative": int((scales < 0).sum()),
    }


def finding(severity: Severity) -> Finding:
    return Finding("Q201", "x", severity, Certainty.PROVEN, "message")


SKIPPED = Coverage(skipped=(NotChecked("t", "p", "r"),))


@pytest.mark.parametrize(
    ("report", "verdict", "codes"),
    [
        (Report("check"), "clean", (0, 0, 0, 0)),
        (Report("check", findings=(finding(Severity.INFO),)), "clean", (0, 0, 0, 0)),
        (Report("check", findings=(finding(Severity.WARNING),)), "findings", (0, 1, 0, 0)),
        (Report("check", findings=(finding(Severity.ERROR),)), "findings", (1, 1, 0, 1)),
        (Report("check", coverage=SKIPPED), "incomplete", (3, 3, 3, 0)),
        (
            Report("check", coverage=SKIPPED, findings=(finding(Severity.ERROR),)),
            "findings",
            (1, 1, 3, 1),
        ),
        (
            Report("check", coverage=SKIPPED, findings=(finding(Severity.WARNING),)),
            "findings",
            (3, 1, 3, 0),
        ),
        (Report("check", fault=True), "incomplete", (2, 2, 2, 2)),
        (
            Report("check", fault=True, coverage=SKIPPED, findings=(finding(Severity.ERROR),)),
            "findings",
            (2, 2, 2, 2),
        ),
        (Report("rules", judged=False), None, (0, 0, 0, 0)),
        (Report("inspect", judged=False, coverage=SKIPPED), "incomplete", (3, 3, 3, 0)),
    ],
)
def test_verdict_and_exit_code(report, verdict, codes):
    assert report.verdict == verdict
    assert report.to_dict()["verdict"] == verdict
    got = tuple(report.exit_code(word) for word in ("error", "warning", "never"))
    assert (*got, report.exit_code(allow_incomplete=True)) == codes


@pytest.mark.parametrize(
    ("report", "shown"),
    [
        (Report("check", coverage=Coverage(15, 15)), "check: clean, 15 of 15 tensors, 0 findings"),
        (
            Report("check", coverage=Coverage(1, 1), findings=(finding(Severity.ERROR),)),
            "check: findings, 1 of 1 tensor, 1 finding",
        ),
        (
            Report("check", coverage=Coverage(1234, 1200, SKIPPED.skipped)),
            "check: incomplete, 1,200 of 1,234 tensors, 0 findings",
        ),
        (Report("inspect", coverage=Coverage(3), judged=False), "inspect: 3 tensors, 0 findings"),
        (Report("rules", judged=False), "rules"),
    ],
)
def test_repr_is_short(report, shown):
    assert repr(report) == f"<Report {shown}>"


@pytest.mark.parametrize("part", ["scale", "values"])
def test_the_schema_says_what_every_number_is(part):
    properties = SCHEMA["$defs"][part]["properties"]
    assert all(each.get("description") for each in properties.values())
    assert "magnitude" in properties["min_nonzero"]["description"]
    assert "magnitude" in properties["max"]["description"]


def test_a_crashed_rule_is_named(tmp_path):
    from qassay.rules.q201_scale_not_finite import ScaleNotFinite

    facts = ModelFacts(Container("m.gguf", "gguf"), unread=[Skipped("w", "gone")])
    facts.crashed.append((ScaleNotFinite, IndexError("x")))
    report = Report.of_check(CheckResult(facts, rules=["Q201"]))
    made = report.to_dict()
    jsonschema.validate(made, SCHEMA)
    assert made["result"]["crashed"] == ["Q201"]
    assert [skip["name"] for skip in made["coverage"]["skipped"]] == [
        "w",
        "rule Q201 scale-not-finite",
    ]
    assert report.exit_code("never", allow_incomplete=True) == 2


@pytest.mark.parametrize(
    ("value", "made"),
    [
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
        (np.float32(0.5), 0.5),
        (np.float64(math.inf), "Infinity"),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.array([1.0, math.nan]), [1.0, "NaN"]),
        ((1, (2,)), [1, [2]]),
        ({1: {2, 1}}, {"1": [1, 2]}),
        (b"\xff", "ff"),
        (Severity.ERROR, 3),
        (Certainty.HINT, "hint"),
        (None, None),
        ("a\udc80", "a\udc80"),
        (Path("x"), "x"),
    ],
)
def test_strict(value, made):
    got = strict(value)
    assert got == made
    assert type(got) is type(made)
    json.dumps(got, allow_nan=False)


def test_a_report_survives_a_process_pool(every):
    report = qassay.check(every)
    findings = pickle.loads(pickle.dumps(report.findings))
    assert repr(findings) == repr(report.findings)  # NaN differs from itself
