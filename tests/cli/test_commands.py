"""The commands that tell about files, rules and encodings."""

from __future__ import annotations

import json
import math

import pytest

from qassay.containers.ggml_types import GGML_TYPES
from qassay.encodings.registry import all_encodings
from qassay.report.registry import renderers
from qassay.rules.registry import all_rules
from qassay.testing.gguf_writer import write_gguf
from qassay.testing.safetensors_writer import write_safetensors


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.code)
def test_every_rule_has_its_page_under_several_spellings(run, rule):
    spellings = (rule.code, rule.code.lower(), rule.name, rule.name.replace("-", "_").upper())
    pages = {run("explain", spelling).stdout for spelling in spellings}
    assert len(pages) == 1
    (page,) = pages
    assert page.startswith(f"{rule.code} {rule.name}\n")
    for heading in ("What it does", "Why it is bad", "How to fix it", "Example"):
        assert f"\n{heading}\n" in page


@pytest.mark.parametrize("encoding", all_encodings().values(), ids=lambda encoding: encoding.id)
def test_every_encoding_has_its_page_under_several_spellings(run, encoding):
    # The last part of a family's name (`compressed`, `int`) is no name of its own.
    bare = encoding.id if encoding.kind == "layer" else encoding.id.rpartition(".")[2]
    pages = {run("explain", word).stdout for word in (encoding.id, bare, bare.upper())}
    assert len(pages) == 1
    (page,) = pages
    assert page.startswith(f"{encoding.id}\n")
    assert encoding.formula in page


def test_the_drawing_agrees_with_ggml(run):
    page = run("explain", "Q4_K").stdout
    assert "0     2      4              16                             144" in page
    assert "q[255] = qs byte 143 bits 4-7" in page
    # get_scale_min_k4: for j >= 4, d = (q[j+4] & 0xF) | ((q[j-4] >> 6) << 4); scales at byte 4.
    assert "sc[4] = scales byte 12 bits 0-3 | scales byte 4 bits 6-7 << 4" in page


@pytest.mark.parametrize(
    ("wrong", "meant"), [("Q20l", "Q20"), ("q4k", "q4_k"), ("scael-not-finite", "Q201")]
)
def test_explain_suggests(run, wrong, meant):
    result = run("explain", wrong)
    assert result.exit_code == 2
    assert meant in result.stderr


def test_explain_knows_the_types_of_ggml_that_are_not_read(run):
    read = {label.key for each in all_encodings().values() for label in each.stored_as}
    unread = [kind for number, kind in GGML_TYPES.items() if ("ggml", number) not in read]
    assert unread
    for kind in unread:
        for word in (kind.name, f"ggml.{kind.name.lower()}", f"type {kind.label}"):
            result = run("explain", word)
            assert result.exit_code == 2
            message = f"{kind.name} is a ggml type that this version does not read"
            assert message in result.stderr
            assert kind.note in result.stderr
            assert "perhaps" not in result.stderr


def test_explain_schema_prints_the_schema(run, tmp_path):
    assert json.loads(run("explain", "schema").stdout)["title"].startswith("qassay report")
    run("explain", "schema", "-o", tmp_path / "schema.json")
    assert json.loads((tmp_path / "schema.json").read_text(encoding="utf-8"))["$defs"]


def test_rules_and_encodings_list_all(run):
    text = run("rules").stdout
    listed = json.loads(run("rules", "-f", "json").stdout)["result"]["rules"]
    assert [row["code"] for row in listed] == [rule.code for rule in all_rules()]
    assert all(f"{rule.code}  {rule.name}" in text for rule in all_rules())
    text = run("encodings").stdout
    listed = json.loads(run("encodings", "-f", "json").stdout)["result"]["encodings"]
    assert [row["id"] for row in listed] == list(all_encodings())
    assert all(encoding in text for encoding in all_encodings())


def test_env_tells_versions_and_kernels(run):
    import numpy as np

    result = json.loads(run("env", "-f", "json").stdout)["result"]
    assert result["packages"]["numpy"] == np.__version__
    assert result["kernels"]["pinned"] is None
    pinned = json.loads(run("env", "-f", "json", QASSAY_KERNELS="reference").stdout)["result"]
    assert pinned["kernels"]["pinned"] == "reference"


def test_env_tells_whether_kernels_can_be_kept(run, tmp_path):
    def cache(folder) -> object:
        result = json.loads(run("env", "-f", "json", NUMBA_CACHE_DIR=str(folder)).stdout)
        return result["result"]["kernels"]["cache"]

    assert cache(tmp_path / "new") == "in NUMBA_CACHE_DIR"
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert cache(blocked / "below") is None


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.gguf"
    metadata = {
        "general.architecture": "llama",
        "llama.rope.eps": 1e-5,
        "tokenizer.ggml.tokens": ["<s>", "line\nbreak", "\x1b[31mred"],
        "flag": True,
        "template": "x" * 500,
    }
    tensors = [
        ("token_embd.weight", 8, (32, 2), bytes(68)),
        ("blk.0.attn_q.weight", 2, (32, 1), bytes(18)),
        ("blk.0.ffn_up_exps.weight", 2, (32, 1, 2), bytes(36)),
        ("blk.0.attn_norm.weight", 0, (32,), bytes(128)),
    ]
    path.write_bytes(write_gguf(metadata, tensors))
    return path


def test_inspect_as_text(run, model):
    lines = [" ".join(line.split()) for line in run("inspect", model).stdout.splitlines()]
    assert "llama.rope.eps 1e-05" in lines
    assert "tokenizer.ggml.tokens 3 strings (--key prints them)" in lines
    assert "flag true" in lines
    assert any(line.startswith("template xxx") and "500 characters" in line for line in lines)
    assert "token_embd.weight Q8_0 [2, 32] 68 B embedding" in lines
    assert "experts 1 64 36 B 4.50 Q4_0 (1)" in lines
    assert "Q4_0 2 96 54 B 4.50" in lines


def test_numbers_that_json_lacks_are_inf_and_nan_as_text(run, tmp_path):
    path = tmp_path / "m.gguf"
    metadata = {"up": math.inf, "down": -math.inf, "odd": math.nan, "list": [math.inf, 1.0]}
    path.write_bytes(write_gguf(metadata, []))
    lines = [line.split() for line in run("inspect", path).stdout.splitlines()]
    for line in (["up", "inf"], ["down", "-inf"], ["odd", "NaN"]):
        assert line in lines
    assert run("inspect", path, "--key", "list").stdout == "inf\n1.0\n"
    found = json.loads(run("inspect", path, "-f", "json").stdout)["result"]["metadata"]
    assert [found["up"], found["down"], found["odd"]] == ["Infinity", "-Infinity", "NaN"]


def test_inspect_as_json(run, model):
    document = json.loads(run("inspect", model, "-f", "json").stdout)
    assert document["verdict"] is None
    assert document["result"]["metadata"]["tokenizer.ggml.tokens"] == {
        "array": "string",
        "count": 3,
    }
    assert document["result"]["kinds"]["embedding"]["bits_per_weight"] == 8.5
    assert document["tensors"][0]["name"] == "token_embd.weight"
    assert document["coverage"]["tensors"] == 4


def test_one_key_in_full(run, model):
    text = run("inspect", model, "--key", "tokenizer.ggml.tokens").stdout
    assert text == "<s>\nline\\nbreak\n\\x1b[31mred\n"
    assert run("inspect", model, "--key", "template").stdout == "x" * 500 + "\n"
    document = json.loads(
        run("inspect", model, "--key", "tokenizer.ggml.tokens", "-f", "json").stdout
    )
    assert document["result"]["value"] == ["<s>", "line\nbreak", "\x1b[31mred"]
    size = model.stat().st_size
    assert document["inputs"] == [{"path": "model.gguf", "format": "gguf", "bytes": size}]
    assert document["coverage"]["tensors"] == 4
    wrong = run("inspect", model, "--key", "tokenizer.ggml.tokns")
    assert wrong.exit_code == 2
    assert "tokenizer.ggml.tokens" in wrong.stderr


def test_inspect_decodes_no_array(run, model, monkeypatch):
    from qassay.containers import MetadataArray

    def decoded(self, *args):
        raise AssertionError("an array was decoded")

    monkeypatch.setattr(MetadataArray, "__iter__", decoded)
    monkeypatch.setattr(MetadataArray, "__getitem__", decoded)
    for form in renderers():
        assert run("inspect", model, "-f", form).exit_code == 0


def test_inspect_safetensors_and_folder(run, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "nested": {"a": 1}}')
    data = write_safetensors([("lm_head.weight", "BF16", [2, 4], bytes(16))], {"format": "pt"})
    (folder / "model.safetensors").write_bytes(data)
    text = run("inspect", folder / "model.safetensors").stdout
    assert "format  pt" in text
    assert "output" in text
    text = run("inspect", folder).stdout
    assert "model_type  llama" in text
    assert 'nested      {"a": 1}' in text
