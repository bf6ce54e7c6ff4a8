"""`qassay check` on an importance file by itself, and on a model with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qassay
from qassay.containers.imatrix import entries_of
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.imatrix_writer import write_imatrix as gguf_file
from qassay.testing.imatrix_writer import write_legacy_imatrix as legacy_file

UP, DOWN = "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def model_file(*tensors: tuple[str, tuple[int, ...]]) -> bytes:
    """Return a GGUF model of F32 tensors of these names and shapes."""
    rng = np.random.default_rng(0)
    made = []
    for name, shape in tensors:
        values = (rng.standard_normal(shape) * 0.02).astype(np.float32)
        made.append((name, 0, shape[::-1], values.tobytes()))
    return write_gguf({"general.architecture": "llama"}, made)


def q507(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [finding for finding in document["findings"] if finding["code"] == "Q507"]


def write(name: str, data: bytes) -> str:
    Path(name).write_bytes(data)
    return name


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("i.gguf", gguf_file({UP: (ones(1, 64), [512]), DOWN: (ones(1, 96), [512])})),
        ("i.dat", legacy_file({UP: (ones(64), 4), DOWN: (ones(96), 4)})),
        ("old.dat", legacy_file({UP: (ones(64), 4)}, end=b"")),
        ("nosuffix", legacy_file({UP: (ones(64) * 1e9, 4)})),
    ],
)
def test_a_sound_file_is_clean(run, name, data) -> None:
    code, document = run("check", write(name, data))
    assert (code, document["verdict"], document["findings"]) == (0, "clean", [])


def test_the_older_format_has_its_own_name(run) -> None:
    path = write("i.dat", legacy_file({UP: (ones(64), 4)}))
    _, document = run("check", path)
    assert document["inputs"][0]["format"] == "imatrix"
    assert document["tensors"][0]["name"] == UP
    code, shown = run("inspect", path)
    assert code == 0
    assert shown["result"]["metadata"]["imatrix.datasets"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
@pytest.mark.parametrize("legacy", [False, True])
def test_values_that_no_quantizer_may_take(run, bad, legacy) -> None:
    sums = ones(2048)
    sums[77] = bad
    data = legacy_file({UP: (sums, 4)}) if legacy else gguf_file({UP: (sums, [512])})
    path = write("i.dat", data)
    code, document = run("check", path)
    [finding] = q507(document)
    assert finding["tensor"] == UP
    assert finding["severity"] == "warning"
    assert finding["count"] == 1
    place = finding["location"]
    assert place["column"] == 77
    raw = Path(path).read_bytes()[place["byte_offset"] : place["byte_offset"] + 4]
    assert raw == np.float32(bad).tobytes()
    assert document["verdict"] == "findings"
    assert code == (0 if bad == -1.0 else 1)  # Q401 beside it, an error


def test_counts_that_are_none(run) -> None:
    path = write("i.gguf", gguf_file({UP: (ones(3, 64), [512, -1, np.nan])}))
    _, document = run("check", path)
    assert any("2 of 3 counts are no counts" in each["message"] for each in q507(document))


class TestWithAModel:
    MODEL = model_file(
        (UP, (8, 64)),
        (DOWN, (8, 96)),
        ("token_embd.weight", (16, 64)),
        ("output.weight", (16, 64)),
        ("blk.0.attn_norm.weight", (64,)),
        ("blk.0.ffn_gate_inp.weight", (4, 64)),
    )

    def test_fits(self, run) -> None:
        model = write("m.gguf", self.MODEL)
        entries = {UP: (ones(1, 64), [512]), DOWN: (ones(1, 96), [512])}
        for name, data in (
            ("i.gguf", gguf_file(entries)),
            ("i.dat", legacy_file({UP: (ones(64), 4), DOWN: (ones(96), 4)})),
        ):
            code, document = run("check", model, "--imatrix", write(name, data))
            assert (code, document["findings"]) == (0, [])
        document = qassay.check(model, imatrix="i.gguf", to="Q4_K").to_dict()
        assert not q507(document)

    def test_gaps_are_listed_up_front(self, run) -> None:
        path = write("i.gguf", gguf_file({UP: (ones(1, 64), [512])}))
        _, document = run("check", write("m.gguf", self.MODEL), "--imatrix", path)
        [finding] = q507(document)
        assert finding["data"] == {"tensors": [DOWN], "weights": 2}
        assert finding["path"] == "i.gguf"
        assert DOWN in finding["message"]

    def test_another_model(self, run) -> None:
        path = write("i.gguf", gguf_file({"blk.7.ffn_up.weight": (ones(1, 64), [512])}))
        _, document = run("check", write("m.gguf", self.MODEL), "--imatrix", path)
        found = {each["field"]: each for each in q507(document)}
        assert found["missing"]["count"] == 2
        assert "every entry" in found["foreign"]["message"]

    def test_another_length(self, run) -> None:
        entries = {UP: (ones(1, 128), [512]), DOWN: (ones(1, 96), [512])}
        path = write("i.gguf", gguf_file(entries))
        _, document = run("check", write("m.gguf", self.MODEL), "--imatrix", path)
        [finding] = q507(document)
        assert finding["tensor"] == UP
        assert finding["data"] == {"expected": 64, "found": 128}

    def test_wrong_usage(self, run) -> None:
        model = write("m.gguf", self.MODEL)
        code, said = run("check", model, "--imatrix", model)
        assert code == 2
        assert "no importance file" in said["stderr"]
        code, said = run("check", model, "--imatrix", "nothing.dat")
        assert code == 2
        assert "no such file" in said["stderr"]
        dat = write("i.dat", legacy_file({UP: (ones(64), 4)}))
        code, said = run("check", model, "--imatrix", dat, "-o", dat)
        assert code == 2
        assert "would replace" in said["stderr"]

    def test_a_damaged_file(self, run) -> None:
        data = legacy_file({UP: (ones(64), 4), DOWN: (ones(96), 4)}, end=b"")
        path = write("i.dat", data[:-200])
        _, document = run("check", write("m.gguf", self.MODEL), "--imatrix", path)
        fields = {each["field"] for each in q507(document)}
        assert fields == {"file", "missing"}


class TestExperts:
    NAME = "blk.0.ffn_up_exps.weight"

    def test_256_experts_one_idle(self, run) -> None:
        counts = [512.0] * 256
        counts[31] = 0
        sums = ones(256, 64)
        sums[31] = 0
        path = write("i.gguf", gguf_file({self.NAME: (sums, counts)}))
        model = write("m.gguf", model_file((self.NAME, (256, 2, 64))))
        for args in (("check", path), ("check", model, "--imatrix", path)):
            _, document = run(*args)
            [finding] = q507(document)
            assert "expert 31 uncalibrated" in finding["message"]
            assert (finding["severity"], finding["expert"]) == ("warning", 31)
        with qassay.open(path) as file:
            values = entries_of(file.container)[self.NAME].values()
        assert np.array_equal(values[31], np.ones(64))
        assert np.array_equal(values[30], np.full(64, np.float32(1 / 512)))

    def test_the_older_format_says_it_by_values_alone(self, run) -> None:
        sums = np.random.default_rng(0).random((4, 64), np.float32)
        sums[2] = 7  # the number of calls
        path = write("i.dat", legacy_file({self.NAME: (sums, 7)}))
        model = write("m.gguf", model_file((self.NAME, (4, 2, 64))))
        _, document = run("check", model, "--imatrix", path)
        [finding] = q507(document)
        assert (finding["expert"], finding["certainty"]) == (2, "likely")
        assert run("check", path)[1]["verdict"] == "clean"

    def test_one_matrix_for_all_experts_is_another_length(self, run) -> None:
        path = write("i.gguf", gguf_file({self.NAME: (ones(1, 64), [512])}))
        model = write("m.gguf", model_file((self.NAME, (4, 2, 64))))
        _, document = run("check", model, "--imatrix", path)
        assert q507(document)[0]["data"] == {"expected": 256, "found": 64}


def test_names_are_escaped(run) -> None:
    from click.testing import CliRunner

    from qassay.cli.main import cli

    sums = ones(64)
    sums[0] = np.nan
    path = write("i.gguf", gguf_file({"a\x1b[31m.weight": (sums, [1])}))
    printed = CliRunner().invoke(cli, ["check", path]).stdout
    assert "Q507" in printed
    assert "\x1b" not in printed
