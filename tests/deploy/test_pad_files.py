"""`qassay pad`: what lies beside the weights is copied, or said to be left out."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from by_hand import checkpoint

from qassay.run import pad_files
from qassay.testing.safetensors_writer import write_safetensors

CROPS = "crops.json"
WEIGHT = {"model.layers.0.mlp.up_proj.weight": np.ones((40, 64), np.float16)}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "a", WEIGHT, {})


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_files_in_folders_are_copied(document, source, tmp_path):
    (source / "templates" / "deep").mkdir(parents=True)
    (source / "empty").mkdir()
    (source / ".gitattributes").write_text("* -text")
    (source / "templates" / "deep" / "tool.jinja").write_text("{{ x }}")
    # of a folder below, so it is no index of these shards
    (source / "templates" / "model.safetensors.index.json").write_text("[1]")
    code, report = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert (code, report["result"]["not_copied"]) == (0, [])
    assert tree(tmp_path / "b") == tree(source) | {CROPS}
    for name in ("templates/deep/tool.jinja", "templates/model.safetensors.index.json"):
        assert (tmp_path / "b" / name).read_bytes() == (source / name).read_bytes()


def test_a_large_file_is_copied(document, source, tmp_path):
    size = (1 << 28) + 1
    with (source / "tokenizer.model").open("wb") as stream:
        stream.truncate(size)  # a hole: no room is taken here
        stream.seek(size - 1)
        stream.write(b"x")
    assert document("pad", source, tmp_path / "b", "--multiple", 64)[0] == 0
    made = tmp_path / "b" / "tokenizer.model"
    assert made.stat().st_size == size
    with made.open("rb") as stream:
        stream.seek(size - 2)
        assert stream.read() == b"\0x"
    made.unlink()


def test_what_a_link_leads_to_is_copied(document, source, tmp_path):
    (tmp_path / "blob").write_text("{}")
    (source / "tokenizer.json").symlink_to(tmp_path / "blob")
    assert document("pad", source, tmp_path / "b", "--multiple", 64)[0] == 0
    made = tmp_path / "b" / "tokenizer.json"
    assert (made.read_text(), made.is_symlink()) == ("{}", False)


def test_what_is_left_out_is_told(document, run, source, tmp_path):
    (source / ".git").mkdir()
    (source / ".git" / "HEAD").write_text("ref")
    (source / "onnx").mkdir()
    (source / "onnx" / "model.onnx").write_bytes(b"x")
    (source / "onnx" / "config.json").write_text("{}")
    (source / "vae").mkdir()
    (source / "vae" / "model.safetensors").write_bytes(write_safetensors([]))
    for name in "edcba":
        (source / f"pytorch_{name}.BIN").write_bytes(b"x")
    line = ("pad", source, tmp_path / "b", "--multiple", 64)
    code, report = document(*line)
    assert code == 0
    lost = [".git", *(f"pytorch_{name}.BIN" for name in "abcde"), "onnx/model.onnx",
            "vae/model.safetensors"]  # fmt: skip
    found = {one["path"]: one["reason"] for one in report["result"]["not_copied"]}
    assert sorted(found) == sorted(lost)
    assert found[".git"] == pad_files.HIDDEN
    assert set(found.values()) == {pad_files.HIDDEN, pad_files.WEIGHTS}
    assert tree(tmp_path / "b") == {
        "model.safetensors", "config.json", "onnx", "onnx/config.json", "vae", CROPS
    }  # fmt: skip
    text = run(*line[:2], tmp_path / "c", *line[3:]).stdout
    assert "not copied: .git (a hidden folder)" in text
    assert "pytorch_d.BIN and 3 more (weights in another form or folder" in text


@pytest.mark.parametrize("what", ["pipe", "link to nothing", "link to a folder", "circle"])
def test_what_cannot_be_copied_is_refused(document, run, source, tmp_path, what):
    (source / "sub").mkdir()
    place = source / "sub" / "x.json"
    if what == "pipe":
        os.mkfifo(place)
    else:
        aims = {"link to nothing": "gone", "link to a folder": tmp_path, "circle": "x.json"}
        place.symlink_to(aims[what])
    code, report = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert (code, report["verdict"], report["result"]["written"]) == (3, "incomplete", False)
    [skipped] = report["coverage"]["skipped"]
    assert skipped["name"] == "sub/x.json"
    assert skipped["reason"].startswith("cannot be copied: it ")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a"]
    text = run("pad", source, tmp_path / "b", "--multiple", 64).stdout
    assert "nothing was written; remove what cannot be copied" in text


def test_a_source_of_too_many_files(run, source, tmp_path, monkeypatch):
    monkeypatch.setattr(pad_files, "MOST_FILES", 4)
    (source / "x").mkdir()
    for number in range(3):
        (source / "x" / f"{number}").touch()
    result = run("pad", source, tmp_path / "b", "--multiple", 64)
    assert (result.exit_code, "too many files" in result.stderr) == (2, True)
    assert not (tmp_path / "b").exists()


def test_names_and_depths_of_all_kinds(document, source, tmp_path):
    folder = source
    for _ in range(600):  # deeper than calls may be nested in a function that calls itself twice
        folder = folder / "d"
        folder.mkdir()
    (folder / "x").write_text("x")
    (source / os.fsdecode(b"\xff\n.txt")).write_text("y")
    code, _ = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert code == 0
    assert tree(tmp_path / "b") == tree(source) | {CROPS}


def test_nothing_is_left_of_it_where_a_copy_fails(run, source, tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (source / "tokenizer.json").write_text(json.dumps({}))
    monkeypatch.setattr(pad_files.shutil, "copyfile", full)
    result = run("pad", source, tmp_path / "b", "--multiple", 64)
    assert (result.exit_code, "make room" in result.stderr) == (2, True)
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
