"""Folders: indexes, shards that are missing or disagree, and files that stand beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from qassay.containers import open_container
from qassay.core.container import Container, Defect
from qassay.core.errors import InputError
from qassay.testing.gguf_writer import Typed, write_gguf
from qassay.testing.safetensors_writer import write_safetensors

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 5149760\n"


def shard(*names: str) -> bytes:
    return write_safetensors([(n, "F32", [2, 4], b"\x11" * 32) for n in names], {"format": "pt"})


def sharded(folder: Path, **weight_map: str) -> Path:
    """Write a sound checkpoint of two shards; `weight_map` changes its index."""
    (folder / ONE).write_bytes(shard("a", "b"))
    (folder / TWO).write_bytes(shard("c"))
    entries = {"a": ONE, "b": ONE, "c": TWO, **weight_map}
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": entries}))
    return folder


def only(container: Container, code: str | None = None) -> Defect:
    found = [d for d in container.defects if code is None or d.code == code]
    assert len(found) == 1, container.defects
    return found[0]


def test_a_sound_checkpoint(tmp_path: Path) -> None:
    config = {"model_type": "llama", "quantization_config": {"bits": 4}}
    (sharded(tmp_path) / "config.json").write_text(json.dumps(config))
    container = open_container(tmp_path)
    assert container.defects == []
    assert container.skipped == []
    assert container.format == "folder"
    assert container.path == tmp_path.name
    assert [(t.name, t.path) for t in container.tensors] == [
        ("a", f"{tmp_path.name}/{ONE}"),
        ("b", f"{tmp_path.name}/{ONE}"),
        ("c", f"{tmp_path.name}/{TWO}"),
    ]
    assert container.metadata == {"format": "pt"}
    assert container.extra["config"] == config
    assert container.extra["weight_map"] == {"a": ONE, "b": ONE, "c": TWO}
    assert list(container.extra["parts"]) == [ONE, TWO]
    assert container.nbytes == sum((tmp_path / name).stat().st_size for name in (ONE, TWO))
    container.close()


def test_the_index_itself_opens_its_folder(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "other.safetensors").write_bytes(shard("z"))
    container = open_container(tmp_path / INDEX)
    assert container.defects == []
    assert [t.name for t in container.tensors] == ["a", "b", "c"]


def test_paths_are_relative_where_the_given_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    container = open_container(f"{tmp_path.name}/{INDEX}")
    assert container.path == tmp_path.name
    monkeypatch.chdir(tmp_path)
    for given in (".", INDEX):
        container = open_container(given)
        assert container.path == "."
        assert container.tensors[0].path == f"./{ONE}"


def test_links_are_followed_as_in_a_download_cache(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    sharded(blobs)
    for name in (ONE, TWO, INDEX):
        (snapshot / name).symlink_to(blobs / name)
    (snapshot / "loop.gguf").symlink_to(snapshot / "loop.gguf")
    container = open_container(snapshot)
    assert container.defects == []
    assert len(container.tensors) == 3
    assert [skip.name for skip in container.skipped] == ["snapshot/loop.gguf"]


def test_missing_shard(tmp_path: Path) -> None:
    (sharded(tmp_path) / TWO).unlink()
    container = open_container(tmp_path)
    defect = only(container)
    assert defect.code == "Q005"
    assert TWO in defect.message
    assert (defect.data["shard"], defect.data["tensors"]) == (TWO, 1)
    assert defect.path == f"{tmp_path.name}/{INDEX}"
    assert [t.name for t in container.tensors] == ["a", "b"]


def test_all_shards_missing_still_tells_which(tmp_path: Path) -> None:
    (sharded(tmp_path) / TWO).unlink()
    (tmp_path / ONE).unlink()
    assert [d.code for d in open_container(tmp_path).defects] == ["Q005", "Q005"]


def test_shard_that_is_a_pointer(tmp_path: Path) -> None:
    (sharded(tmp_path) / TWO).write_bytes(LFS)
    defect = only(open_container(tmp_path))
    assert defect.code == "Q005"
    assert "Git LFS pointer" in str(defect.found)
    assert "5149760" in str(defect.found)
    assert "git lfs pull" in defect.help


def test_tensor_that_its_shard_lacks(tmp_path: Path) -> None:
    container = open_container(sharded(tmp_path, d=ONE))
    defect = only(container)
    assert (defect.code, defect.tensor, defect.found) == ("Q005", "d", "in no shard")


def test_tensor_in_another_shard_than_promised(tmp_path: Path) -> None:
    container = open_container(sharded(tmp_path, c=ONE))
    lost = only(container, "Q005")
    assert (lost.tensor, lost.found) == ("c", f"in '{TWO}'")
    unlisted = only(container, "Q110")
    assert unlisted.minor
    assert unlisted.path == f"{tmp_path.name}/{TWO}"


def test_tensor_that_the_index_does_not_list(tmp_path: Path) -> None:
    (sharded(tmp_path) / TWO).write_bytes(shard("c", "extra"))
    container = open_container(tmp_path)
    defect = only(container)
    assert (defect.code, defect.tensor, defect.minor) == ("Q110", "extra", True)
    assert defect.byte_offset == container.tensors[-1].offset


def test_tensor_in_two_shards(tmp_path: Path) -> None:
    (sharded(tmp_path) / TWO).write_bytes(shard("c", "a"))
    container = open_container(tmp_path)
    defect = only(container, "Q007")
    assert defect.tensor == "a"
    assert defect.path == f"{tmp_path.name}/{TWO}"
    assert ONE in defect.message


@pytest.mark.parametrize(
    "name",
    [
        "../x.safetensors",
        "/etc/passwd",
        "sub/x.safetensors",
        "sub\\x",
        "..",
        ".",
        "",
        "C:x",
        "a\x00b",
        "\ud800",
        "x" * 300,
    ],
)
def test_shard_names_that_lead_away_are_not_followed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (tmp_path / "x.safetensors").write_bytes(shard("evil"))
    (folder / "sub").mkdir()
    (folder / "sub" / "x.safetensors").write_bytes(shard("evil"))
    container = open_container(sharded(folder, evil=name, evil2=name))
    defect = only(container)
    assert (defect.code, defect.tensor) == ("Q005", "evil")
    assert "evil" not in [t.name for t in container.tensors]
    assert "\0" not in defect.message
    assert len(defect.message) < 500


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "nul", '{"weight_map": []}', '{"weight_map": {"a": 1}}',
        '{"weight_map": NaN}',
        "[" * 100_000, '{"weight_map": {"a": ["x"]}}', "\ufeff{}",
    ],
    ids=range(10),
)  # fmt: skip
def test_hostile_indexes(tmp_path: Path, text: str) -> None:
    (sharded(tmp_path) / INDEX).write_text(text)
    container = open_container(tmp_path)
    assert [d.code for d in container.defects] == ["Q003"]
    assert container.defects[0].path == f"{tmp_path.name}/{INDEX}"
    assert len(container.tensors) == 3
    assert open_container(tmp_path / INDEX).defects


def test_name_twice_in_the_index(tmp_path: Path) -> None:
    text = f'{{"weight_map": {{"a": "{ONE}", "b": "{ONE}", "c": "{TWO}", "a": "{TWO}"}}}}'
    (sharded(tmp_path) / INDEX).write_text(text)
    defect = only(open_container(tmp_path))
    assert (defect.code, defect.tensor) == ("Q007", "a")


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe", b"[" * 200_000, b"", b"{} {}"])
def test_hostile_config(tmp_path: Path, text: bytes) -> None:
    (sharded(tmp_path) / "config.json").write_bytes(text)
    container = open_container(tmp_path)
    defect = only(container)
    assert (defect.code, defect.path) == ("Q003", f"{tmp_path.name}/config.json")
    assert "config" not in container.extra


def test_config_that_is_a_list_is_reported_and_left_out(tmp_path: Path) -> None:
    (sharded(tmp_path) / "config.json").write_text("[1]")
    container = open_container(tmp_path)
    assert only(container).code == "Q003"
    assert "config" not in container.extra


def test_config_beside_a_single_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(shard("a"))
    (tmp_path / "config.json").write_text("{}")
    assert "config" not in open_container(tmp_path / "model.safetensors").extra
    assert open_container(tmp_path).extra["config"] == {}


def test_numbered_files_without_an_index(tmp_path: Path) -> None:
    (tmp_path / ONE).write_bytes(shard("a"))
    defect = only(open_container(tmp_path))
    assert (defect.code, defect.data["missing"]) == ("Q005", 1)
    (tmp_path / TWO).write_bytes(shard("b"))
    assert open_container(tmp_path).defects == []
    (tmp_path / TWO).write_bytes(shard("a"))
    assert only(open_container(tmp_path)).code == "Q007"


def test_numbers_from_zero_are_sound(tmp_path: Path) -> None:
    for number, name in enumerate("ab"):
        (tmp_path / f"m-0000{number}-of-00002.safetensors").write_bytes(shard(name))
    assert open_container(tmp_path).defects == []


def test_absurd_shard_numbers_stay_quick(tmp_path: Path) -> None:
    (tmp_path / "m-000001-of-999999.safetensors").write_bytes(shard("a"))
    assert only(open_container(tmp_path)).data["missing"] == 999_998


def test_variants_of_one_model_in_a_folder_are_no_repetition(tmp_path: Path) -> None:
    data = write_gguf({"general.name": "m"}, [("a", 0, (8,), b"1" * 32)])
    for name in ("m-Q4_0.gguf", "m-Q8_0.gguf"):
        (tmp_path / name).write_bytes(data)
    (tmp_path / "adapter.safetensors").write_bytes(shard("a"))
    container = open_container(tmp_path)
    assert container.defects == []
    assert len(container.tensors) == 3
    assert container.metadata == {}
    assert container.extra["parts"]["m-Q4_0.gguf"].metadata == {"general.name": "m"}


def test_a_file_beside_the_index_is_read_and_noted(tmp_path: Path) -> None:
    (sharded(tmp_path) / "consolidated.safetensors").write_bytes(shard("x", "y"))
    container = open_container(tmp_path)
    defect = only(container)
    assert (defect.code, defect.minor, defect.tensor) == ("Q110", True, None)
    assert len(container.tensors) == 5


def test_split_gguf_parts_complete_each_other(tmp_path: Path) -> None:
    for number in (0, 1):
        split = {"split.no": Typed(2, number), "split.count": Typed(2, 3)}
        name = f"m-0000{number + 1}-of-00003.gguf"
        (tmp_path / name).write_bytes(write_gguf(split, [(f"t{number}", 0, (8,), b"1" * 32)]))
    container = open_container(tmp_path)
    assert {s.name for s in container.skipped} == {f"{tmp_path.name}/m-00003-of-00003.gguf"}
    assert only(container).code == "Q005"
    assert container.metadata["split.no"] == 0


def test_unreadable_neighbours_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(LFS)
    (tmp_path / "b.safetensors").write_bytes(shard("a"))
    container = open_container(tmp_path)
    assert container.defects == []
    [skipped] = container.skipped
    assert skipped.name == f"{tmp_path.name}/a.gguf"
    assert "Git LFS pointer" in skipped.reason


def test_nothing_below_the_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.safetensors").write_bytes(shard("a"))
    (tmp_path / "dir.gguf").mkdir()
    with pytest.raises(InputError):
        open_container(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_in_the_folder_is_let_be(tmp_path: Path) -> None:
    os.mkfifo(sharded(tmp_path) / "pipe.gguf")
    assert open_container(tmp_path).defects == []


@pytest.mark.parametrize(
    ("files", "found", "hint"),
    [
        ({}, "no such file", "folder"),
        ({"config.json": b"{}"}, "no such file", "folder"),
        ({"pytorch_model.bin": b"PK", "a.PT": b"x"}, "a.PT, pytorch_model.bin", "convert"),
        ({f"{i}.bin": b"x" for i in range(9)}, "and 4 more", "convert"),
        ({"m.gguf.part1of2": b"x", "m.gguf.part2of2": b"x"}, "raw part 1 of 2", "cat"),
        ({"m.gguf": LFS}, "Git LFS pointer", "git lfs pull"),
        ({"m.safetensors": b"<html><body>no</body></html>"}, "HTML page", "again"),
    ],
)
def test_a_folder_without_models(
    tmp_path: Path, files: dict[str, bytes], found: str, hint: str
) -> None:
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as caught:
        open_container(tmp_path)
    assert found in str(caught.value.found)
    assert hint in str(caught.value.hint)
    assert caught.value.path == tmp_path.name


def test_defects_of_the_shards_come_along(tmp_path: Path) -> None:
    (sharded(tmp_path) / TWO).write_bytes(shard("c")[:-4])
    container = open_container(tmp_path)
    defect: Any = only(container)
    assert (defect.code, defect.tensor, defect.path) == ("Q001", "c", f"{tmp_path.name}/{TWO}")


def test_repeated_keys_and_unreadable_files_of_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sharded(tmp_path) / "config.json").write_text('{"a": 1, "a": 2}')
    container = open_container(tmp_path)
    assert (only(container).code, only(container).minor) == ("Q003", True)
    assert container.extra["config"] == {"a": 1}

    def refuse(path: Path, name: str) -> None:
        raise InputError("this may not be read", path=name, found="permission denied")

    monkeypatch.setattr("qassay.containers.shards.MmapSource", refuse)
    container = open_container(tmp_path)
    assert {d.found for d in container.defects} == {"permission denied"}
    assert {d.code for d in container.defects} == {"Q003"}


def test_what_an_index_promises_in_vain_is_not_checked(tmp_path):
    tensor = ("a.weight", "F32", [2, 2], bytes(16))
    (tmp_path / "m-00001-of-00002.safetensors").write_bytes(write_safetensors([tensor]))
    index = {
        "a.weight": "m-00001-of-00002.safetensors",
        "b.weight": "m-00001-of-00002.safetensors",
        "c.weight": "m-00002-of-00002.safetensors",
        "d.weight": "m-00002-of-00002.safetensors",
    }
    (tmp_path / "m.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    container = open_container(tmp_path)
    assert container.extra["missing_tensors"] == 3
    assert [skip.name.rpartition("/")[2] for skip in container.skipped] == [
        "b.weight",
        "m-00002-of-00002.safetensors",
    ]


@pytest.mark.parametrize(
    ("parts", "marked"),
    [
        ([("m.qweight", "I32"), ("m.scales", "F16")], ["m.qweight"]),
        (
            [("m.weight_packed", "U8"), ("m.weight_scale", "F8_E4M3")],
            ["m.weight_packed", "m.weight_scale"],
        ),
        ([("m.weight", "U8"), ("m.weight.absmax", "F32")], ["m.weight"]),
        ([("m.weight", "F8_E4M3"), ("m.weight_scale_inv", "F32")], ["m.weight"]),
        ([("m.down_blocks", "U8"), ("m.down_scales", "U8")], ["m.down_blocks", "m.down_scales"]),
        ([("e.up_proj", "F8_E4M3"), ("e.up_proj_scale", "F32")], ["e.up_proj"]),
        ([("e.up_proj", "I8"), ("e.up_proj_weight_scale_inv", "F32")], ["e.up_proj"]),
        ([("e.up_proj", "F16"), ("e.up_proj_scale", "F32")], []),
        ([("m.weight", "F16"), ("m.scale", "F16")], []),
        ([("m.weight", "F8_E4M3")], []),
        ([("m.position_ids", "I64"), ("m.weight", "F32")], []),
    ],
)  # fmt: skip
def test_parts_of_a_quantized_weight_are_marked(tmp_path, parts, marked):
    sizes = {"I32": 4, "F16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1, "F32": 4, "I64": 8}
    data = [(name, dtype, [4], bytes(4 * sizes[dtype])) for name, dtype in parts]
    (tmp_path / "m.safetensors").write_bytes(write_safetensors(data))
    container = open_container(tmp_path / "m.safetensors")
    assert sorted(one.name for one in container.tensors if one.part_of) == sorted(marked)


def _nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "gone")


def _loop(path: Path) -> None:
    path.symlink_to(path)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


ODD = {
    "dangling": _nowhere,
    "loop": _loop,
    "fifo": os.mkfifo,
    "device": _device,
    "folder": os.mkdir,
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["b.gguf", "b.safetensors"])
def test_a_name_that_no_regular_file_bears_does_not_vanish(tmp_path, name, kind):
    ODD[kind](tmp_path / name)
    with pytest.raises(InputError, match="none of the 1 model files"):
        open_container(tmp_path)
    (tmp_path / "a.safetensors").write_bytes(shard("a"))
    container = open_container(tmp_path)
    (skip,) = container.skipped
    assert skip.name == f"{tmp_path.name}/{name}"
    if kind == "dangling":
        assert "symbolic link without a target" in skip.reason


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", [INDEX, "config.json"])
def test_an_index_that_is_no_regular_file_is_a_defect(tmp_path, name, kind):
    ODD[kind](tmp_path / name)
    (tmp_path / "a.safetensors").write_bytes(shard("a"))
    container = open_container(tmp_path)
    assert [(d.code, d.path) for d in container.defects] == [("Q003", f"{tmp_path.name}/{name}")]
    assert len(container.tensors) == 1


def test_an_index_of_nothing_is_a_defect(tmp_path):
    (sharded(tmp_path) / INDEX).write_text('{"weight_map": {}}')
    defect = only(open_container(tmp_path))
    assert (defect.code, defect.path) == ("Q003", f"{tmp_path.name}/{INDEX}")
    assert "empty" in defect.message
