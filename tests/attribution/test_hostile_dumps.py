"""Dumps of which something is wrong: one message each, no waiting, and never "none is bad"."""

from __future__ import annotations

import base64
import io
import json
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parent))

from validating import validator

from qassay.cli.main import cli
from qassay.comparison.dumps import TensorPair, compare_tensor
from qassay.core.errors import InputError
from qassay.run import polygraphy
from qassay.run.dumps import open_dump
from qassay.testing.safetensors_writer import write_safetensors

RNG = np.random.default_rng(3)
Y = RNG.standard_normal((1, 4, 48)).astype(np.float32)
Z = RNG.standard_normal((1, 4, 48)).astype(np.float32)
RAW = {"file": "y.bin", "shape": [1, 4, 48], "dtype": "float32"}


@pytest.fixture
def ask(tmp_path):
    """Compare a dump with a sound one of two tensors."""
    np.savez(tmp_path / "ref.npz", y=Y, z=Z)

    def run(device: Path, reference: Path | None = None):
        first = reference or tmp_path / "ref.npz"
        line = ["diagnose", "--float", str(first), "--device", str(device), "-f", "json"]
        done = CliRunner().invoke(cli, line)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        if done.exit_code == 2:
            return 2, done.stderr
        made = json.loads(done.stdout)
        validator().validate(made)
        return done.exit_code, made

    return run


def reasons(made):
    return " ".join(one["reason"] for one in made["coverage"]["skipped"])


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array)
    return stream.getvalue()


def header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def folder(path: Path, told: object, data: bytes = Y.tobytes()) -> Path:
    path.mkdir()
    text = told if isinstance(told, str) else json.dumps(told)
    (path / "shapes.json").write_text(text, "utf-8")
    (path / "y.bin").write_bytes(data)
    return path


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("name", ["d.npz", "d.npy", "d.json", "d.safetensors", "d"])
def test_a_pipe_is_not_waited_for(ask, tmp_path, name):
    os.mkfifo(tmp_path / name)
    code, made = ask(tmp_path / name)
    assert (code, made["verdict"]) == (3, "incomplete")
    assert "not a regular file" in reasons(made)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_in_a_folder(ask, tmp_path):
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / "shapes.json")
    assert "not a regular file" in reasons(ask(tmp_path / "a")[1])
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "shapes.json").write_text(json.dumps({"y": {**RAW, "shape": [0]}}))
    os.mkfifo(tmp_path / "b" / "y.bin")
    assert "not a regular file" in reasons(ask(tmp_path / "b")[1])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [-1, 4, 48]}, "the shape is none"),
        ({"shape": [1.0, 4, 48]}, "the shape is none"),
        ({"shape": [True, 4, 48]}, "the shape is none"),
        ({"shape": "148"}, "the shape is none"),
        ({"shape": [1] * 65 + [192]}, "the shape is none"),
        ({"shape": [2**30, 2**30, 2**30]}, "not of that shape"),
        ({"shape": [1, 4, 47]}, "not of that shape"),
        ({"dtype": "float16"}, "4 bytes a number"),
        ({"dtype": "float128"}, "the dtype is not known"),
        ({"dtype": "object"}, "the dtype is not known"),
        ({"dtype": None}, "the dtype is not known"),
        ({"file": "../ref.npz"}, "not one of the folder's"),
        ({"file": "a\0b"}, "not one of the folder's"),
        ({"file": 5}, "not one of the folder's"),
        ({"file": "gone.bin"}, "cannot be read"),
    ],
)
def test_one_bad_array_does_not_hide_the_others(ask, tmp_path, change, words):
    """What is wrong with `y` is said of `y`; `z`, which is sound, is compared."""
    path = folder(tmp_path / "d", {"y": {**RAW, **change}, "z": {**RAW, "file": "z.bin"}})
    (path / "z.bin").write_bytes(Z.tobytes())
    code, made = ask(path)
    assert code == 3
    told = {one["name"]: one for one in made["result"]["tensors"]}
    assert (told["y"]["relation"], told["z"]["relation"]) == ("not-compared", "equal")
    assert words in told["y"]["why"]
    # No size that only the JSON file promises is counted as read.
    assert made["coverage"]["bytes"] <= 4 * Y.nbytes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'{{"y": {json.dumps(RAW)}, "y": {json.dumps(RAW)}}}', "two arrays are called y"),
        ("[" * 100_000, "cannot be read"),
        ('{"y": {"shape": [NaN]}}', "cannot be read"),
        (json.dumps({"y": RAW}) + "x", "cannot be read"),
        ("{}", "holds no arrays"),
        ("[]", "lists no arrays"),
    ],
)
def test_json_files_that_are_none(ask, tmp_path, text, words):
    code, made = ask(folder(tmp_path / "d", text))
    assert code == 3
    assert words in reasons(made)


def test_names_and_dtypes_as_people_write_them(ask, tmp_path):
    told = {"y\x1b[31m": RAW, "z\\": RAW, "y": {**RAW, "dtype": "FP32"}}
    path = folder(tmp_path / "d", "\ufeff" + json.dumps(told))
    dump = open_dump(path)
    assert dump.names() == list(told)
    code, made = ask(path, path)
    assert (code, made["verdict"]) == (0, "clean")
    assert [one["name"] for one in made["result"]["tensors"]] == list(told)


def span(start: int, stop: int, shape: list[int] | None = None, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape or [1, 4, 48], "data_offsets": [start, stop]}


def stored(path: Path, head: dict | str, data: bytes) -> Path:
    text = (head if isinstance(head, str) else json.dumps(head)).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


SIZE = Y.nbytes
TWICE = f'{{"y": {json.dumps(span(0, SIZE))}, "y": {json.dumps(span(SIZE, 2 * SIZE))}}}'


@pytest.mark.parametrize(
    ("head", "left", "code"),
    [
        ({"y": span(0, SIZE), "z": span(4, SIZE + 4)}, 2 * SIZE, "Q002"),
        ({"y": span(0, SIZE), "z": span(SIZE, 2 * SIZE)}, SIZE, "Q001"),
        ({"y": span(0, SIZE, [1, 4, 4800])}, 2 * SIZE, "Q003"),
        (TWICE, 2 * SIZE, "Q007"),
    ],
)
def test_safetensors_that_are_not_sound(ask, tmp_path, head, left, code):
    path = stored(tmp_path / "d.safetensors", head, (Y.tobytes() + Z.tobytes())[:left])
    got, made = ask(path)
    assert (got, made["verdict"]) == (3, "incomplete")
    assert code in reasons(made)
    assert not made["findings"]  # nothing is missing from the dump: it is damaged


def test_a_tensor_of_an_unknown_type_is_not_called_missing(ask, tmp_path):
    head = {"y": span(0, SIZE, dtype="F7"), "z": span(SIZE, 2 * SIZE)}
    code, made = ask(stored(tmp_path / "d.safetensors", head, Y.tobytes() + Z.tobytes()))
    assert (code, made["findings"], made["result"]["missing"]) == (3, [], [])
    assert [one["relation"] for one in made["result"]["tensors"]] == ["not-compared", "equal"]


def test_floats_stay_in_the_file(tmp_path):
    """F32 of safetensors and npy are not copied: a dump may be larger than memory."""
    path = tmp_path / "d.safetensors"
    path.write_bytes(write_safetensors([("y", "F32", list(Y.shape), Y.tobytes())]))
    np.save(tmp_path / "d.npy", Y)
    for place, name in ((path, "y"), (tmp_path / "d.npy", "array")):
        dump = open_dump(place)
        array = dump.read(name)
        assert not array.flags.writeable
        assert np.array_equal(array, Y)
        dump.close()


def test_an_array_that_is_too_large_is_told_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("qassay.run.dumps.MOST_NUMBERS", 100)
    np.savez(tmp_path / "d.npz", y=Y, z=np.zeros(100, np.float32))
    dump = open_dump(tmp_path / "d.npz")
    with pytest.raises(InputError, match=r"too large; expected at most 100 numbers; found 192"):
        dump.read("y")
    assert dump.read("z").shape == (100,)


@pytest.mark.parametrize("shape", ["(-1, 4, 48)", f"({2**62},)", "(True, 192)", f"(0, {2**70})"])
@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_numpy_headers_that_lie(ask, tmp_path, recwarn, shape, suffix):
    data = header(shape) + Y.tobytes()
    path = tmp_path / f"d.{suffix}"
    if suffix == "npy":
        path.write_bytes(data)
        code, made = ask(path)
        assert code == 3
    else:
        import zipfile

        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("y.npy", data)
            archive.writestr("z.npy", npy(Z))
        code, made = ask(path)
        assert code == 3
        assert [one["relation"] for one in made["result"]["tensors"]] == ["not-compared", "equal"]
    assert made["verdict"] == "incomplete"
    assert not [one for one in recwarn if issubclass(one.category, RuntimeWarning)]


def test_a_name_that_is_not_that_of_the_content(ask, tmp_path):
    np.savez(tmp_path / "a.npz", y=Y)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    assert "ends in .npz" in reasons(ask(tmp_path / "a.npy")[1])
    np.save(tmp_path / "b.npy", Y)
    (tmp_path / "b.npy").rename(tmp_path / "b")
    assert "ends in .npy" in reasons(ask(tmp_path / "b")[1])
    assert "no such file" in reasons(ask(tmp_path / "gone.npz")[1])


def coded(array: np.ndarray) -> str:
    text = base64.b64encode(npy(array)).decode()
    return (
        f'{{"values": {{"array": "{text}", "polygraphy_class": "ndarray"}},'
        ' "polygraphy_class": "LazyArray"}'
    )


def run_results(outputs: str) -> str:
    return (
        f'{{"lst": [["r", [{{"outputs": {{{outputs}}}, "polygraphy_class": "IterationResult"}}]]],'
        ' "polygraphy_class": "RunResults"}'
    )


def test_polygraphy_names_twice(ask, tmp_path):
    path = tmp_path / "d.json"
    path.write_text(run_results(f'"y": {coded(Y)}, "y": {coded(Z)}'))
    assert "two arrays are called y" in reasons(ask(path)[1])


def test_polygraphy_is_not_read_to_the_end_where_it_holds_no_array(tmp_path, monkeypatch):
    """A file of some gigabytes of something else: refused after the frame's size."""
    monkeypatch.setattr(polygraphy, "LARGEST_FRAME", 1 << 12)
    path = tmp_path / "d.json"
    text = run_results(f'"y": {coded(Y)}, "z": {coded(Z)}')
    path.write_text(text)
    assert open_dump(path).names() == ["y", "z"]
    path.write_text(text + " " * 5000)
    with pytest.raises(InputError, match="too much beside them"):
        open_dump(path)
    path.write_text('"array": "!' * 5000 + text)
    with pytest.raises(InputError, match="cannot be read"):
        open_dump(path)


def test_nothing_compared_is_not_none_bad(ask, tmp_path):
    np.savez(tmp_path / "d.npz", y=Y.astype(complex), z=np.array(["a"]))
    line = ["diagnose", "--float", str(tmp_path / "ref.npz"), "--device", str(tmp_path / "d.npz")]
    done = CliRunner().invoke(cli, line)
    assert done.exit_code == 3
    assert "none of 0 tensors is bad" in done.stdout
    assert "2 were not compared" in done.stdout


def pair_of(reference: np.ndarray, device: np.ndarray, limit: float = 0.5) -> TensorPair:
    pair = TensorPair("y", "y")
    compare_tensor(pair, reference, device, limit)
    return pair


def test_a_transposed_tensor_is_called_so():
    told = pair_of(Y, np.ascontiguousarray(Y[0].T))
    assert told.why.endswith("it is transposed")
    assert not pair_of(Y, np.ascontiguousarray(Z[0].T)).why.endswith("it is transposed")


def test_a_last_axis_that_is_too_long_for_channels_is_one(monkeypatch):
    monkeypatch.setattr("qassay.comparison.dumps._WIDEST", 64)
    one = RNG.standard_normal((2, 100)).astype(np.float32)
    two = one.copy()
    two[1, 7] = np.nan
    told = pair_of(one, two)
    assert (told.code, told.not_finite.first) == ("Q801", (107, 0))
    assert pair_of(one, one.copy()).relation == "equal"


@pytest.mark.parametrize("axis", [0, 1])
def test_an_order_is_found_by_digests(axis, monkeypatch):
    """In slabs too; rows that are there twice are not told apart, whatever their digests."""
    monkeypatch.setattr("qassay.comparison.dumps._SLAB", 64)
    one = RNG.standard_normal((40, 24)).astype(np.float32)
    one[3, 5] = -0.0
    order = RNG.permutation(one.shape[axis])
    two = np.take(one, order, axis=axis) + np.float32(0)
    told = pair_of(one, two)
    moved = int((order != np.arange(len(order))).sum())
    noun = "rows" if axis == 0 else "channels"
    assert told.code == "Q603"
    assert told.why.startswith(f"{moved} of {len(order)} {noun} are permuted")
    first = int(np.flatnonzero(order != np.arange(len(order)))[0])
    assert f"{first} holds {order[first]}" in told.why
