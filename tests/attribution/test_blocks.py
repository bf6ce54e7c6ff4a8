"""Weights of a GGUF file: ggml's blocks, some of which add a minimum to each group."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from click.testing import CliRunner

import qassay as package
from qassay.cli.main import cli
from qassay.comparison.attribution.attribute import Problem, attribute
from qassay.comparison.attribution.probes import probes
from qassay.comparison.attribution.verdict import Verdict
from qassay.run.diagnose import Asked, diagnose
from qassay.run.diagnose_weights import open_weights
from qassay.runtimes.sophgo.arithmetic import Model, multiply
from qassay.testing.gguf_writer import write_gguf

N, K = 64, 512
NAME = "blk.0.ffn_up.weight"
PLAIN = ("Q4_0", "Q5_0", "Q8_0", "Q3_K", "Q6_K")
AFFINE = ("Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a file of each encoding, the bytes of its one tensor, and its setup."""
    folder = tmp_path_factory.mktemp("blocks")
    weights = (np.random.default_rng(1).standard_normal((N, K)) * 0.05).astype(np.float32)
    made = {}
    for name in (*PLAIN, *AFFINE):
        raw = np.asarray(package.engine("ggml").quantize(weights, name, None))
        number = gguf.GGMLQuantizationType[name].value
        path = folder / f"{name}.gguf"
        path.write_bytes(write_gguf({"general.architecture": "llama"},
                                    [(NAME, number, (K, N), raw.tobytes())]))  # fmt: skip
        made[name] = path, raw.reshape(N, -1), open_weights(path).setup
    return made


def moved(values, order):
    return None if values is None else values[order]


FAULTS = {
    "minimums-none:m": lambda a: replace(a, minimums=a.minimums * 0),
    "minimums-negated:m": lambda a: replace(a, minimums=-a.minimums),
    "minimums-swapped-added:sm": lambda a: replace(a, scales=a.minimums, minimums=a.scales),
    "groups-roll+1:m": lambda a: replace(a, minimums=np.roll(a.minimums, 1, axis=1)),
    "groups-roll-1:s": lambda a: replace(a, scales=np.roll(a.scales, -1, axis=1)),
    "rows-roll+1:m": lambda a: replace(a, minimums=np.roll(a.minimums, 1, axis=0)),
    "groups-transposed:sm": lambda a: replace(
        a, scales=a.scales.T.copy().reshape(a.scales.shape),
        minimums=a.minimums.T.copy().reshape(a.scales.shape)),
    "rows-pairs:q": lambda a: replace(a, codes=a.codes[np.arange(N) ^ 1]),
    "codes-plus:q": lambda a: replace(a, codes=a.codes + 1),
    "scales-times-2:s": lambda a: replace(a, scales=a.scales * 2, minimums=a.minimums * 2),
}  # fmt: skip


@pytest.mark.parametrize("name", [*PLAIN, *AFFINE])
@pytest.mark.parametrize("kind", ["probes", "random"])
def test_sound_devices_are_explained(models, name, kind):
    _, raw, setup = models[name]
    assert (setup.minimums is not None) == (name in AFFINE)
    x = probes(setup).x
    x = x if kind == "probes" else np.random.default_rng(3).standard_normal((4, K))
    x = x.astype(np.float32)
    weights = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    for model in Model:
        y = multiply(x, weights, model=model)
        told = attribute(Problem(setup, x, y, pairs=False))
        assert told.verdict is Verdict.EXPLAINED, model
    y = (x @ weights.T).astype(np.float32)  # nothing rounded at all
    assert attribute(Problem(setup, x, y, pairs=False)).verdict is Verdict.ROUNDING


@pytest.mark.parametrize("name", AFFINE)
def test_faults_of_minimums_scales_and_codes_are_named(models, name):
    _, _, setup = models[name]
    x = np.random.default_rng(3).standard_normal((4, K)).astype(np.float32)
    for fault, plant in FAULTS.items():
        y = multiply(x, plant(setup).weight(), model=Model.DEVICE)
        told = attribute(Problem(setup, x, y, pairs=False))
        assert told.verdict is Verdict.FAULT, fault
        assert told.explanations[0].ids == (fault,)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K"])
def test_permuted_channels_and_weights_from_nowhere(models, name):
    _, _, setup = models[name]
    rng = np.random.default_rng(4)
    x, order = rng.standard_normal((4, K)).astype(np.float32), rng.permutation(N)
    y = multiply(x, setup.weight()[order], model=Model.DEVICE)
    told = attribute(Problem(setup, x, y, pairs=False))
    assert told.verdict is Verdict.FAULT
    assert np.array_equal(told.explanations[0].edits[0].order, order)
    other = (rng.standard_normal((N, K)) * 0.05).astype(np.float32)
    y = multiply(x, other, model=Model.DEVICE)
    assert attribute(Problem(setup, x, y, pairs=False)).verdict is Verdict.UNEXPLAINED


def test_the_command_tells_a_dropped_minimum(models, tmp_path):
    path, _, setup = models["Q4_K"]
    x = np.random.default_rng(5).standard_normal((4, K)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    for plant, codes in ((lambda a: a, []), (FAULTS["minimums-none:m"], ["Q605"])):
        np.save(tmp_path / "y.npy", multiply(x, plant(setup).weight(), model=Model.DEVICE))
        done = CliRunner().invoke(cli, [
            "diagnose", "--weights", str(path), "--inputs", str(tmp_path / "x.npy"),
            "--device", str(tmp_path / "y.npy"), "--no-pairs", "--output-format", "json",
        ])  # fmt: skip
        made = json.loads(done.stdout)
        assert [one["code"] for one in made["findings"]] == codes
        assert done.exit_code == len(codes)
        # Its scales are no bf16: no chip's A16MatMul is said to compute so.
        [output] = made["result"]["outputs"]
        assert "A16MatMul" not in json.dumps(output)


PRODUCTS = np.load(Path(__file__).resolve().parents[1] / "fixtures" / "ggml_vec_dot.npz")
TYPES = sorted(name.removesuffix("__w") for name in PRODUCTS.files if name.endswith("__w"))


def of_ggml(folder, kind, y):
    """Diagnose outputs of four rows of weights that ggml multiplied."""
    raw = PRODUCTS[f"{kind}__w"]
    number = gguf.GGMLQuantizationType[kind.upper()].value
    path = folder / f"{kind}.gguf"
    path.write_bytes(write_gguf({"general.architecture": "llama"},
                                [(NAME, number, (512, 4), raw.tobytes())]))  # fmt: skip
    np.save(folder / "x.npy", PRODUCTS["x"])
    np.save(folder / "y.npy", y)
    done = diagnose(Asked(path, folder / "x.npy", folder / "y.npy", pairs=False))
    return done.findings, done.diagnosis.outcomes[0]


@pytest.mark.parametrize("kind", TYPES)
def test_outputs_of_ggml_are_explained_bit_for_bit(kind, tmp_path):
    findings, outcome = of_ggml(tmp_path, kind, PRODUCTS[f"{kind}__y"])
    assert findings == []
    assert outcome.told.verdict is Verdict.EXPLAINED
    assert outcome.told.clean.equal == outcome.elements == 20
    assert "ggml's CPU path" in outcome.ways[0]
    assert outcome.device.rms == 0


def test_another_order_of_sums_is_ggml_still_and_a_wrong_row_is_not(tmp_path):
    y = PRODUCTS["q4_k__y"]
    findings, outcome = of_ggml(tmp_path, "q4_k", y * np.float32(1 + 2**-21))
    assert findings == []
    assert outcome.told.verdict is Verdict.ROUNDING
    assert "another order" in outcome.ways[0]
    moved = y.copy()
    moved[:, [1, 2]] = y[:, [2, 1]]
    findings, outcome = of_ggml(tmp_path, "q4_k", moved)
    assert outcome.told.verdict not in (Verdict.EXPLAINED, Verdict.ROUNDING)
    assert findings
    hidden = y.copy()
    hidden[0, 0] = np.nan
    findings, outcome = of_ggml(tmp_path, "q4_k", hidden)
    assert [one.code for one in findings] == ["Q801"]
