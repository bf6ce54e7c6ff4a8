"""JSON files of polygraphy: what it wrote is read, what is damaged is refused."""

from __future__ import annotations

import base64
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from qassay.cli.main import cli
from qassay.core.errors import InputError
from qassay.run.dumps import open_dump
from qassay.testing.device_cases import write_linear
from qassay.testing.faulty_devices import Device, faults, random_linear, run

GOLDEN = Path(__file__).resolve().parents[1] / "fixtures" / "polygraphy"


def coded(array, **more):
    stream = io.BytesIO()
    np.save(stream, array)
    text = base64.b64encode(stream.getvalue()).decode()
    return {"array": text, "polygraphy_class": "ndarray", **more}


def results(**runs):
    """Return RunResults: of each runner, a list of iterations."""

    def iteration(arrays):
        lazy = {
            name: {"values": coded(array), "polygraphy_class": "LazyArray"}
            for name, array in arrays.items()
        }
        return {"outputs": lazy, "runtime": None, "polygraphy_class": "IterationResult"}

    listed = [[name, [iteration(one) for one in each]] for name, each in runs.items()]
    return {"lst": listed, "polygraphy_class": "RunResults"}


def test_what_polygraphy_wrote():
    with np.load(GOLDEN / "arrays.npz") as true:
        dump = open_dump(GOLDEN / "outputs.json")
        assert dump.names() == ["hidden", "logits"]
        for name in dump.names():
            array = dump.read(name)
            assert array.dtype == true[f"{name}0"].dtype
            assert np.array_equal(array[0], true[f"{name}0"])
            assert np.array_equal(array[1], true[f"{name}1"])
    inputs = open_dump(GOLDEN / "inputs.json")
    assert inputs.names() == ["x"]
    assert inputs.read("x").shape == (2, 1, 2, 4)


def test_a_folder_with_one_file_an_iteration(tmp_path):
    for at, value in enumerate((1.0, 2.0)):
        text = json.dumps([{"x": coded(np.full((1, 3), value, np.float32))}])
        (tmp_path / f"{at:010}.json").write_text(text)
    assert open_dump(tmp_path).read("x")[:, 0, 0].tolist() == [1.0, 2.0]


def test_iterations_of_other_lengths_are_rows(tmp_path):
    path = tmp_path / "o.json"
    path.write_text(json.dumps(results(r=[{"y": np.zeros((2, 4))}, {"y": np.ones((1, 4))}])))
    assert open_dump(path).read("y")[:, 0].tolist() == [0, 0, 1]


def test_several_runners_keep_their_names(tmp_path):
    path = tmp_path / "o.json"
    path.write_text(json.dumps(results(trt=[{"y": np.zeros(3)}], ort=[{"y": np.ones(3)}])))
    dump = open_dump(path)
    assert dump.names() == ["trt/y", "ort/y"]
    assert dump.read("ort/y").tolist() == [1, 1, 1]


def test_diagnose_takes_them(tmp_path):
    linear = random_linear(1, 64, 128, 32)
    write_linear(tmp_path / "w.npz", linear)
    x = np.random.default_rng(0).standard_normal((8, 128)).astype(np.float32)
    known = {one.name: one for one in faults(linear, random_linear(2, 64, 128, 32))}
    (tmp_path / "in.json").write_text(json.dumps([{"x": coded(row[None])} for row in x]))
    for fault, code in ((None, None), ("zero points +1", "Q605")):
        device = Device(linear) if fault is None else known[fault].plant(linear)
        y = run(device, x, "dev")
        (tmp_path / "out.json").write_text(json.dumps(results(board=[{"y": row} for row in y])))
        done = CliRunner().invoke(cli, ["diagnose", "--weights", str(tmp_path / "w.npz"),
                                        "--inputs", str(tmp_path / "in.json"), "--device",
                                        str(tmp_path / "out.json"), "-f", "json"])  # fmt: skip
        found = json.loads(done.stdout)["findings"]
        assert [one["code"] for one in found] == ([code] if code else [])


def damaged():
    good = coded(np.zeros((2, 3), np.float32))
    raw = base64.b64decode(good["array"])
    yield "no JSON", "{"
    yield "nothing", ""
    yield "deep", "[" * 100_000
    yield "no arrays", json.dumps([{"x": 3, "y": [1]}])
    yield "cut payload", json.dumps([{"x": {**good, "array": good["array"][:-9]}}])
    yield (
        "a few bytes less",
        json.dumps([{"x": {**good, "array": base64.b64encode(raw[:-3]).decode()}}]),
    )
    huge = raw.replace(b"(2, 3)", b"(2**40,)"[:6]).replace(b"'<f4'", b"'|O8'")
    yield "objects", json.dumps([{"x": {**good, "array": base64.b64encode(huge).decode()}}])
    yield "old latin-1", json.dumps([{"x": {**good, "array": raw.decode("latin-1")}}])
    yield "empty", json.dumps([{"x": {**good, "array": ""}}])
    yield "a number", json.dumps([{"x": {**good, "array": 7}}])
    yield "torch", json.dumps([{"x": {"tensor": "AAAA", "polygraphy_class": "Tensor"}}])
    yield "runs", json.dumps({"lst": [["a"]], "polygraphy_class": "RunResults"})
    other = [{"x": good}, {"x": coded(np.zeros((2, 4), np.float32))}]
    yield "iterations that differ", json.dumps(other)
    yield "dtypes that differ", json.dumps([{"x": good}, {"x": coded(np.zeros((2, 3)))}])
    yield "frame", json.dumps([{"x": good, "y": " " * (1 << 24)}])


@pytest.mark.parametrize(("text"), [pytest.param(text, id=name) for name, text in damaged()])
def test_damaged(text, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(text)

    def read():
        dump = open_dump(path)
        for name in dump.names():
            dump.read(name)

    with pytest.raises(InputError) as error:
        read()
    assert str(tmp_path) not in str(error.value)


def test_golden_files_cut_anywhere(tmp_path):
    whole = (GOLDEN / "inputs.json").read_bytes()
    for cut in range(0, len(whole) - 2, 7):
        path = tmp_path / "cut.json"
        path.write_bytes(whole[:cut])
        with pytest.raises(InputError):
            open_dump(path)


def test_a_folder_of_both_is_refused(tmp_path):
    shutil.copy(GOLDEN / "outputs.json", tmp_path / "a.json")
    (tmp_path / "shapes.json").write_text("{}")
    with pytest.raises(InputError):
        open_dump(tmp_path)
