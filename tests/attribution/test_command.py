"""`qassay probe` and `qassay diagnose`, from the command line."""

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
from qassay.comparison.attribution.setup import setup_of
from qassay.runtimes.sophgo.arithmetic import Model, multiply
from qassay.runtimes.sophgo.bfloat16 import bf16_bits
from qassay.testing.device_cases import write_linear
from qassay.testing.faulty_devices import Device, faults, random_linear, run

CHECKPOINTS = Path(__file__).resolve().parents[1] / "fixtures" / "checkpoints"
LAYER = "model.layers.0.mlp.down_proj"


def qassay(*args):
    return CliRunner().invoke(cli, list(map(str, args)))


def document(*args):
    done = qassay(*args, "-f", "json")
    made = json.loads(done.stdout)
    validator().validate(made)
    return done.exit_code, made


@pytest.fixture
def small(tmp_path):
    """A Linear in an npz, its probes, and a function that writes a device's outputs."""
    linear = random_linear(1, 64, 128, 32)
    write_linear(tmp_path / "w.npz", linear)
    assert qassay("probe", tmp_path / "w.npz", "-o", tmp_path / "probes.npz").exit_code == 0

    def device(fault=None, **more):
        known = {one.name: one for one in faults(linear, random_linear(2, 64, 128, 32))}
        made = Device(linear) if fault is None else known[fault].plant(linear)
        with np.load(tmp_path / "probes.npz") as probes:
            outputs = {
                name: run(made, probes[name].reshape(-1, 128), "dev").reshape(
                    *probes[name].shape[:2], -1
                )
                for name in probes.files
            }
        path = tmp_path / "device.npz"
        np.savez(path, **outputs)
        return path

    device.folder = tmp_path
    return device


def ask(small, path, *more):
    folder = small.folder
    return document("diagnose", "--weights", folder / "w.npz", "--inputs", folder / "probes.npz",
                    "--device", path, *more)  # fmt: skip


def test_probe_writes_inputs_and_a_page(small):
    folder = small.folder
    with np.load(folder / "probes.npz") as probes:
        x, decode = probes["prefill"], probes["decode"]
    assert x.dtype == np.float32
    assert x.shape[0] == 1
    assert x.shape[2] == 128
    assert decode.shape[1:] == (1, 128)
    rows = x[0]
    hot = rows[(np.count_nonzero(rows, axis=1) == 1)]
    assert set(hot[hot != 0]) == {1024.0}
    columns = {int(row.argmax()) for row in hot}
    assert {0, 1, 126, 127} <= columns
    assert all(column ^ 1 in columns for column in columns)
    assert {column // 32 for column in columns} == {0, 1, 2, 3}
    assert np.isnan(rows).any(axis=1).sum() == 1
    assert np.nanmax(np.abs(rows)) == 2**15
    page = (folder / "probes.md").read_text()
    for words in ("prefill", "decode", "device.npz", "qassay diagnose", "[64, 128]"):
        assert words in page


def test_probes_are_the_same_twice_and_never_replace_a_file(small):
    folder = small.folder
    assert qassay("probe", folder / "w.npz", "-o", folder / "again.npz").exit_code == 0
    assert (folder / "again.npz").read_bytes() == (folder / "probes.npz").read_bytes()
    done = qassay("probe", folder / "w.npz", "-o", folder / "again.npz")
    assert done.exit_code == 2
    assert "there already" in done.stderr


def test_sound(small):
    code, made = ask(small, small(), "--on", "sophgo:bm1684x@1.30.2")
    assert (code, made["verdict"]) == (0, "clean")
    for output in made["result"]["outputs"]:
        assert output["verdict"] == "explained"
        assert output["arithmetic"] == ["dev"]
        assert any("bm1684x (A16MatMul)" in way for way in output["computed_by"])


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("deal16 of y", "Q603"),
        ("groups of s rolled by 1", "Q604"),
        ("zero points +1", "Q605"),
        ("nibbles of codes", "Q606"),
        ("NaN read as 0", "Q608"),
        ("no bias", "Q609"),
        ("f16 accumulator", "Q803"),
    ],
)
def test_fault(small, fault, code):
    done, made = ask(small, small(fault), "--no-pairs")
    assert done == 1
    assert {finding["code"] for finding in made["findings"]} == {code}
    assert {finding["certainty"] for finding in made["findings"]} == {"proven"}
    assert all(finding["help"] for finding in made["findings"])


def test_prefill_right_and_decode_wrong(small):
    path = small("bias twice")
    with np.load(path) as archive:
        wrong = archive["decode"]
    path = small()
    with np.load(path) as archive:
        right = archive["prefill"]
    np.savez(path, prefill=right, decode=wrong)
    _, made = ask(small, path, "--no-pairs")
    [finding] = made["findings"]
    assert (finding["code"], finding["field"]) == ("Q609", "decode")


def test_three_outputs_of_a_checkpoint(tmp_path):
    model = CHECKPOINTS / "autoround-w4a16-asym-gptq"
    source = CHECKPOINTS / "source-tiny-llama-f16"
    probes = tmp_path / "p.npz"
    assert qassay("probe", model, LAYER, "-o", probes).exit_code == 0
    from qassay.run.diagnose_weights import open_weights

    true = open_weights(model, LAYER)
    assert (true.group, true.label) == (128, "gptq.int4")
    with np.load(probes) as archive:
        x = archive["prefill"]
    y = multiply(x, true.setup.weight(), true.setup.bias, model=Model.ONE)
    np.savez(tmp_path / "y.npz", prefill=y)
    code, made = document("diagnose", "--weights", model, "--layer", LAYER, "--inputs", probes,
                          "--device", tmp_path / "y.npz", "--float", source)  # fmt: skip
    assert code == 0
    [output] = made["result"]["outputs"]
    assert output["device"]["rms"] == 0
    assert 10 < output["quantization"]["snr_db"] < 40
    assert output["quantization"] == output["total"]


def test_float_outputs_as_a_reference(small):
    path = small()
    with np.load(path) as archive:
        np.savez(small.folder / "f.npz", prefill=archive["prefill"] * 1.5, decode=archive["decode"])
    _, made = ask(small, path, "--float", small.folder / "f.npz")
    prefill, decode = made["result"]["outputs"]
    assert prefill["quantization"]["rms"] > 0
    assert decode["quantization"]["snr_db"] is None


def test_raw_dumps(small):
    path = small()
    folder = small.folder / "dumps"
    folder.mkdir()
    with np.load(path) as archive:
        bf16_bits(archive["prefill"]).tofile(folder / "prefill.bin")
        shape = list(archive["prefill"].shape)
    said = {"prefill": {"file": "prefill.bin", "shape": shape, "dtype": "bfloat16"}}
    (folder / "shapes.json").write_text(json.dumps(said))
    code, made = ask(small, folder)
    assert code == 0
    assert [one["name"] for one in made["result"]["outputs"]] == ["prefill"]


@pytest.mark.parametrize(
    "said",
    [
        "[]",
        "{",
        "nonsense",
        '{"prefill": 3}',
        '{"prefill": {"file": "../w.npz", "shape": [1], "dtype": "float32"}}',
        '{"prefill": {"file": "x.bin", "shape": [-1], "dtype": "float32"}}',
        '{"prefill": {"file": "x.bin", "shape": [99999999999], "dtype": "float32"}}',
        '{"prefill": {"file": "x.bin", "shape": [true], "dtype": "float32"}}',
        '{"prefill": {"file": "x.bin", "shape": [4], "dtype": "object"}}',
        '{"prefill": {"file": "none.bin", "shape": [4], "dtype": "float32"}}',
        '{"prefill": {"shape": {}, "dtype": []}}',
    ],
)
def test_hostile_dumps(small, said):
    folder = small.folder / "dumps"
    folder.mkdir()
    (folder / "x.bin").write_bytes(b"1234")
    (folder / "shapes.json").write_text(said)
    small()
    done = qassay("diagnose", "--weights", small.folder / "w.npz", "--inputs",
                  small.folder / "probes.npz", "--device", folder)  # fmt: skip
    assert done.exit_code in (2, 3)
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("cut", [1, 30, 300, 2000])
def test_cut_files(small, cut):
    path = small()
    path.write_bytes(path.read_bytes()[:-cut])
    done = qassay("diagnose", "--weights", small.folder / "w.npz", "--inputs",
                  small.folder / "probes.npz", "--device", path)  # fmt: skip
    assert done.exit_code == 3


@pytest.mark.parametrize(
    "arrays",
    [
        {"qweight": np.zeros((4, 4), np.uint8)},
        {"weight": np.zeros(3, np.float32)},
        {"weight": np.zeros((0, 4), np.float32)},
        {"weight": np.array([["a"]])},
        {"qweight": np.zeros((64, 64), np.uint8), "scales": np.zeros((64, 3), np.float32),
         "qzeros": np.zeros((64, 3), np.uint8)},
        {"qweight": np.zeros((64, 64), np.uint8), "scales": np.zeros((64, 4), np.float32),
         "qzeros": np.zeros((64, 9), np.uint8)},
        {"qweight": np.zeros((64, 64), np.uint8), "scales": np.zeros((9, 4), np.float32),
         "qzeros": np.zeros((9, 4), np.uint8)},
        {"qweight": np.zeros((64, 64), np.uint8), "scales": np.zeros((64, 4), np.float32),
         "qzeros": np.zeros((64, 4), np.uint8), "bias": np.zeros(3)},
    ],
)  # fmt: skip
def test_hostile_weights(small, arrays):
    path = small()
    np.savez(small.folder / "bad.npz", **arrays)
    done = qassay("diagnose", "--weights", small.folder / "bad.npz", "--inputs",
                  small.folder / "probes.npz", "--device", path)  # fmt: skip
    assert done.exit_code in (2, 3), done.output
    assert "internal error" not in done.stderr


def test_shapes_that_do_not_belong_together(small):
    path = small()
    np.savez(path, y=np.zeros((3, 7), np.float32))
    done = qassay("diagnose", "--weights", small.folder / "w.npz", "--inputs",
                  small.folder / "probes.npz", "--device", path)  # fmt: skip
    assert done.exit_code == 2
    done = qassay("diagnose", "--weights", CHECKPOINTS / "autoround-w4a16-asym-gptq", "--inputs",
                  small.folder / "probes.npz", "--device", path)  # fmt: skip
    assert done.exit_code == 2
    assert "which layer?" in done.stderr


def test_all_of_it_not_finite(small):
    path = small()
    with np.load(path) as archive:
        lost = np.full_like(archive["prefill"], np.nan)
    np.savez(path, prefill=lost)
    code, made = ask(small, path)
    assert code == 1
    assert "Q801" in {finding["code"] for finding in made["findings"]}


def test_setup_of_the_npz_is_that_of_the_linear(small):
    from qassay.run.diagnose_weights import open_weights

    linear = random_linear(1, 64, 128, 32)
    expected = setup_of(linear.canonical(), linear.bias, 4)
    assert np.array_equal(open_weights(small.folder / "w.npz").setup.weight(), expected.weight())


def test_an_array_whose_header_is_no_python(small):
    small()
    path = small.folder / "y.npy"
    np.save(path, np.zeros((51, 64), np.float32))
    path.write_bytes(path.read_bytes().replace(b"'descr': '<f4'", b"('descr': '|O8'"[:14]))
    done = qassay("diagnose", "--weights", small.folder / "w.npz", "--inputs",
                  small.folder / "probes.npz", "--device", path)  # fmt: skip
    assert done.exit_code == 3
    assert "internal error" not in done.stderr


def test_errors_are_told_by_kind_of_row(small):
    """One RMS over all rows would be that of the loud one."""
    _, made = ask(small, small("zero points +1"), "--no-pairs")
    prefill = made["result"]["outputs"][0]
    kinds = {one["kind"]: one for one in prefill["by_kind"]}
    assert {"zeros", "one feature", "several features", "loud"} == set(kinds)
    assert kinds["loud"]["rows"] == 1
    assert kinds["zeros"]["device"]["rms"] == 0
    assert kinds["loud"]["device"]["rms"] > 100 * kinds["several features"]["device"]["rms"]
    told = [kinds[kind] for kind in ("zeros", "one feature", "several features")]
    assert prefill["rows_of_differences"] == sum(one["rows"] for one in told)
    assert prefill["device"]["elements"] == sum(one["device"]["elements"] for one in told)
    assert prefill["device"]["not_finite"] == 0
    page = qassay("diagnose", "--weights", small.folder / "w.npz", "--inputs",
                  small.folder / "probes.npz", "--device", small.folder / "device.npz",
                  "--no-pairs").stdout  # fmt: skip
    assert "several features (8)" in page


def test_inputs_in_a_dump_of_outputs_are_no_outputs(small):
    with np.load(small()) as archive, np.load(small.folder / "probes.npz") as probes:
        np.savez(small.folder / "x.npz", in0=probes["prefill"])
        np.savez(small.folder / "y.npz", in0=probes["prefill"], linear0=archive["prefill"])
        np.savez(small.folder / "z.npz", in0=probes["prefill"][..., :64])
    _, made = document("diagnose", "--weights", small.folder / "w.npz", "--inputs",
                       small.folder / "x.npz", "--device", small.folder / "y.npz")  # fmt: skip
    [output] = made["result"]["outputs"]
    assert (output["name"], output["verdict"]) == ("linear0", "explained")
    # What has the name of the inputs and is no copy of them is an output still.
    _, made = document("diagnose", "--weights", small.folder / "w.npz", "--inputs",
                       small.folder / "x.npz", "--device", small.folder / "z.npz")  # fmt: skip
    assert [one["name"] for one in made["result"]["outputs"]] == ["in0"]


def verdicts(small, path):
    done = qassay("diagnose", "--weights", small.folder / "w.npz", "--no-pairs", "--inputs",
                  small.folder / "probes.npz", "--device", path)  # fmt: skip
    told = done.stdout.partition("Verdict\n")[2].splitlines()
    return [line.strip() for line in told[:2]], done.stdout


def test_the_verdict_names_the_fault_and_the_output(small):
    path = small("bias twice")
    with np.load(path) as archive:
        wrong = archive["decode"]
    with np.load(small()) as archive:
        right = archive["prefill"]
    np.savez(path, prefill=right, decode=wrong)
    lines, whole = verdicts(small, path)
    assert lines[0] == "prefill: explained bit for bit by a documented arithmetic: not a fault"
    assert "  decode: the bias is added twice" in whole
    assert "  decode: a fault: the bias is added twice" in whole
    assert "more\n" not in whole.partition("Verdict")[0]  # "and 63 more": of what?


def test_scales_that_are_not_rounded_are_no_fault_in_the_verdict(small):
    lines, whole = verdicts(small, small("scale not rounded"))
    assert all(": no fault by itself: scales are kept as" in line for line in lines)
    assert "clean: no errors" in whole


def test_outputs_that_are_not_finite_are_no_sound_verdict(small):
    path = small()
    with np.load(path) as archive:
        prefill, decode = archive["prefill"].copy(), archive["decode"]
    prefill[0, 45, 3] = np.nan
    np.savez(path, prefill=prefill, decode=decode)
    lines, _ = verdicts(small, path)
    assert lines[0].startswith("prefill: a fault: outputs are NaN or infinite; all other outputs:")


@pytest.mark.parametrize("arithmetic", ["dev", "bf16-sums"])
def test_rows_that_were_not_cropped(tmp_path, arithmetic):
    """Flat in memory: the first M * N numbers of rows of 128, read as rows of 96."""
    linear = random_linear(1, 96, 256, 64)
    write_linear(tmp_path / "w.npz", linear)
    known = {one.name: one for one in faults(linear, random_linear(2, 96, 256, 64))}
    device = known["tail of zeros not cropped"].plant(linear)
    x = np.random.default_rng(3).standard_normal((8, 256)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", run(device, x, arithmetic))
    given = ("diagnose", "--weights", tmp_path / "w.npz", "--inputs", tmp_path / "x.npy",
             "--device", tmp_path / "y.npy", "--no-pairs")  # fmt: skip
    code, made = document(*given)
    [finding] = made["findings"]
    assert (code, finding["code"]) == (1, "Q607")
    assert finding["certainty"] == ("proven" if arithmetic == "dev" else "likely")
    sure = "a fault" if arithmetic == "dev" else "likely a fault"
    assert f": {sure}: rows of 128 output channels were not cropped" in qassay(*given).stdout
