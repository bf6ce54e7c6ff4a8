"""What the new file says of itself."""

from __future__ import annotations

import json

import gguf
import pytest

from qassay import __version__
from qassay.containers import MetadataArray
from qassay.run.model import Model
from qassay.run.quantize_metadata import FILE_TYPES
from qassay.testing.gguf_writer import GgufTensor, write_gguf
from qassay.testing.safetensors_writer import write_safetensors


def plain(value):
    return [plain(item) for item in value] if isinstance(value, MetadataArray) else value


def test_everything_of_a_gguf_source_is_kept(run, gguf_floats):
    run(gguf_floats, "out.gguf", "--to", "Q5_K")
    with Model.open(gguf_floats) as old, Model.open("out.gguf") as new:
        types = old.container.extra["value_types"]
        now = new.container.extra["value_types"]
        for key, value in old.metadata.items():
            if key in ("general.alignment", "general.file_type"):
                continue
            assert plain(new.metadata[key]) == plain(value)
            assert now[key] == types[key]
        assert "general.alignment" not in new.metadata
        assert new.container.extra["alignment"] == 32
        assert new.metadata["general.file_type"] == 16
        assert now["general.file_type"] == "uint32"
        assert new.metadata["general.quantization_version"] == 2
        kept = [key for key in new.metadata if key in old.metadata]
        assert kept[:3] == ["general.architecture", "general.name", "llama.block_count"]
        assert new.container.defects == []


def test_what_was_done_is_recorded(run, gguf_floats):
    run(gguf_floats, "out.gguf", "--to", "Q8_0")
    with Model.open("out.gguf") as new:
        assert new.metadata["qassay.engine"] == "ggml"
        assert new.metadata["qassay.version"] == __version__
        assert {"Q001", "Q401"} <= set(plain(new.metadata["qassay.checks"]))
        assert "qassay.allowed" not in new.metadata
    fields = gguf.GGUFReader("out.gguf").fields
    assert fields["tokenizer.ggml.tokens"].contents()[-1] == "token 499 ☃"
    assert fields["qassay.engine"].contents() == "ggml"


def test_a_second_run_replaces_the_record_of_the_first(run, gguf_floats):
    run(gguf_floats, "half.gguf", "--to", "F16")
    run("half.gguf", "out.gguf", "--to", "Q8_0", "--engine", "candle")
    with Model.open("out.gguf") as new:
        assert new.metadata["qassay.engine"] == "candle"
        assert new.metadata["general.file_type"] == 7
        assert [key for key in new.metadata if key == "qassay.engine"] == ["qassay.engine"]
    assert "qassay.engine" in gguf.GGUFReader("out.gguf").fields


def test_file_types_are_those_of_llama():
    names = {
        "f32": "ALL_F32", "ggml.q4_k": "MOSTLY_Q4_K_S", "ggml.q5_k": "MOSTLY_Q5_K_S",
        "ggml.q3_k": "MOSTLY_Q3_K_S", "Q2_K_M": "MOSTLY_Q2_K",
    }  # fmt: skip
    for encoding, number in FILE_TYPES.items():
        name = names.get(encoding, f"MOSTLY_{encoding.rpartition('.')[2].upper()}")
        assert gguf.LlamaFileType[name] == number


def test_a_type_without_a_number_leaves_none(run, gguf_floats):
    run(gguf_floats, "out.gguf", "--to", "MXFP4")
    with Model.open("out.gguf") as new:
        assert "general.file_type" not in new.metadata


@pytest.mark.parametrize(
    ("config", "architecture"),
    [({"model_type": "qwen3"}, "qwen3"), ({"model_type": 3}, "unknown"), ({}, "unknown")],
)
def test_a_folder_names_its_architecture(run, tmp_path, weights, config, architecture):
    folder = tmp_path / "model"
    folder.mkdir()
    parts = {}
    for number in (1, 2):
        name = f"model-{number:05d}-of-00002.safetensors"
        tensor = (f"layer.{number}.weight", "F32", [4, 64], weights(4, 64, number).tobytes())
        (folder / name).write_bytes(write_safetensors([tensor], {"format": "pt"}, align=64))
        parts[tensor[0]] = name
    index = {"metadata": {"total_size": 2048}, "weight_map": parts}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    run(folder, "out.gguf", "--to", "Q8_0")
    with Model.open("out.gguf") as new:
        assert new.metadata["general.architecture"] == architecture
        assert list(new.tensors) == ["layer.1.weight", "layer.2.weight"]
        assert "format" not in new.metadata


def test_a_single_file_has_no_architecture(run, floats):
    run(floats, "out.gguf", "--to", "Q8_0")
    with Model.open("out.gguf") as new:
        assert new.metadata["general.architecture"] == "unknown"
    assert gguf.GGUFReader("out.gguf").tensors


def test_a_split_model_becomes_one_file(run, tmp_path, weights):
    folder = tmp_path / "split"
    folder.mkdir()
    for number in range(2):
        values = weights(8, 64, number)
        metadata = {"split.no": number, "split.count": 2, "split.tensors.count": 2}
        if number == 0:
            metadata["general.architecture"] = "llama"
        tensor = GgufTensor(f"blk.{number}.ffn_up.weight", 0, (64, 8), values.tobytes())
        path = folder / f"m-{number + 1:05d}-of-00002.gguf"
        path.write_bytes(write_gguf(metadata, [tensor]))
    run(folder, "out.gguf", "--to", "Q8_0")
    with Model.open("out.gguf") as new:
        assert list(new.tensors) == ["blk.0.ffn_up.weight", "blk.1.ffn_up.weight"]
        assert new.metadata["general.architecture"] == "llama"
        assert not [key for key in new.metadata if key.startswith("split.")]
    result = run(folder / "m-00001-of-00002.gguf", "part.gguf", "--to", "Q8_0", code=3)
    assert "Nothing was written" in result.stdout
    assert not (tmp_path / "part.gguf").exists()


def test_names_that_are_no_text_survive(run, tmp_path, weights):
    tensor = GgufTensor(b"a\xff.weight", 0, (64, 8), weights(8, 64).tobytes())
    (tmp_path / "odd.gguf").write_bytes(write_gguf([(b"k\xfe", "v\udcff")], [tensor]))
    run("odd.gguf", "out.gguf", "--to", "Q8_0", "--allow", "Q003", code=None)
    with Model.open("odd.gguf") as old, Model.open("out.gguf") as new:
        assert list(old.tensors) == list(new.tensors)
        assert new.metadata["k\udcfe"] == "v\udcff"
