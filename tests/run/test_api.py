"""The functions of `import qassay` that do what a command does, and say what it says."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import qassay
from qassay import api
from qassay.cli.main import cli

ROOT = Path(__file__).resolve().parents[2]
SOUND = ROOT / "examples" / "minilm-layer0.gguf"
BROKEN = ROOT / "examples" / "minilm-layer0-broken.gguf"
QWEN = ROOT / "examples" / "qwen3.5-2b"


def printed(*args: object) -> dict[str, object]:
    """Return the document that the command prints."""
    done = CliRunner().invoke(cli, [*map(str, args), "--output-format", "json"])
    document: dict[str, object] = json.loads(done.stdout)
    return document


def outputs(folder: Path, *, factor: float = 1) -> list[Path]:
    """Write inputs of a layer of floats, and outputs; return both."""
    report = qassay.probe(SOUND, "w.F32", output=folder / "x.npz", seed=3, rows=2)
    assert report.to_dict()["result"]["written"] == ["x.npz", "x.md"]
    with np.load(folder / "x.npz") as probes, qassay.open(SOUND) as model:
        weight = model.tensors["w.F32"].dequantize()
        with np.errstate(all="ignore"):
            np.savez(folder / "y.npz", prefill=(probes["prefill"] @ weight.T * factor))
    return [folder / "x.npz", folder / "y.npz"]


def test_compare_is_the_command() -> None:
    report = qassay.compare(SOUND, BROKEN, select=["Q611"], severities={"Q611": "warning"})
    theirs = printed("compare", SOUND, BROKEN, "--select", "Q611")
    assert report.to_dict()["result"] == theirs["result"]
    assert {finding.severity.label for finding in report.findings} == {"warning"}
    assert [report.exit_code(), report.exit_code("warning")] == [0, 1]


def test_compare_of_open_models_leaves_them_open() -> None:
    with qassay.open(SOUND) as one, qassay.open(SOUND) as two:
        assert qassay.compare(one, two).to_dict()["result"]["relation"] == "equal"
        assert one.tensors["w.F32"].dequantize().shape == (16, 1536)


@pytest.mark.parametrize(
    "first",
    ["", "import qassay.comparison.facts", "from qassay.api import check", "import qassay.api"],
)
def test_compare_can_be_called_whatever_was_imported_first(first: str) -> None:
    # Python would bind a package of that name over the function.
    script = (
        f"import sys\n{first}\nimport qassay\nfrom qassay import compare\n"
        "for _ in range(2):\n"
        "    for call in (qassay.compare, compare):\n"
        "        print(call(sys.argv[1], sys.argv[1]).verdict)\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(SOUND)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["clean"] * 4, "")


def test_fit_is_the_command() -> None:
    report = qassay.fit(QWEN, on="sophgo:bm1684x@1.28.1", to="w4bf16", group_size=128)
    theirs = printed(
        "fit", QWEN, "--on", "sophgo:bm1684x@1.28.1", "--to", "w4bf16", "--group-size", 128
    )
    assert report.to_dict() == theirs
    assert report.findings


def test_probe_and_diagnose_are_the_commands(tmp_path: Path) -> None:
    inputs, device = outputs(tmp_path, factor=2)
    asked = {"weights": SOUND, "inputs": inputs, "device": device, "layer": "w.F32"}
    report = qassay.diagnose(**asked, reference=SOUND, pairs=False)
    words = [word for name, value in asked.items() for word in (f"--{name}", value)]
    assert report.to_dict() == printed("diagnose", *words, "--float", SOUND, "--no-pairs")
    assert report.verdict == "findings"
    other = printed("probe", SOUND, "w.F32", "-o", tmp_path / "z.npz", "--seed", 3, "--rows", 2)
    assert (tmp_path / "z.npz").read_bytes() == inputs.read_bytes()
    assert other["result"]["arrays"]["prefill"] == [1, *np.load(inputs)["prefill"].shape[1:]]


def test_diagnose_dumps_is_the_command(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(4, 8)).astype(np.float32) for name in ("a", "b")}
    np.savez(tmp_path / "one.npz", **arrays)
    np.savez(tmp_path / "two.npz", a=arrays["a"], b=arrays["b"] * 3)
    report = qassay.diagnose_dumps(tmp_path / "one.npz", tmp_path / "two.npz", limit=0.25)
    line = ("--float", tmp_path / "one.npz", "--device", tmp_path / "two.npz", "--limit", 0.25)
    assert report.to_dict() == printed("diagnose", *line)
    assert [finding.tensor for finding in report.findings] == ["b"]


def test_what_cannot_be_read_is_incomplete_and_no_exception(tmp_path: Path) -> None:
    lost = tmp_path / "no.npz"
    for report in (
        qassay.compare(SOUND, tmp_path / "no.gguf"),
        qassay.fit(tmp_path / "no", on="sophgo:bm1684x", to="w4bf16"),
        qassay.diagnose(weights=SOUND, inputs=lost, device=lost),
        qassay.diagnose_dumps(lost, lost),
    ):
        assert (report.verdict, report.exit_code()) == ("incomplete", 3)
        assert report.coverage.skipped[0].reason
    with pytest.raises(qassay.InputError):
        qassay.probe(tmp_path / "no.gguf", "a", output=tmp_path / "p.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        ("compare", {"reference": "", "other": SOUND}, "path"),
        ("compare", {"reference": SOUND, "other": 3}, "path"),
        ("compare", {"reference": SOUND, "other": SOUND, "select": ["Q1"]}, "no rule is left"),
        ("compare", {"reference": SOUND, "other": SOUND, "ignore": ["X"]}, "no rule has"),
        ("fit", {"source": QWEN, "on": "vllm"}, "no catalog|no such"),
        ("fit", {"source": QWEN, "on": None}, "on names nothing"),
        ("fit", {"source": QWEN, "on": "sophgo:bm1684x", "to": 4}, "to names nothing"),
        ("fit", {"source": QWEN, "on": "sophgo:bm1684x", "tp": 0}, "tp is out"),
        ("fit", {"source": QWEN, "on": "sophgo:bm1684x", "group_size": -2}, "group_size is out"),
        ("probe", {"model": SOUND, "layer": "w.F32", "output": "p.txt"}, "ends in .npz"),
        ("probe", {"model": SOUND, "output": "p.npz", "rows": 1025}, "rows is out"),
        ("probe", {"model": SOUND, "output": "p.npz", "seed": True}, "seed is out"),
        ("probe", {"model": SOUND, "output": "p.npz", "weight_bits": 3}, "weight_bits is out"),
        ("probe", {"model": SOUND, "output": "p.npz", "on": "vllm"}, "Sophgo"),
        ("diagnose", {"weights": SOUND, "inputs": SOUND, "device": ""}, "path is empty"),
        ("diagnose", {"weights": "a", "inputs": "b", "device": "c", "group_size": 0}, "group_size"),
        ("diagnose_dumps", {"reference": "a", "device": "b", "limit": float("nan")}, "limit"),
        ("diagnose_dumps", {"reference": "a", "device": "b", "limit": -1}, "limit"),
        ("diagnose_dumps", {"reference": "a", "device": "b", "mlir": ""}, "path is empty"),
    ],
    ids=str,
)
def test_arguments_that_are_refused(
    call: str, arguments: dict[str, object], message: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    with pytest.raises(qassay.UsageError, match=message):
        getattr(qassay, call)(**arguments)
    assert not list(tmp_path.iterdir())


def test_every_function_is_typed_and_says_what_it_takes() -> None:
    for name in ("check", "compare", "diagnose", "diagnose_dumps", "fit", "probe"):
        function = getattr(api, name)
        assert name in qassay.__all__
        assert callable(getattr(qassay, name))
        text = inspect.getdoc(function)
        for each in inspect.signature(function, eval_str=False).parameters.values():
            assert each.annotation is not inspect.Parameter.empty
            assert f"\n    {each.name}: " in text, (name, each.name)


def test_the_names_of_the_package_are_all_there() -> None:
    assert dir(qassay) == sorted(qassay.__all__)
    assert all(getattr(qassay, name) is not None for name in qassay.__all__)
