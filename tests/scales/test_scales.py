"""`qassay scales`: sources, choices, errors, the document and the plot."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from qassay.run import scales_sources
from qassay.run.scales import try_scales
from qassay.run.scales_sources import open_source
from qassay.runtimes.scale_storage import Scheme, compare
from qassay.runtimes.scale_storage_formats import DEFAULT
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors


def weights(*shape: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 0.02).astype(np.float32)


def bfloat(values: np.ndarray) -> bytes:
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.safetensors"
    path.write_bytes(
        write_safetensors(
            [
                ("a.weight", "F32", [4, 512], weights(4, 512).tobytes()),
                ("b.weight", "BF16", [2, 3, 64], bfloat(weights(2, 3, 64, seed=1))),
                ("norm.weight", "F32", [64], weights(64).tobytes()),
                ("odd.weight", "F16", [4, 48], weights(4, 48).astype("<f2").tobytes()),
                ("ids", "I64", [4], np.arange(4).tobytes()),
            ]
        )
    )
    return path


def test_a_model_gives_what_its_tensors_give(document, model) -> None:
    made = document(model.name)
    scales = made["result"]["scales"]
    assert scales["tried"] == ["a.weight", "b.weight"]
    assert {each["name"] for each in scales["left_out"]} == {"norm.weight", "odd.weight", "ids"}
    assert scales["weights"] == 4 * 512 + 6 * 64
    parts = [weights(4, 512)]
    second = np.frombuffer(bfloat(weights(2, 3, 64, seed=1)), "<u2").astype(np.uint32) << 16
    parts.append(second.view(np.float32).reshape(6, 64))
    expected = compare(iter(parts), DEFAULT)
    assert [each["stored_as"] for each in scales["rows"]] == list(DEFAULT)
    for each, outcome in zip(scales["rows"], expected, strict=True):
        assert each["max_error"] == outcome.max_error
        assert each["rms_error"] == outcome.rms_error
        assert each["lost"] == outcome.lost
    assert made["verdict"] is None


def test_a_gguf_file_and_a_folder(document, model, tmp_path) -> None:
    raw = weights(4, 512).tobytes()
    (tmp_path / "m.gguf").write_bytes(
        write_gguf({"general.architecture": "llama"}, [("a.weight", 0, (512, 4), raw)])
    )
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(model.read_bytes())
    one = document("m.gguf", "--tensor", "a.weight")["result"]["scales"]
    two = document("folder", "--tensor", "a.weight")["result"]["scales"]
    assert one["rows"] == two["rows"]
    assert one["worked"] == two["worked"]


def test_one_block_of_a_tensor(document, model) -> None:
    scales = document(model.name, "--tensor", "a.weight", "--block", 17)["result"]["scales"]
    block = weights(4, 512)[1, 32:64]
    assert scales["blocks"] == 1
    assert scales["worked"]["row"] == 1
    assert scales["worked"]["block"] == 17
    assert scales["worked"]["weights"] == [float(weight) for weight in block]
    assert scales["worked"]["scale"] == float(np.abs(block).max() / np.float32(127))
    stored = np.float32(np.float16(scales["worked"]["scale"]))
    assert scales["worked"]["stored_scale"] == float(stored)
    codes = np.array(scales["worked"]["codes"])
    assert np.abs(codes).max() == 127
    assert np.array_equal(np.float32(scales["worked"]["decoded"]), codes.astype("f4") * stored)


def test_a_tensor_of_one_axis_is_tried_when_named(document, model) -> None:
    scales = document(model.name, "--tensor", "norm.weight")["result"]["scales"]
    assert scales["tried"] == ["norm.weight"]


def test_the_worked_block_holds_something(document, tmp_path) -> None:
    values = weights(2, 96)
    values[0, :64] = 0
    values[0, 64] = np.nan
    np.save(tmp_path / "w.npy", values)
    scales = document("w.npy")["result"]["scales"]
    assert scales["worked"]["block"] == 3
    assert scales["worked"]["row"] == 1
    assert scales["not_finite"] == 1
    assert scales["worked"]["stored_as"] == "f16"


def test_where_nothing_can_be_compared_there_is_no_error(document, run, tmp_path) -> None:
    np.save(tmp_path / "w.npy", np.full((2, 64), np.nan, np.float32))
    scales = document("w.npy")["result"]["scales"]
    assert scales["not_finite"] == scales["blocks"] == 4
    errors = ("max_error", "max_error_steps", "rms_error", "max_times_f16", "rms_times_f16")
    for row in scales["rows"]:
        assert [row[name] for name in errors] == [None] * 5
    [line] = [line for line in run("w.npy").stdout.splitlines() if line.startswith("  f16 ")]
    assert line.split()[3:8] == ["-"] * 5
    huge = np.full((1, 32), 3e38, np.float32)  # no f16 holds its scale
    np.save(tmp_path / "w.npy", huge)
    rows = {row["stored_as"]: row for row in document("w.npy")["result"]["scales"]["rows"]}
    assert rows["f16"]["max_error"] is None
    assert rows["f32"]["max_error"] == 0.0  # compared, and nothing is lost


@pytest.mark.parametrize("dtype", ["<f2", "<f4", ">f4", "<f8"])
def test_npy(document, tmp_path, dtype) -> None:
    values = weights(3, 64).astype(dtype)
    np.save(tmp_path / "w.npy", values)
    scales = document("w.npy", "--store", "f16")["result"]["scales"]
    [expected] = compare(values.astype(np.float32), ["f16"])
    assert scales["rows"][0]["max_error"] == expected.max_error


def test_an_array_in_column_order_is_read_by_rows(document, tmp_path) -> None:
    values = weights(32, 64)
    np.save(tmp_path / "w.npy", np.asfortranarray(values))
    worked = document("w.npy", "--block", 3)["result"]["scales"]["worked"]
    assert worked["weights"] == [float(weight) for weight in values[1, 32:]]


def test_pieces_do_not_matter(tmp_path, monkeypatch) -> None:
    values = weights(3, 2048)
    np.save(tmp_path / "w.npy", values)
    found = []
    for piece in (1 << 19, 2048, 512):
        monkeypatch.setattr(scales_sources, "_PIECE", piece)
        source = open_source("w.npy")
        done = try_scales(source, DEFAULT, Scheme())
        source.close()
        found.append([(one.max_error, one.lost, one.blocks) for one in done.outcomes])
        assert done.worked.block == 0
    assert found[0] == found[1] == found[2]


def test_what_is_lost_and_what_overflows(document, tmp_path) -> None:
    values = weights(4, 32)
    values[1] *= 1e-5
    values[2] *= 1e9
    np.save(tmp_path / "w.npy", values)
    rows = {each["stored_as"]: each for each in document("w.npy")["result"]["scales"]["rows"]}
    assert (rows["f16"]["lost"], rows["f16"]["overflowed"]) == (1, 1)
    assert (rows["f32"]["lost"], rows["f32"]["overflowed"]) == (0, 0)
    assert rows["f16-truncated"]["lost"] == 1
    assert rows["2-decimals"]["lost"] == 3


def test_the_choices_reach_the_experiment(document) -> None:
    made = document(
        "--published", "--codes", "stored", "--round", "nearest-even", "--store", "3-decimals"
    )
    scales = made["result"]["scales"]
    assert (scales["codes"], scales["round"]) == ("stored", "nearest-even")
    assert scales["rows"][0]["stored_as"] == "3-decimals"
    assert scales["rows"][0]["d"] == pytest.approx(0.023)


def test_a_damaged_tensor_makes_it_incomplete(document, model) -> None:
    model.write_bytes(model.read_bytes()[:-100])
    made = document(model.name, code=3)
    assert made["verdict"] == "incomplete"
    assert made["coverage"]["skipped"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--published", "x.npy"], "either SRC or --published"),
        ([], "either SRC or --published"),
        (["--published", "--tensor", "a"], "has no tensors"),
        (["--published", "--store", "f15"], "no such way to store a scale"),
        (["--published", "--block", "1"], "no block 1"),
        (["m.safetensors", "--tensor", "nothing"], "no tensor called nothing"),
        (["m.safetensors", "--block", "0"], "--block needs one tensor"),
        (["m.safetensors", "--tensor", "a.weight", "--block", "64"], "expected 0 to 63"),
        (["m.safetensors", "--tensor", "odd.weight"], "no whole number of blocks"),
        (["m.safetensors", "--tensor", "ids"], "integers"),
    ],
)
def test_wrong_usage(run, model, args, message) -> None:
    assert message in run(*args, code=2).stderr


def test_inputs_that_cannot_be_read(document, run, tmp_path) -> None:
    made = document("nothing.gguf", code=3)
    assert "no such file" in made["coverage"]["skipped"][0]["reason"]
    np.save(tmp_path / "w.npy", weights(2, 32))
    whole = (tmp_path / "w.npy").read_bytes()
    np.save(tmp_path / "i.npy", np.arange(32))
    assert "holds no floats" in run("i.npy", code=2).stderr
    np.save(tmp_path / "e.npy", weights(0, 32))
    assert "nothing here to try" in run("e.npy", code=2).stderr
    np.save(tmp_path / "o.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert "cannot be read" in document("o.npy", code=3)["coverage"]["skipped"][0]["reason"]
    for length in range(6, len(whole)):
        (tmp_path / "cut.npy").write_bytes(whole[:length])
        made = document("cut.npy", code=3)
        assert made["verdict"] == "incomplete"
    assert "without a name" in run("w.npy", "--tensor", "a", code=2).stderr


def test_names_are_escaped(run, tmp_path) -> None:
    name = "a\x1b[31m"
    (tmp_path / "m.safetensors").write_bytes(
        write_safetensors([(name, "F32", [2, 32], weights(2, 32).tobytes())])
    )
    assert "\x1b" not in run("m.safetensors").stdout


def test_a_plot_needs_matplotlib(run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    stderr = run("--published", "--plot", "p.png", code=2).stderr
    assert "--plot needs matplotlib" in stderr
    assert "pip install 'qassay[plot]'" in stderr
    assert not Path("p.png").exists()


def test_a_plot(run) -> None:
    pytest.importorskip("matplotlib")
    run("--published", "--plot", "p.png")
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_replaces_no_model(run, model) -> None:
    said = run("--published", "--plot", model.name, code=2).stderr
    assert "the plot would replace a model" in said
    assert "another file with --plot" in said


def test_a_plot_in_no_folder(run) -> None:
    assert "plot cannot be written" in run("--published", "--plot", "none/p.png", code=2).stderr


def test_help_imports_no_numpy() -> None:
    import subprocess

    script = (
        "import sys\nfrom qassay.cli.main import cli\n"
        "try:\n    cli.main(['scales', '--help'])\n"
        "finally:\n    assert 'numpy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
