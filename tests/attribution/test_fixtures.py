"""Real outputs of tpu-mlir: each is explained by the documented arithmetic, and by no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from qassay.comparison.attribution.attribute import Problem, attribute
from qassay.comparison.attribution.verdict import Verdict
from qassay.run.diagnose import Asked, diagnose
from qassay.run.diagnose_weights import open_weights
from qassay.runtimes.sophgo.arithmetic import Model
from qassay.runtimes.sophgo.bfloat16 import bf16
from qassay.runtimes.sophgo.named import aimed_at
from qassay.testing.faulty_devices import row_orders

FOLDER = Path(__file__).resolve().parents[1] / "fixtures" / "tpu"
OUTPUTS = sorted(path for path in FOLDER.glob("*/*.npz") if path.stem.endswith(("_dev", "_host")))


def weights_of(path: Path) -> Path:
    """Return the file of weights that belongs to outputs."""
    case = path.stem.rpartition("_")[0]
    if case.startswith("f32"):  # quantized by the compiler: what it wrote counts
        return path.parent / f"{case}_bm1684x_w4bf16_tpu.mlir"
    own = path.parent / f"{case}_w.npz"
    return own if own.exists() else FOLDER / "bm1684x-1.30.2" / own.name


def inputs_of(path: Path) -> Path:
    own = path.parent / f"{path.stem.rpartition('_')[0]}_in.npz"
    return own if own.exists() else FOLDER / "bm1684x-1.30.2" / own.name


def expected(path: Path) -> tuple[str, Model]:
    """Return what a line about where it was computed holds, and the arithmetic."""
    chip = path.parent.name.partition("-")[0]
    bits = 8 if path.stem.startswith("w8") else 4
    if path.stem.endswith("_host"):
        return "CPU inference", Model.HOST if bits == 4 else Model.ONE
    falls_back = "n16_" in path.stem or "n96_" in path.stem
    how = "fall-back MatMul" if falls_back else "A16MatMul"
    model = Model.ONE if chip == "bm1688" and falls_back else Model.DEVICE
    return f"{chip} ({how}) of tpu-mlir", model


def test_there_are_outputs():
    assert len(OUTPUTS) >= 12
    assert {path.parent.name for path in OUTPUTS} >= {"bm1684x-1.28.1", "bm1688-1.30.2"}


@pytest.mark.parametrize("path", OUTPUTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_explained_bit_for_bit(path):
    asked = Asked(weights_of(path), inputs_of(path), path)
    if path.stem.endswith("_host"):
        asked = Asked(asked.weights, asked.inputs, asked.device, output_name=host_name(path))
    done = diagnose(asked)
    assert done.findings == []
    [outcome] = done.diagnosis.outcomes
    where, model = expected(path)
    assert outcome.told.verdict is Verdict.EXPLAINED
    assert model in outcome.told.models
    assert any(where in way for way in outcome.ways), outcome.ways
    version = path.parent.name.partition("-")[2]
    assert all(version in way for way in outcome.ways if where in way)
    assert outcome.device.snr is None


def host_name(path: Path) -> str:
    with np.load(path) as archive:
        return next(name for name in archive.files if name.startswith("linear0"))


def permutations_of(n):
    """Return permutations of channels by name, each once and none the identity: 23 and more."""
    places = np.arange(n)
    listed = dict(row_orders(n))
    listed |= {f"rolled by {r}": np.roll(places, r) for r in (2, 3, 5, n // 2)}
    for a, b in ((0, n - 1), (1, n // 2), (3, 4)):
        two = places.copy()
        two[[a, b]] = b, a
        listed[f"{a} and {b} swapped"] = two
    rng = np.random.default_rng(n)
    listed |= {f"random {place}": rng.permutation(n) for place in range(8)}
    once = {order.tobytes(): name for name, order in reversed(listed.items())}
    once.pop(places.tobytes(), None)
    return {name: listed[name] for name in reversed(once.values())}


def unnamed(path, take):
    """Plant permutations in an output and return those that were not named, and how many."""
    with np.load(inputs_of(path)) as archive:
        x = archive["in0"].reshape(-1, 256)
    setup = open_weights(weights_of(path), columns=256).setup
    with np.load(path) as archive:
        y = archive[host_name(path)].reshape(len(x), -1).astype(np.float32)
    listed = list(permutations_of(setup.n).items())
    missed = []
    for name, order in listed[take]:
        told = attribute(Problem(setup, x, y[:, order], pairs=False))
        edits = [edit for one in told.explanations for edit in one.edits]
        named = told.verdict is Verdict.FAULT and [edit.component for edit in edits] == ["y"]
        # Channels that give the same outputs are the same channel, whichever of them is meant.
        if not named or not np.array_equal(y[:, edits[0].order], y[:, order]):
            missed.append((name, told))
    return missed, len(listed[take])


@pytest.mark.parametrize("path", OUTPUTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_permuted_by_hand_is_named(path):
    missed, tried = unnamed(path, slice(OUTPUTS.index(path) % 7, None, 7))
    assert tried >= 2
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize("path", OUTPUTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_twelve_permutations_are_named(path):
    missed, tried = unnamed(path, slice(None, None, 2))
    assert tried >= 12
    assert missed == []


def test_another_path_than_the_one_named_is_said():
    path = FOLDER / "bm1684x-1.28.1" / "w4_n128_k256_g64_host.npz"
    asked = Asked(weights_of(path), inputs_of(path), path, on=aimed_at("sophgo:bm1684x@1.28.1"),
                  output_name=host_name(path))  # fmt: skip
    [outcome] = diagnose(asked).diagnosis.outcomes
    assert outcome.told.models == (Model.HOST,)
    assert all(way.startswith("host") for way in outcome.ways)


def test_weights_are_read_alike_from_every_stage():
    folder = FOLDER / "bm1684x-1.28.1"
    case = "w4_n128_k256_g64"
    origin = open_weights(folder / f"{case}_w.npz").setup
    for stage in ("tpu", "pre", "reorder", "final"):
        path = folder / f"{case}_bm1684x_w4bf16_{stage}.mlir"
        read = open_weights(path).setup
        assert np.array_equal(read.weight(), origin.weight()), stage
        assert np.array_equal(bf16(read.bias), bf16(origin.bias)), stage
