"""Errors as pictures: along the rows, and spread over a step; bounded whatever the weight."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qassay.comparison.profile import BINS, along, histogram
from qassay.testing.gguf_writer import write_gguf

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
NAME = "blk.0.ffn_up.weight"


def test_along_few_channels_is_the_channels_themselves():
    told = along(np.array([1.0, 0.25, np.inf]))
    assert told == {"channels": 3, "per": 1, "mean": [1.0, 0.25, 0.0], "most": [1.0, 0.25, np.inf]}
    assert along(np.zeros(0))["mean"] == []


@pytest.mark.parametrize("channels", [95, 96, 97, 4096, 151_936])
def test_along_is_bounded_and_keeps_the_worst(channels):
    values = np.random.default_rng(channels).uniform(0, 1, channels)
    values[channels // 3] = 9
    told = along(values)
    assert channels / told["per"] <= len(told["mean"]) == len(told["most"]) <= BINS
    assert told["most"].index(9.0) == channels // 3 // told["per"]
    whole = channels // told["per"]
    means = values[: whole * told["per"]].reshape(whole, -1).mean(axis=1)
    np.testing.assert_allclose(told["mean"][:whole], means, rtol=6e-3)


def test_histogram_counts_everything_but_nan_once():
    values = np.array([-np.inf, -1.5, -0.01, 0.0, 0.0624, 0.0625, 1.4999, 1.5, np.inf, np.nan])
    told = histogram(values, "step", 2).to_dict()
    bars = {at: seen for at, seen in enumerate(told["counts"]) if seen}
    assert (told["below"], told["above"], told["rows"]) == (1, 2, 2)
    assert bars == {0: 1, 23: 1, 24: 2, 25: 1, 47: 1}


def test_histogram_of_multiples_of_the_rms_reaches_further():
    told = histogram(np.array([-4.0, -3.99, 0.0, 3.99, 4.0]), "rms", 1).to_dict()
    bars = {at: seen for at, seen in enumerate(told["counts"]) if seen}
    assert (bars, told["above"]) == ({0: 2, 24: 1, 47: 1}, 1)
    assert told["from"] + len(told["counts"]) * told["width"] == pytest.approx(4)


def q8_0(values, scales):
    """Return blocks of Q8_0: `d` in f16, then 32 signed codes."""
    codes = np.rint(values.reshape(-1, 32) / scales[:, None]).astype(np.int8)
    raw = [np.float16(d).tobytes() + row.tobytes() for d, row in zip(scales, codes, strict=True)]
    return b"".join(raw)


def test_steps_of_a_shift_by_half_a_code_and_more(tmp_path, compare):
    """Every weight stands `part` of a step over the value that is stored."""
    rng = np.random.default_rng(3)
    scales = np.full(64 * 8, 2.0**-7)
    stored = rng.integers(-100, 100, (64, 256)) * 2.0**-7
    ref = stored.copy()
    ref[:, ::2] += 0.3 * 2.0**-7  # e = -0.3 steps
    ref[:, 1::2] -= 0.4 * 2.0**-7
    (tmp_path / "a.gguf").write_bytes(
        write_gguf({"general.architecture": "llama"},
                   [(NAME, 0, (256, 64), ref.astype(np.float32).tobytes())])
    )  # fmt: skip
    (tmp_path / "b.gguf").write_bytes(
        write_gguf({"general.architecture": "llama"}, [(NAME, 8, (256, 64), q8_0(stored, scales))])
    )
    _, report = compare(tmp_path / "a.gguf", tmp_path / "b.gguf")
    [layer] = report["result"]["layers"]
    told = layer["cost"]["histogram"]
    rows = told["rows"]
    assert (told["unit"], told["below"], told["above"]) == ("step", 0, 0)
    bars = {at: seen for at, seen in enumerate(told["counts"]) if seen}
    assert bars == {int((1.5 - 0.3) * 16): rows * 128, int((1.5 + 0.4) * 16): rows * 128}
    assert rows == 32
    profile = layer["cost"]["rows"]["profile"]
    by_row = np.sqrt(((stored - ref) ** 2).sum(1) / (ref**2).sum(1))
    np.testing.assert_allclose(profile["mean"], by_row, rtol=6e-3)


@pytest.mark.parametrize(
    "name",
    ["llmcompressor-w4a16", "autoround-w4a16-awq", "llmcompressor-w4a16_asym"],
)
def test_rounding_fills_one_step_evenly(name, compare):
    _, report = compare(FOLDER / "source-tiny-llama-f16", FOLDER / name)
    seen = [x["cost"]["histogram"] for x in report["result"]["layers"] if "cost" in x]
    assert len(seen) == 6
    for told in seen:
        counts = np.array(told["counts"])
        inner = counts[17:31]  # -0.4375 .. 0.4375 steps
        assert counts[:14].sum() + counts[34:].sum() + told["below"] + told["above"] == 0
        assert inner.min() > 0.75 * inner.mean()
        assert inner.max() < 1.25 * inner.mean()
