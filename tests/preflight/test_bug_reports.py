"""Faults that other people reported, each as the smallest input that has it."""

from __future__ import annotations

import numpy as np
import pytest

import qassay
from qassay.core.finding import Severity


def found(findings: list[qassay.Finding]) -> set[tuple[str, str | None]]:
    return {(each.code, each.field) for each in findings}


def normal(*shape: int) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 0.02).astype(np.float32)


class TestQuantizerWritesNaN:
    """llama.cpp PR 3010, auto-round 1908, llama.cpp 7805, PR 20460."""

    def test_a_block_of_zeros(self, preflight):
        assert preflight(np.zeros((1, 256), np.float32), "Q6_K,Q4_K,IQ4_NL,Q8_0") == []

    def test_a_block_of_both_zeros(self, preflight):
        zeros = np.zeros((1, 256), np.float32)
        zeros[0, ::3] = -0.0
        assert preflight(zeros, "Q6_K,Q4_0,IQ4_XS") == []

    def test_one_nan(self, preflight):
        weights = normal(1, 256)
        weights[0, 77] = np.nan
        (finding,) = preflight(weights, "Q6_K")
        assert (finding.code, finding.severity) == ("Q504", Severity.ERROR)

    def test_weights_near_the_least_float(self, preflight):
        (finding,) = preflight(np.full((1, 256), 1e-40, np.float32), "Q6_K")
        assert finding.code == "Q502"
        assert finding.data["lost"] == 1

    def test_a_block_of_1e_11(self, preflight):
        (finding,) = preflight(np.full((1, 32), 1e-11, np.float32), "IQ4_NL")
        assert finding.code == "Q502"
        assert finding.certainty is qassay.Certainty.LIKELY

    def test_an_expert_of_zeros_beside_sound_ones(self, save, tmp_path):
        weights = normal(3, 4, 256)
        weights[1] = 0
        path = save(tmp_path / "m.safetensors", {"blk.0.ffn_up_exps.weight": weights})
        report = qassay.check(path, to="Q4_K,Q6_K", select="Q5")
        assert report.findings == ()


class TestRangeOfHalves:
    """ComfyUI-GGUF 381, llama.cpp 13722, 18182 and PR 7843."""

    @pytest.mark.parametrize(("value", "over"), [(65519.0, False), (65520.0, True)])
    def test_where_f16_ends(self, value, over, preflight):
        weights = normal(2, 64)
        weights[1, 3] = value
        assert (("Q501", "f16") in found(preflight(weights, "F16"))) is over
        assert ("Q501", "bf16") not in found(preflight(weights, "BF16"))

    def test_what_the_source_holds_and_what_the_cast_makes_differ(self, save, tmp_path):
        weights = normal(2, 64)
        weights[0, 5], weights[1, 6] = 7e4, np.inf
        path = save(tmp_path / "m.safetensors", {"w.weight": weights})
        findings = qassay.check(path, to="F16").findings
        by_code = {each.code: each for each in findings if each.severity is Severity.ERROR}
        assert set(by_code) == {"Q401", "Q501"}
        assert by_code["Q401"].count == by_code["Q501"].count == 1
        assert by_code["Q501"].location.column == 5
        assert by_code["Q401"].location.column == 6

    def test_counts_of_what_f16_loses(self, save, tmp_path):
        weights = np.array([[1e5, 1e-6, 1e-9, 0.5]], np.float32)
        path = save(tmp_path / "m.safetensors", {"w.weight": weights})
        document = qassay.check(path, to="F16").to_dict()
        values = document["tensors"][0]["values"]
        assert (values["exceeds_f16"], values["lost_below_f16"]) == (1, 1)

    def test_a_row_below_f16(self, preflight):
        weights = normal(3, 64)
        weights[1] = 1e-9
        (finding,) = preflight(weights, "F16")
        assert (finding.code, finding.location.row) == ("Q502", 1)

    def test_f16_subnormals_survive(self, preflight):
        weights = np.array([[6.0e-5, 3e-5, 1e-6, 5.96e-8]], np.float32)
        assert preflight(weights, "F16") == []


class TestRows:
    """llama.cpp 1919, 6614, 6581, ollama PR 10806, Chinese-LLaMA-Alpaca 706, mlx 1033."""

    @pytest.mark.parametrize(
        ("shape", "to", "instead"),
        [
            ((64, 4544), "Q4_K", "ggml.q5_0"),
            ((8, 14464), "Q4_K", "ggml.q5_0"),
            ((4, 49954), "Q4_K", "f16"),
            ((8, 48), "Q4_0", "f16"),
            ((8, 1152), "Q4_K", "ggml.q5_0"),
            ((8, 4304), "Q4_K", "f16"),
        ],
    )
    def test_what_is_written_instead(self, shape, to, instead, preflight):
        (finding,) = preflight(normal(*shape), to)
        assert finding.code == "Q505"
        assert finding.data["instead"] == instead
        assert finding.severity is (Severity.WARNING if instead == "f16" else Severity.INFO)
        assert str(shape[1]) in finding.message

    @pytest.mark.parametrize("shape", [(14464, 256), (49954, 256)])
    def test_the_number_of_rows_does_not_matter(self, shape, preflight):
        assert preflight(np.ones(shape, np.float32), "Q4_K") == []
