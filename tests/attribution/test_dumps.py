"""Dumps of whole models: every tensor compared, the first bad one named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parent))

from validating import validator

from qassay.cli.main import cli
from qassay.comparison.dumps import TensorPair, compare_tensor
from qassay.run.diagnose_dumps import matched
from qassay.runtimes.sophgo.mlir import read_mlir

TPU = Path(__file__).resolve().parents[1] / "fixtures" / "tpu"
NAMES = [f"layer{n}" for n in range(6)]


def ask(*args):
    done = CliRunner().invoke(cli, ["diagnose", *map(str, args), "-f", "json"])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    if done.exit_code == 2:
        return 2, done.stderr
    made = json.loads(done.stdout)
    validator().validate(made)
    return done.exit_code, made


@pytest.fixture
def dumps(tmp_path):
    """Two dumps of six tensors: the device's is off by a percent, but for what `change` does."""
    rng = np.random.default_rng(5)
    reference = {name: rng.standard_normal((1, 4, 48)).astype(np.float32) for name in NAMES}

    def write(change=lambda *_: None, *more):
        device = {
            name: (array * (1 + 0.01 * rng.standard_normal(array.shape))).astype(np.float32)
            for name, array in reference.items()
        }
        change(device, reference)
        np.savez(tmp_path / "ref.npz", **reference)
        np.savez(tmp_path / "dev.npz", **device)
        return ask("--float", tmp_path / "ref.npz", "--device", tmp_path / "dev.npz", *more)

    write.folder = tmp_path
    return write


def only(made):
    [finding] = made["findings"]
    return finding


def test_rounding_is_no_finding(dumps):
    code, made = dumps()
    assert (code, made["verdict"], made["findings"]) == (0, "clean", [])
    assert [one["name"] for one in made["result"]["tensors"]] == NAMES
    assert {one["relation"] for one in made["result"]["tensors"]} == {"close"}
    assert all(0.005 < one["relative"] < 0.02 for one in made["result"]["tensors"])
    assert made["coverage"]["checked"] == 6


def test_equal(dumps):
    code, made = dumps(lambda device, reference: device.update(reference))
    assert (code, {one["relation"] for one in made["result"]["tensors"]}) == (0, {"equal"})


def noise(name):
    def change(device, reference):
        rng = np.random.default_rng(1)
        for later in NAMES[NAMES.index(name) :]:
            device[later] = rng.standard_normal(device[later].shape).astype(np.float32)

    return change


def test_the_first_bad_tensor_is_named(dumps):
    code, made = dumps(noise("layer3"))
    finding = only(made)
    assert (code, finding["code"], finding["tensor"], finding["count"]) == (1, "Q616", "layer3", 3)
    assert finding["certainty"] == "likely"
    assert "the first of 3 bad tensors" in finding["message"]
    assert "'layer2'" in finding["message"]
    assert made["result"]["first_bad"] == "layer3"


def test_graph_order_counts_where_there_is_a_graph(dumps):
    ops = "\n".join(
        f'    %{n} = "tpu.Add"(%{n - 1}) : (tensor<1xf32>) -> tensor<1xf32> loc("{name}")'
        for n, name in enumerate(reversed(NAMES), 1)
    )
    text = (
        'module @m attributes {module.chip = "bm1684x"} {\n  func.func @main() {\n'
        f"{ops}\n  }} loc(unknown)\n}} loc(unknown)\n"
    )
    graph = dumps.folder / "m.mlir"
    graph.write_text(text)
    assert read_mlir(graph).results == tuple(reversed(NAMES))
    _, made = dumps(noise("layer3"), "--mlir", graph)
    finding = only(made)
    assert finding["tensor"] == "layer5"  # 3, 4 and 5 are bad, and 5 comes first
    assert "graph order" in finding["message"]
    assert made["result"]["order"] == "graph"


def test_a_limit_of_ones_own(dumps):
    code, made = dumps(lambda *_: None, "--limit", "0.001")
    finding = only(made)
    assert (code, finding["tensor"], finding["certainty"]) == (1, "layer0", "proven")


def spoil(name, value, *, both=False, reference_only=False):
    def change(device, reference):
        if not reference_only:
            device[name][0, 2, 7] = value
        if both or reference_only:
            reference[name] = reference[name].copy()
            reference[name][0, 2, 7] = value

    return change


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_not_finite_on_the_device(dumps, value):
    code, made = dumps(spoil("layer4", value))
    finding = only(made)
    assert (code, finding["code"], finding["tensor"]) == (1, "Q801", "layer4")
    assert (finding["location"]["row"], finding["location"]["column"]) == (2, 7)
    assert made["result"]["tensors"][4]["not_finite"]["born"] == 1
    assert made["result"]["tensors"][4]["relative"] < 0.02  # of all else


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite_in_the_reference_alone(dumps, value):
    code, made = dumps(spoil("layer4", value, reference_only=True))
    finding = only(made)
    assert (code, finding["code"], finding["severity"]) == (1, "Q608", "error")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_not_finite_on_both_sides(dumps, value):
    code, made = dumps(spoil("layer4", value, both=True))
    finding = only(made)
    assert (code, finding["code"]) == (1, "Q801")
    assert "in the reference, too" in finding["message"]


@pytest.mark.parametrize("device", [-np.inf, -1e4, -65504.0])
def test_a_mask_is_no_finding(dumps, device):
    def change(two, one):
        one["layer1"] = np.where(one["layer1"] > 0.5, -np.inf, one["layer1"])
        two["layer1"] = np.where(np.isinf(one["layer1"]), np.float32(device), two["layer1"])

    code, made = dumps(change)
    assert (code, made["findings"]) == (0, [])
    assert made["result"]["tensors"][1]["not_finite"]["masked"] > 10


def test_first_of_each_kind(dumps):
    def change(device, reference):
        spoil("layer2", np.nan)(device, reference)
        noise("layer4")(device, reference)

    _, made = dumps(change)
    assert {one["code"]: one["tensor"] for one in made["findings"]} == {
        "Q801": "layer2",
        "Q616": "layer4",
    }
    assert made["result"]["first_bad"] == "layer2"


def test_missing_and_extra(dumps):
    def change(device, reference):
        del device["layer2"]
        device["more"] = np.zeros(3)

    code, made = dumps(change)
    finding = only(made)
    assert (code, finding["code"], finding["severity"]) == (1, "Q612", "error")
    assert "layer2" in finding["message"]
    assert (made["result"]["missing"], made["result"]["extra"]) == (["layer2"], ["more"])


def test_a_zeroed_channel(dumps):
    code, made = dumps(lambda device, _: device["layer1"].__setitem__((..., 11), 0))
    finding = only(made)
    assert (code, finding["code"], finding["tensor"]) == (1, "Q616", "layer1")
    assert "1 of 48 channels are zero" in finding["message"]


def test_swapped_rows_and_permuted_channels(dumps):
    def rows(device, reference):
        device.update({name: array.copy() for name, array in reference.items()})
        device["layer1"][0, [0, 2]] = device["layer1"][0, [2, 0]]

    code, made = dumps(rows)
    finding = only(made)
    assert (code, finding["code"]) == (1, "Q603")
    assert "2 of 4 rows are permuted: 0 holds 2, 2 holds 0" in finding["message"]

    order = np.random.default_rng(3).permutation(48)

    def channels(device, reference):
        device.update(reference)
        device["layer1"] = reference["layer1"][..., order]

    _, made = dumps(channels)
    assert "channels are permuted" in only(made)["message"]


def test_values_in_other_places(dumps):
    def change(device, reference):
        flat = reference["layer1"].ravel().copy()
        np.random.default_rng(0).shuffle(flat)
        device["layer1"] = flat.reshape(reference["layer1"].shape)

    _, made = dumps(change)
    assert (only(made)["code"], "other places" in only(made)["message"]) == ("Q603", True)


def test_shapes(dumps):
    def change(device, reference):
        device["layer0"] = device["layer0"][0]  # an axis of 1 less is the same
        device["layer1"] = device["layer1"].reshape(2, 2, 48)
        device["layer2"] = device["layer2"].reshape(1, 48, 4)

    code, made = dumps(change)
    finding = only(made)
    assert (code, finding["tensor"], finding["certainty"]) == (1, "layer2", "proven")
    assert "[1, 48, 4]" in finding["message"]


def test_what_cannot_be_compared_is_told(dumps):
    def change(device, reference):
        device["layer3"] = np.array(["a", "b"])

    code, made = dumps(change)
    assert (code, made["verdict"]) == (3, "incomplete")
    assert [one["name"] for one in made["coverage"]["skipped"]] == ["layer3"]


def test_names_of_tpu_mlir():
    assert matched(["a", "b", "c"], ["a", "a_f32", "b_f32", "x"]) == {"a": "a", "b": "b_f32"}
    assert matched(["b"], ["b_f32", "b_bf16"]) == {}  # which of both?
    assert matched(["linear0_f32"], ["linear0"]) == {"linear0_f32": "linear0"}


def test_dumps_that_tpu_mlir_wrote():
    """Host and device differ by bf16 rounding; the graph is that of the device."""
    folder = TPU / "bm1684x-1.28.1"
    case = "w4_n128_k256_g64"
    code, made = ask("--float", folder / f"{case}_host.npz", "--device", folder / f"{case}_dev.npz",
                     "--mlir", folder / f"{case}_bm1684x_w4bf16_final.mlir")  # fmt: skip
    [one] = made["result"]["tensors"]
    assert one["name"] == "linear0_f32"
    assert one["relation"] == "close"
    assert one["relative"] < 0.01
    assert made["result"]["missing"] == ["in0", "in0linear0_bf16", "linear0"]
    assert (code, only(made)["code"]) == (1, "Q612")
    graph = read_mlir(folder / f"{case}_bm1684x_w4bf16_final.mlir").results
    assert graph == ("in0", "in0linear0_bf16", "linear0", "linear0_f32")


def test_what_the_graph_does_not_have_was_fused(dumps):
    folder = TPU / "bm1684x-1.28.1"
    case = "w4_n128_k256_g64"
    with np.load(folder / f"{case}_host.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    np.savez(dumps.folder / "ref.npz", **arrays, gelu=np.ones(3))
    code, made = ask("--float", dumps.folder / "ref.npz", "--device", folder / f"{case}_host.npz",
                     "--mlir", folder / f"{case}_bm1684x_w4bf16_final.mlir")  # fmt: skip
    assert (code, made["findings"], made["result"]["fused"]) == (0, [], ["gelu"])


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint8])
def test_dtypes(dtype):
    values = np.arange(48).reshape(4, 12)
    pair = TensorPair("a", "a")
    compare_tensor(pair, values.astype(np.float32), values.astype(dtype), 0.5)
    assert pair.relation == "equal"


def test_in_slabs_as_at_once(monkeypatch):
    rng = np.random.default_rng(2)
    a = rng.standard_normal((37, 24)).astype(np.float32)
    b = (a + 0.1 * rng.standard_normal(a.shape)).astype(np.float32)
    b[30, 5] = np.nan
    found = []
    for slab in (1, 100, 1 << 21):
        monkeypatch.setattr("qassay.comparison.dumps._SLAB", slab)
        pair = TensorPair("a", "a")
        compare_tensor(pair, a, b, 0.5)
        found.append(pair)
    gap = np.delete((b.astype(np.float64) - a).ravel(), 30 * 24 + 5)
    for pair in found:
        assert pair.not_finite.first == (30, 5)
        assert pair.difference.elements == 37 * 24 - 1
        assert pair.difference.rms == pytest.approx(np.sqrt(np.mean(gap**2)))
        assert pair.difference.largest == pytest.approx(np.abs(gap).max())


def test_usage(dumps):
    dumps()
    folder = dumps.folder
    pair = ["--float", folder / "ref.npz", "--device", folder / "dev.npz"]
    for more in (
        ["--weights", folder / "ref.npz"],
        ["--layer", "x"],
        ["--inputs", folder / "ref.npz"],
    ):
        code, said = ask(*pair, *more)
        assert code == 2
        assert "--weights, --inputs and --device" in said
    assert ask("--device", folder / "dev.npz")[0] == 2
    np.savez(folder / "dev.npz", other=np.zeros(3))
    code, said = ask(*pair)
    assert code == 2
    assert "no tensor is in both" in said


def test_damaged_dumps(dumps):
    dumps()
    path = dumps.folder / "dev.npz"
    whole = path.read_bytes()
    for cut in (10, 500, len(whole) - 30):
        path.write_bytes(whole[:cut])
        assert ask("--float", dumps.folder / "ref.npz", "--device", path)[0] == 3
    broken = bytearray(whole)
    at = whole.index(b"NUMPY") + 200
    broken[at : at + 8] = b"\xff" * 8  # the checksum of one member no longer holds
    path.write_bytes(broken)
    code, made = ask("--float", dumps.folder / "ref.npz", "--device", path)
    assert code == 3
    assert [one["name"] for one in made["coverage"]["skipped"]] == ["layer0"]
