"""Several inputs are told apart, and no report replaces one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from qassay.cli.inputs import distinct
from qassay.testing.safetensors_writer import write_safetensors


def names(*paths: object) -> list[str]:
    return [name for _, name in distinct([Path(str(path)) for path in paths])]


@pytest.mark.skipif(os.name == "nt", reason="paths as POSIX has them")
@pytest.mark.parametrize(
    ("paths", "shown"),
    [
        (["/x/m.gguf"], ["m.gguf"]),
        (["/x/m.gguf", "/x/n.gguf"], ["m.gguf", "n.gguf"]),
        (["/x/a/m.gguf", "/x/b/m.gguf"], ["a/m.gguf", "b/m.gguf"]),
        (["/x/a/m", "/y/a/m", "/z/b/m", "/n"], ["x/a/m", "y/a/m", "b/m", "n"]),
        (["/m", "/a/m"], ["m", "a/m"]),
        (["m.gguf", "/x/m.gguf"], ["m.gguf", "x/m.gguf"]),
        (["a/m", "/q/a/m", "/q/b/m"], ["a/m", "q/a/m", "b/m"]),
        (["a/m", "b/m"], ["a/m", "b/m"]),
        (["/x/m", "/x/m"], ["m"]),
        (["n", "./m", "a/../m", "m"], ["n", "m"]),
        (["/x/a/", "/y/a"], ["x/a", "y/a"]),
        (
            ["/x/a/model.safetensors.index.json", "/y/a/model.safetensors.index.json", "/x/a"],
            ["x/a", "y/a", "x/a"],
        ),
    ],
)
def test_each_input_has_the_shortest_name_of_its_own(paths, shown):
    assert names(*paths) == shown


def test_the_report_tells_inputs_of_one_name_apart(run, sound, broken, tmp_path):
    paths = []
    for folder, file in (("one", sound), ("two", broken)):
        (tmp_path / folder).mkdir()
        paths.append(tmp_path / folder / "model.gguf")
        shutil.copy(file, paths[-1])
    document = json.loads(run("check", *paths, tmp_path / "x" / "model.gguf", "-f", "json").stdout)
    shown = [str(Path(folder, "model.gguf")) for folder in ("one", "two", "x")]
    assert [given["path"] for given in document["inputs"]] == shown
    assert {found["path"] for found in document["findings"] if found["code"] != "Q901"} == {
        shown[1]
    }
    assert {tensor["path"] for tensor in document["tensors"]} == set(shown[:2])
    assert document["coverage"]["skipped"][0]["path"] == shown[2]
    assert str(tmp_path) not in json.dumps(document)


def test_a_path_given_twice_is_checked_once(run, sound, monkeypatch):
    monkeypatch.chdir(sound.parent)
    once = run("check", sound.name).stdout
    assert run("check", sound.name, sound, f"./{sound.name}").stdout == once


@pytest.fixture
def folder(tmp_path):
    """A folder with one shard, an index of it, and other files."""
    path = tmp_path / "model"
    path.mkdir()
    data = write_safetensors([("w", "F32", [2, 2], bytes(16))])
    (path / "model.safetensors").write_bytes(data)
    (path / "config.json").write_text("{}")
    (path / "model.safetensors.index.json").write_text('{"weight_map": {"w": "model.safetensors"}}')
    return path


def refused(run, kept: Path, *args: object) -> None:
    """Assert that a command is refused before it reads, and `kept` is as it was."""
    before = kept.read_bytes()
    result = run(*args)
    assert result.exit_code == 2
    assert "would replace" in result.stderr
    assert "--output-file" in result.stderr
    assert result.stdout == ""
    assert kept.read_bytes() == before


@pytest.mark.parametrize("command", ["check", "inspect"])
def test_no_report_replaces_its_input(run, sound, tmp_path, command, monkeypatch):
    def opened(*args, **kwargs):
        raise AssertionError("something was read")

    monkeypatch.setattr("qassay.containers.sources.MmapSource.__init__", opened)
    os.link(sound, tmp_path / "hard")
    (tmp_path / "soft").symlink_to(sound)
    for output in (sound, tmp_path / "x" / ".." / sound.name, tmp_path / "hard", tmp_path / "soft"):
        refused(run, sound, command, sound, "-o", output)
    monkeypatch.setenv("QASSAY_OUTPUT_FILE", str(sound))
    refused(run, sound, command, tmp_path / "soft")


def test_no_report_takes_the_place_of_a_missing_or_odd_input(run, sound, tmp_path):
    missing = tmp_path / "missing.gguf"
    assert run("check", sound, missing, "-o", missing).exit_code == 2
    assert not missing.exists()
    odd = tmp_path / "odd.bin"
    odd.write_text("no model")
    refused(run, odd, "check", sound, odd, "-o", odd)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_no_report_replaces_a_file_of_an_input_folder(run, folder, tmp_path, file):
    kept = folder / file
    refused(run, kept, "check", folder, "-o", kept)
    refused(run, kept, "check", folder / "model.safetensors.index.json", "-o", kept)
    if file == "config.json":  # a download cache keeps files elsewhere, and links to them
        blob = tmp_path / "blob"
        kept.rename(blob)
        kept.symlink_to(blob)
        refused(run, blob, "check", folder, "-o", blob)


def test_a_new_file_in_an_input_folder_replaces_nothing(run, folder):
    assert run("check", folder, "-o", folder / "report.txt").exit_code == 0
    assert (folder / "report.txt").exists()


@pytest.mark.parametrize("args", [["check", "{sound}"], ["rules"], ["explain", "schema"]])
def test_no_report_replaces_any_other_model(run, sound, folder, tmp_path, args):
    args = [str(arg).format(sound=sound) for arg in args]
    other = tmp_path / "other"
    shutil.copy(sound, other)
    refused(run, other, *args, "-o", other)
    other.write_bytes((folder / "model.safetensors").read_bytes())
    refused(run, other, *args, "-o", other)


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_old_report_is_replaced(run, sound, broken, tmp_path, form):
    report = tmp_path / "report"
    run("check", broken, "-f", form, "-o", report)
    assert run("check", sound, "-f", form, "-o", report).exit_code == 0
    assert "clean" in report.read_text(encoding="utf-8")
