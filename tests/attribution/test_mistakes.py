"""What goes wrong between a device and `qassay diagnose`: the message says what to do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from qassay.cli.main import cli
from qassay.run.mistakes import signs
from qassay.run.near import near
from qassay.runtimes.sophgo.bfloat16 import bf16_bits
from qassay.testing.device_cases import write_linear
from qassay.testing.faulty_devices import Device, random_linear, run

N, K = 64, 128
LINEAR = random_linear(1, N, K, 32)


def qassay(*args):
    done = CliRunner().invoke(cli, list(map(str, args)))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture(scope="module")
def linear(tmp_path_factory):
    folder = tmp_path_factory.mktemp("linear")
    write_linear(folder / "w.npz", LINEAR)
    assert qassay("probe", folder / "w.npz", "-o", folder / "probes.npz").exit_code == 0
    return folder


@pytest.fixture
def told(linear, tmp_path):
    """Change what a sound device gave for `prefill`, and diagnose it: exit code and text."""

    def ask(change, *more):
        with np.load(linear / "probes.npz") as probes:
            x = probes["prefill"]
        y = run(Device(LINEAR), x.reshape(-1, K), "dev")
        np.savez(tmp_path / "device.npz", prefill=change(y, x[0]))
        done = qassay("diagnose", "--weights", linear / "w.npz", "--inputs", linear / "probes.npz",
                      "--device", tmp_path / "device.npz", "--no-pairs", *more)  # fmt: skip
        return done.exit_code, " ".join((done.stdout + done.stderr).split())

    return ask


SOUND = {
    "[M, N]": lambda y, _: y,
    "flat": lambda y, _: y.reshape(-1),
    "[1, 1, M, N, 1]": lambda y, _: y[None, None, :, :, None],
    "float64": lambda y, _: y.astype(np.float64),
    "bf16 bits": lambda y, _: bf16_bits(y),
    "Fortran": lambda y, _: np.asfortranarray(y),
    "big-endian": lambda y, _: y.astype(">f4"),
}


@pytest.mark.parametrize("form", SOUND)
def test_forms_of_a_sound_output(told, form):
    code, text = told(SOUND[form])
    assert (code, "not a fault" in text) == (0, True)


REFUSED = {
    "transposed": (lambda y, _: y.T.copy(), "Fix: transpose it"),
    "a row too few": (lambda y, _: y[1:], "the inputs have 51 rows and the outputs 50"),
    "no rows": (lambda y, _: y[:0], "the inputs have 51 rows and the outputs 0"),
    "another layer": (lambda y, _: y[:, :40].copy(), "a part of it left out? It has 40 channels"),
    "complex": (lambda y, _: y.astype(complex), "holds no numbers"),
    "text": (lambda y, _: y.astype(str), "holds no numbers"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_outputs_that_do_not_belong_to_the_inputs(told, mistake):
    change, words = REFUSED[mistake]
    code, text = told(change)
    assert (code, words in text) == (2, True), text


def other_rows(y, _):
    return y[::-1].copy()


UNEXPLAINED = {
    "channels first": (lambda y, _: y.T.reshape(y.shape), "lie as [64, 51]"),
    "other rows": (other_rows, "rows are those of other inputs"),
    "a scale left out": (lambda y, _: y * np.float32(0.0625), "0.0625 times what the weights give"),
    "codes": (lambda y, _: np.nan_to_num(y * 64).astype(np.int32), "the outputs are int32"),
    "zeros": (lambda y, _: y * 0, "every output is 0"),
    "ReLU": (lambda y, _: np.maximum(y, 0), "a ReLU behind the Linear"),
}


@pytest.mark.parametrize("mistake", UNEXPLAINED)
def test_what_an_output_looks_like_is_told_beside_the_verdict(told, mistake):
    change, words = UNEXPLAINED[mistake]
    code, text = told(lambda y, x: np.nan_to_num(change(y, x)))
    assert (code, "not explained" in text) == (1, True), text
    assert words in text


def test_rows_that_only_differ_have_no_such_look():
    rng = np.random.default_rng(0)
    q = rng.standard_normal((8, 64))
    assert list(signs(q, q)) == []
    assert list(signs(q, q * 1.01)) == []
    assert list(signs(q, rng.standard_normal((8, 64)))) == []
    assert list(signs(q, np.full((8, 64), np.nan))) == []
    assert list(signs(q[:0], q[:0])) == []
    assert list(signs(np.zeros((8, 64)), q)) == []


def test_rows_of_zeros_that_are_wrong_are_not_rounding(told):
    """The bias is all that they show: whatever else comes out there is a fault."""

    def garbage(y, x):
        wrong = y.copy()
        wrong[~x.any(axis=1)] = np.random.default_rng(0).standard_normal(N) * 100
        return wrong

    code, text = told(garbage)
    assert (code, "not explained" in text) == (1, True), text


def test_outputs_of_other_inputs_than_zeros(linear, tmp_path):
    """Inputs of zeros alone prove nothing about outputs that are not the bias."""
    np.savez(tmp_path / "x.npz", a=np.zeros((4, K), np.float32))
    y = np.random.default_rng(0).standard_normal((4, N)).astype(np.float32)
    np.savez(tmp_path / "y.npz", a=y)
    done = qassay("diagnose", "--weights", linear / "w.npz", "--inputs", tmp_path / "x.npz",
                  "--device", tmp_path / "y.npz")  # fmt: skip
    assert (done.exit_code, "not explained" in done.stdout) == (1, True)


def test_a_tail_behind_numbers_of_something_else_is_no_proof(told):
    rng = np.random.default_rng(0)
    code, text = told(lambda y, _: rng.standard_normal((len(y), 2 * N)).astype(np.float32))
    assert code == 1
    assert "Q607 tail-not-cropped (hint)" in text
    assert "or the output of another layer" in text
    assert "padded with zero bytes" not in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--input-name", "zz"], "no array is called zz"),
        (["--output-name", "zz"], "no array is called zz"),
        (["--select", "Q9"], "no rule is left"),
        (["--limit", "1"], "dumps of a whole model"),
        (["--on", "nonsense"], "Sophgo's chips only"),
        (["--on", ""], "names no runtime"),
    ],
)
def test_options_that_mean_nothing_here(told, options, words):
    code, text = told(lambda y, _: y, *options)
    assert (code, words in text) == (2, True), text


@pytest.mark.parametrize("limit", ["nan", "inf"])
def test_a_limit_beyond_which_nothing_is(linear, limit):
    probes = linear / "probes.npz"
    done = qassay("diagnose", "--float", probes, "--device", probes, "--limit", limit)
    assert (done.exit_code, "--limit is no share" in done.stderr) == (2, True)
    done = qassay("diagnose", "--float", probes, "--device", probes, "--select", "Q604")
    assert (done.exit_code, "no rule is left" in done.stderr) == (2, True)


@pytest.mark.parametrize("zeros", [np.nan, 2.5, 2**60, -1e30])
def test_zero_points_that_are_none(linear, tmp_path, zeros):
    with np.load(linear / "w.npz") as archive:
        arrays = dict(archive)
    arrays["qzeros"] = np.full(arrays["qzeros"].shape, zeros)
    np.savez(tmp_path / "w.npz", **arrays)
    done = qassay("probe", tmp_path / "w.npz", "-o", tmp_path / "p.npz")
    assert (done.exit_code, "qzeros are no" in done.stdout) == (3, True)
    assert not (tmp_path / "p.npz").exists()


def test_names_that_are_meant():
    names = [f"model.layers.{n}.mlp.{part}" for n in range(3) for part in ("up_proj", "down_proj")]
    assert near("down_proj", names).startswith("model.layers.0.mlp.down_proj, model.layers.1")
    assert near("model.layers.1.mlp.downproj", names).startswith("model.layers.1.mlp.down_proj")
    assert near(None, names) == ", ".join(names)
    assert near("zzz", ["x" * 500]).startswith("x" * 40)
    assert near("a", []) == ""


def test_no_report_over_the_inputs(linear, tmp_path):
    for name in ("p.npz", "p.md", "./p.md"):
        done = qassay("probe", linear / "w.npz", "-o", tmp_path / "p.npz",
                      "--output-file", f"{tmp_path}/{name}")  # fmt: skip
        assert (done.exit_code, "would replace the inputs" in done.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_no_report_over_arrays_that_a_graph_stands_for(linear, tmp_path):
    """A .mlir names an npz beside it: no report replaces any file of arrays."""
    weights = tmp_path / "some_weight.npz"
    weights.write_bytes((linear / "w.npz").read_bytes())
    np.save(tmp_path / "a.npy", np.zeros(3))
    for target in (weights, tmp_path / "a.npy"):
        before = target.read_bytes()
        done = qassay("diagnose", "--float", linear / "probes.npz", "--device",
                      linear / "probes.npz", "--output-file", target)  # fmt: skip
        assert (done.exit_code, "would replace a file of arrays" in done.stderr) == (2, True)
        assert target.read_bytes() == before


def test_nothing_is_left_behind_by_a_page_that_cannot_be_written(linear, tmp_path, monkeypatch):
    real = Path.open

    def full(self, mode="r", *more, **named):
        if self.suffix == ".md":
            raise OSError(28, "No space left on device")
        return real(self, mode, *more, **named)

    monkeypatch.setattr(Path, "open", full)
    done = qassay("probe", linear / "w.npz", "-o", tmp_path / "p.npz")
    assert done.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="file names are bytes on POSIX only")
def test_names_that_are_no_text(linear, tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npz")
    try:
        done = qassay("probe", linear / "w.npz", "-o", name)
    except (OSError, UnicodeError):  # file systems that take UTF-8 only
        pytest.skip("no such names here")
    assert done.exit_code == 0
    page = Path(name).with_suffix(".md").read_text("utf-8")
    assert "caf\\udce9.npz" in page
    with np.load(name) as made:
        assert json.dumps(sorted(made.files)) == '["decode", "prefill"]'
