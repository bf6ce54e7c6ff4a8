"""`qassay pad`: what it writes equals what the compiler takes, and nothing else changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from by_hand import CHECKPOINTS, TPU, checkpoint, pack_words, stored

from qassay.encodings.layers import assemble
from qassay.encodings.registry import open_with_encodings
from qassay.run import pad as pad_module
from qassay.testing.safetensors_writer import write_safetensors

GPTQ = {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 64,
                                "desc_act": False, "sym": False}}  # fmt: skip
LAYER = "model.layers.0.linear_attn.in_proj_a"


def fixture(name: str) -> dict[str, np.ndarray]:
    with np.load(TPU / "bm1684x-1.30.2" / f"{name}_k256_g64_w.npz") as kept:
        found = {key: kept[key] for key in kept.files}
    codes = np.empty((found["qweight"].shape[0], 256), np.uint8)
    codes[:, 0::2], codes[:, 1::2] = found["qweight"] & 15, found["qweight"] >> 4
    return {**found, "codes": codes, "bias": found["bias"].reshape(-1)}


def as_gptq(one: dict[str, np.ndarray], offset: int) -> dict[str, np.ndarray]:
    return {
        f"{LAYER}.qweight": pack_words(one["codes"]).T,
        f"{LAYER}.qzeros": pack_words((one["qzeros"].T - offset) & 15),
        f"{LAYER}.scales": one["scales"].T,
        f"{LAYER}.g_idx": (np.arange(256) // 64).astype(np.int32),
        f"{LAYER}.bias": one["bias"],
        "model.norm.weight": np.arange(256, dtype=np.float32),
    }


def as_compressed(one: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {
        f"{LAYER}.weight_packed": pack_words(one["codes"]),
        f"{LAYER}.weight_zero_point": pack_words(one["qzeros"].T).T,
        f"{LAYER}.weight_scale": one["scales"],
        f"{LAYER}.weight_shape": np.array(one["codes"].shape, np.int64),
        f"{LAYER}.bias": one["bias"],
    }


def equals(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
        assert found[name].dtype == array.dtype
    assert set(found) == set(wanted)


PAIRS = [("w4_n16", "w4_n16pad64"), ("w4_n96", "w4_n96pad128")]


@pytest.mark.parametrize(("name", "padded"), PAIRS)
@pytest.mark.parametrize("offset", [0, 1])
def test_gptq_equals_what_the_compiler_was_given(document, tmp_path, name, padded, offset):
    config = json.loads(json.dumps(GPTQ))
    if offset == 0:
        config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    before, after = fixture(name), fixture(padded)
    source = checkpoint(tmp_path / "a", as_gptq(before, offset), config)
    code, report = document("pad", source, tmp_path / "b", "--on", "sophgo:bm1684x")
    assert code == 0, report
    equals(stored(tmp_path / "b"), as_gptq(after, offset))
    assert (tmp_path / "b" / "config.json").read_text() == json.dumps(config)
    crops = json.loads((tmp_path / "b" / "crops.json").read_text())
    n, wide = before["codes"].shape[0], after["codes"].shape[0]
    assert (crops[LAYER]["rows"], crops[LAYER]["padded"]) == (n, wide)
    assert crops[LAYER]["parts"][f"{LAYER}.qweight"] == [32, wide]
    assert f"{LAYER}.g_idx" not in crops[LAYER]["parts"]
    proof = report["result"]["proof"]
    assert proof["weights"] == n * 256
    assert proof["padding"] == (wide - n) * 256
    assert (proof["layers"], proof["other_tensors"]) == (1, 2)
    assert report["result"]["multiple"] == 64


@pytest.mark.parametrize(("name", "padded"), PAIRS)
def test_compressed_tensors_equals_what_the_compiler_was_given(document, tmp_path, name, padded):
    source = checkpoint(tmp_path / "a", as_compressed(fixture(name)))
    code, report = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert code == 0, report
    equals(stored(tmp_path / "b"), as_compressed(fixture(padded)))


INTEGERS = ["autoround-w3a16", "autoround-w4a16", "autoround-w4a16-asym-gptq",
            "autoround-w4a16-awq", "gptqmodel-gptq-w4g128-desc", "llmcompressor-w4a16",
            "llmcompressor-w4a16_asym"]  # fmt: skip


@pytest.mark.parametrize("tool", INTEGERS)
def test_checkpoints_of_other_tools(document, run, tmp_path, tool):
    code, report = document("pad", CHECKPOINTS / tool, tmp_path / "b", "--multiple", 96)
    assert code == 0, report
    container = open_with_encodings(tmp_path / "b")
    layers = {layer.module: layer for layer in assemble(container).layers}
    assert report["result"]["padded"]
    for one in report["result"]["padded"]:
        assert layers[one["name"]].rows == one["padded"] == -(-one["rows"] // 96) * 96
    oracle = CHECKPOINTS / tool / "oracle.npz"
    if oracle.exists():
        with np.load(oracle) as kept:
            for key in kept.files:
                module = key.partition(".weight")[0]
                ours = layers[module].encoding.unpack(layers[module]).dequantize()
                theirs = kept[key].astype(np.float32)
                rows = report_rows(report, module)
                count = min(rows, theirs.shape[0])
                np.testing.assert_allclose(ours[:count], theirs[:count], rtol=0, atol=6e-4)
                assert not ours[rows:].any()
                assert ours.shape[0] > rows
    container.close()
    # the new checkpoint is as sound as the old one
    assert run("check", tmp_path / "b").exit_code == run("check", CHECKPOINTS / tool).exit_code


def report_rows(report, module):
    return next(one["rows"] for one in report["result"]["padded"] if one["name"] == module)


def test_floats(document, tmp_path):
    rng = np.random.default_rng(1)
    arrays = {
        "model.embed_tokens.weight": rng.standard_normal((100, 32)).astype(np.float32),
        "model.layers.0.mlp.shared_expert_gate.weight":
            rng.standard_normal((1, 32)).astype(np.float16),
        "model.layers.0.self_attn.q_proj.weight": rng.standard_normal((96, 32)).astype(np.float16),
        "model.layers.0.self_attn.q_proj.bias": rng.standard_normal(96).astype(np.float16),
        "model.layers.0.mlp.up_proj.weight": rng.standard_normal((64, 32)).astype(np.float16),
        "model.layers.0.mlp.gate.weight": rng.standard_normal((5, 32)).astype(np.float16),
        "lm_head.weight": rng.standard_normal((100, 32)).astype(np.float16),
        "model.norm.weight": np.ones(32, np.float16),
    }  # fmt: skip
    source = checkpoint(tmp_path / "a", arrays)
    code, report = document("pad", source, tmp_path / "b", "--on", "sophgo:bm1684x")
    assert code == 0
    found = stored(tmp_path / "b")
    grown = {
        "model.layers.0.mlp.shared_expert_gate.weight": 64,
        "model.layers.0.self_attn.q_proj.weight": 128,
        "model.layers.0.self_attn.q_proj.bias": 128,
    }
    for name, array in arrays.items():
        rows = array.shape[0]
        np.testing.assert_array_equal(found[name][:rows], array)
        assert found[name].shape[0] == grown.get(name, rows)
        assert not found[name][rows:].any()
    assert {one["name"] for one in report["result"]["left"]} == {
        "model.embed_tokens", "model.layers.0.mlp.gate", "lm_head",
    }  # fmt: skip
    crops = json.loads((tmp_path / "b" / "crops.json").read_text())
    assert "heads" in crops["model.layers.0.self_attn.q_proj"]["before"]
    # asked for by name, an output over the vocabulary is refused, not left
    code, report = document(
        "pad", source, tmp_path / "c", "--on", "sophgo:bm1684x", "--layers", "lm_head"
    )
    assert code == 3
    assert "vocabulary" in report["coverage"]["skipped"][0]["reason"]
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("scale", "zeros", "wanted"),
    [
        ((1,), None, (1,)),
        ((96, 1), (96, 1), (128, 1)),
        ((96, 4), (96, 4), (128, 4)),
        ((96,), None, (128,)),
        ((3, 2), (3, 2), (4, 2)),
    ],
)
def test_int8_with_scales_of_every_grain(document, tmp_path, scale, zeros, wanted):
    rng = np.random.default_rng(2)
    arrays = {
        "x.weight": rng.integers(-128, 128, (96, 64)).astype(np.int8),
        "x.weight_scale": rng.uniform(0.01, 1, scale).astype(np.float32),
    }
    if zeros is not None:
        arrays["x.weight_zero_point"] = rng.integers(-9, 9, zeros).astype(np.int8)
    source = checkpoint(tmp_path / "a", arrays)
    code, report = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert code == 0, report
    found = stored(tmp_path / "b")
    assert found["x.weight"].shape == (128, 64)
    assert found["x.weight_scale"].shape == wanted
    assert found["x.weight_scale"].ravel()[-1] == (arrays["x.weight_scale"][0] if wanted == (1,)
                                                   else 1)  # fmt: skip


def test_rows_that_join_a_block_take_its_zero_point(document, tmp_path):
    codes = np.arange(40 * 32).reshape(40, 32).astype(np.int8)
    arrays = {
        "x.weight": codes,
        "x.weight_scale": np.full((2, 1), 0.5, np.float32),
        "x.weight_zero_point": np.array([[3], [-7]], np.int8),
    }
    config = {"quantization_config": {
        "quant_method": "compressed-tensors", "format": "int-quantized",
        "config_groups": {"g": {"targets": ["Linear"], "weights": {
            "num_bits": 8, "type": "int", "strategy": "block", "block_structure": [32, 32],
            "symmetric": False}}}}}  # fmt: skip
    source = checkpoint(tmp_path / "a", arrays, config)
    code, report = document("pad", source, tmp_path / "b", "--multiple", 96)
    assert code == 0, report
    found = stored(tmp_path / "b")
    np.testing.assert_array_equal(found["x.weight"][40:64], -7)
    np.testing.assert_array_equal(found["x.weight"][64:], 0)
    np.testing.assert_array_equal(found["x.weight_zero_point"], [[3], [-7], [0]])


def test_awq_channels_are_whole_words(document, tmp_path):
    code, report = document(
        "pad", CHECKPOINTS / "autoround-w4a16-awq", tmp_path / "b", "--multiple", 12
    )
    assert code == 3
    assert "no whole words" in report["coverage"]["skipped"][0]["reason"]
    assert report["result"]["written"] is False
    assert not (tmp_path / "b").exists()
    assert report["result"]["padded"]  # the others could be, if they are asked for by name
    names = [one["name"] for one in report["result"]["padded"]]
    line = ("pad", CHECKPOINTS / "autoround-w4a16-awq", tmp_path / "b", "--multiple", 12)
    code, report = document(*line, "--layers", ",".join(names))
    assert (code, report["result"]["written"]) == (0, True)


@pytest.mark.parametrize("tool", ["llmcompressor-nvfp4a16", "llmcompressor-fp8_block",
                                  "llmcompressor-mxfp4a16", "bnb-nf4", "hqq-b4g64"])  # fmt: skip
def test_other_formats_are_refused_by_name(document, tmp_path, tool):
    code, report = document("pad", CHECKPOINTS / tool, tmp_path / "b", "--multiple", 96)
    assert code == 3
    assert report["verdict"] == "incomplete"
    assert report["result"]["refused"]
    assert not (tmp_path / "b").exists()


def test_nothing_to_do(document, run, tmp_path):
    line = ("pad", CHECKPOINTS / "autoround-w4a16", tmp_path / "b", "--on", "sophgo:bm1684x")
    code, report = document(*line)
    assert (code, report["result"]["written"], report["verdict"]) == (0, False, None)
    assert report["result"]["fitting"] == 6
    assert not (tmp_path / "b").exists()
    assert "nothing to do" in run(*line).stdout


def sharded(folder: Path) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(3)
    shards = {
        "model-00001-of-00002.safetensors": {"a.up_proj.weight": (48, 16), "n.weight": (16,)},
        "model-00002-of-00002.safetensors": {"b.up_proj.weight": (64, 16)},
    }
    weight_map, total = {}, 0
    for file, tensors in shards.items():
        made = []
        for name, shape in tensors.items():
            data = rng.standard_normal(shape).astype(np.float32).tobytes()
            made.append((name, "F32", list(shape), data))
            weight_map[name], total = file, total + len(data)
        (folder / file).write_bytes(write_safetensors(made, {"format": "pt", "by": file}))
    index = {"metadata": {"total_size": total, "note": "x"}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_shards_stay_shards(document, run, tmp_path):
    source = sharded(tmp_path / "a")
    code, _ = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert code == 0
    old = json.loads((source / "model.safetensors.index.json").read_text())
    new = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    assert new["weight_map"] == old["weight_map"]
    assert new["metadata"] == {"total_size": old["metadata"]["total_size"] + 16 * 16 * 4,
                               "note": "x"}  # fmt: skip
    assert stored(tmp_path / "b", "model-00001-of-00002.safetensors")["a.up_proj.weight"].shape == (
        64, 16,
    )  # fmt: skip
    other = "model-00002-of-00002.safetensors"
    assert stored(tmp_path / "b", other)["b.up_proj.weight"].shape == (64, 16)
    from safetensors import safe_open

    with safe_open(tmp_path / "b" / other, "numpy") as file:
        assert file.metadata() == {"format": "pt", "by": other}
    assert (tmp_path / "b" / "tokenizer.json").exists()
    assert run("check", tmp_path / "b").exit_code == 0


def test_a_source_that_is_not_whole_is_not_padded(document, tmp_path):
    source = sharded(tmp_path / "a")
    (source / "model-00002-of-00002.safetensors").unlink()
    code, report = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert (code, report["verdict"]) == (3, "incomplete")
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("what", [KeyboardInterrupt, OSError("no room")])
def test_nothing_is_left_behind(tmp_path, monkeypatch, what):
    def stop(*args):
        raise what

    monkeypatch.setattr(pad_module, "prove", stop)
    source = sharded(tmp_path / "a")
    with pytest.raises((KeyboardInterrupt, pad_module.UsageError)):
        pad_module.pad(source, tmp_path / "b", pad_module.PadOptions(64))
    assert [one.name for one in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("change", ["weights", "padding", "scales", "bias", "others"])
def test_the_proof_sees_what_is_wrong(tmp_path, monkeypatch, change):
    from qassay.run import pad_proof

    source = checkpoint(tmp_path / "a", as_gptq(fixture("w4_n16"), 1), GPTQ)
    fill = pad_module._fill

    def spoil(source, container, folder, result):
        fill(source, container, folder, result)
        arrays = stored(folder)
        name, place = {
            "weights": (f"{LAYER}.qweight", 3),
            "padding": (f"{LAYER}.qweight", 40),
            "scales": (f"{LAYER}.scales", 5),
            "bias": (f"{LAYER}.bias", 50),
            "others": ("model.norm.weight", 7),
        }[change]
        array = arrays[name] = arrays[name].copy()
        array[..., place] += 1
        checkpoint(folder, arrays)

    monkeypatch.setattr(pad_module, "_fill", spoil)
    with pytest.raises(pad_proof.NotEqualError):
        pad_module.pad(source, tmp_path / "b", pad_module.PadOptions(64))
    assert not (tmp_path / "b").exists()


def test_what_is_refused_as_usage(run, tmp_path):
    source = sharded(tmp_path / "a")
    (tmp_path / "there").mkdir()
    lines = {
        ("pad", source, tmp_path / "b"): "--on",
        ("pad", source, tmp_path / "there", "--multiple", 64): "already",
        ("pad", source, source / "b", "--multiple", 64): "in the source",
        ("pad", source, tmp_path / "no" / "b", "--multiple", 64): "no folder",
        ("pad", source, tmp_path / "b", "--multiple", 64, "--layers", "zz*"): "matches no",
        ("pad", source, tmp_path / "b", "--on", "sophgo:bm1684x", "--multiple", 32): "lanes",
        ("pad", source, tmp_path / "b", "--on", "vllm"): "Sophgo",
        ("pad", source, tmp_path / "b", "--on", "sophgo:bm1684"): "A16MatMul",
        ("pad", source / "model-00002-of-00002.safetensors", tmp_path / "b", "--multiple", 64):
            "folder",
    }  # fmt: skip
    for line, words in lines.items():
        result = run(*line)
        assert result.exit_code == 2, line
        assert words in result.stderr, result.stderr
    assert not (tmp_path / "b").exists()


def test_what_stands_beside_a_weight_and_is_not_known(document, tmp_path):
    arrays = {**as_gptq(fixture("w4_n16"), 1), f"{LAYER}.channel_scale": np.ones(16, np.float32)}
    source = checkpoint(tmp_path / "a", arrays, GPTQ)
    code, report = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert code == 3
    assert "channel_scale" in report["coverage"]["skipped"][0]["reason"]
    shutil.rmtree(source)
    arrays = {**as_gptq(fixture("w4_n16"), 1), f"{LAYER}.bias": np.ones(17, np.float32)}
    code, report = document(
        "pad", checkpoint(source, arrays, GPTQ), tmp_path / "b", "--multiple", 64
    )
    assert code == 3
    assert "bias" in report["coverage"]["skipped"][0]["reason"]


def test_a_group_that_there_is_not(document, tmp_path):
    arrays = as_gptq(fixture("w4_n16"), 1)
    arrays[f"{LAYER}.g_idx"][7] = 99
    source = checkpoint(tmp_path / "a", arrays, GPTQ)
    code, report = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert code == 3
    assert "index" in report["coverage"]["skipped"][0]["reason"]


def test_pieces_are_small(tmp_path, monkeypatch):
    from qassay.runtimes import channel_padding

    monkeypatch.setattr(channel_padding, "_SLICE", 512)
    arrays = as_gptq(fixture("w4_n96"), 1)
    source = checkpoint(tmp_path / "a", arrays, GPTQ)
    container = open_with_encodings(source)
    assembly = assemble(container)
    [layer] = assembly.layers
    for growth in channel_padding.grow_layer(layer, assembly.modules[LAYER], 128):
        pieces = list(growth.pieces())
        assert sum(piece.size for piece in pieces) == growth.nbytes
        if growth.axis is not None:
            assert max(piece.size for piece in pieces) <= max(1024, growth.tail.nbytes)
    container.close()


@pytest.mark.parametrize("name", ["lm_head", "model.embed_tokens"])
def test_codes_over_the_vocabulary_are_refused(document, tmp_path, name):
    arrays = {key.replace(LAYER, name): one for key, one in
              as_gptq(fixture("w4_n16"), 1).items()}  # fmt: skip
    source = checkpoint(tmp_path / "a", arrays, GPTQ)
    code, report = document("pad", source, tmp_path / "b", "--on", "sophgo:bm1684x")
    assert (code, report["result"]["written"]) == (3, False)
    assert report["result"]["refused"][0]["name"] == name


@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq_gemv(document, tmp_path, group):
    # AutoAWQ's WQLinear_GEMV: rows of scales and zero points are wider than there are groups.
    rows, columns = 40, 1280
    groups = columns // group
    width = {128: 2, 64: 4, 32: 8}[group]  # calculate_zeros_width, by hand, in words
    rng = np.random.default_rng(group)
    codes = rng.integers(0, 16, (rows, columns), np.uint8)
    zeros = np.zeros((rows, 8 * width), np.uint8)
    zeros[:, :groups] = rng.integers(0, 16, (rows, groups))
    scales = np.zeros((rows, 8 * width), np.float16)
    scales[:, :groups] = rng.uniform(0.01, 0.02, (rows, groups))
    arrays = {f"{LAYER}.qweight": pack_words(codes), f"{LAYER}.qzeros": pack_words(zeros),
              f"{LAYER}.scales": scales, f"{LAYER}.bias": np.ones(rows, np.float16)}  # fmt: skip
    config = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": group,
                                      "zero_point": True, "version": "gemv"}}  # fmt: skip
    source = checkpoint(tmp_path / "a", arrays, config)
    code, report = document("pad", source, tmp_path / "b", "--on", "sophgo:bm1684x")
    assert code == 0, report
    assert report["result"]["padded"][0]["encoding"] == "awq.gemv.int4"
    found = stored(tmp_path / "b")
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name][:rows], array, err_msg=name)
        assert found[name].shape == (64, *array.shape[1:])
    nibbles = [found[f"{LAYER}.{part}"][rows:].view(np.uint32)[..., None] >> np.arange(0, 32, 4)
               for part in ("qweight", "qzeros")]  # fmt: skip
    new, centre = ((one & 15).reshape(24, -1) for one in nibbles)
    np.testing.assert_array_equal(new, centre[:, :groups].repeat(group, axis=1))
    np.testing.assert_array_equal(found[f"{LAYER}.scales"][rows:, :groups], 1)
    assert not found[f"{LAYER}.bias"][rows:].any()
    assert document("check", tmp_path / "b")[0] == 0


def floats(rows: int, columns: int = 64) -> dict[str, np.ndarray]:
    return {"model.layers.0.mlp.up_proj.weight": np.ones((rows, columns), np.float16)}


def test_a_padded_checkpoint_is_not_padded_again(document, run, tmp_path):
    source = checkpoint(tmp_path / "a", floats(40), {})
    assert document("pad", source, tmp_path / "b", "--multiple", 32)[0] == 0
    result = run("pad", tmp_path / "b", tmp_path / "c", "--multiple", 48)
    assert result.exit_code == 2
    assert "it is padded already" in result.stderr
    assert not (tmp_path / "c").exists()


def test_names_that_are_too_long_and_an_index(run, tmp_path):
    source = checkpoint(tmp_path / "a", floats(40), {})
    result = run("pad", source, tmp_path / ("n" * 300), "--multiple", 64)
    assert (result.exit_code, "File name too long" in result.stderr) == (2, True)
    index = source / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(floats(1), "model.safetensors")}))
    result = run("pad", index, tmp_path / "b", "--multiple", 64)
    assert (result.exit_code, "name the folder" in result.stderr) == (2, True)


def test_a_number_in_the_index_that_is_none(document, tmp_path):
    source = checkpoint(tmp_path / "a", floats(40), {})
    index = json.dumps({"weight_map": dict.fromkeys(floats(1), "model.safetensors")})
    file = source / "model.safetensors.index.json"
    file.write_text(f'{index[:-1]}, "x": {"1" * 5000}}}')
    assert document("pad", source, tmp_path / "b", "--multiple", 64)[0] == 3
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a"]


def test_an_index_with_a_key_twice_keeps_what_was_read(document, tmp_path):
    source = checkpoint(tmp_path / "a", floats(40), {})
    index = json.dumps({"weight_map": dict.fromkeys(floats(1), "model.safetensors")})
    file = "model.safetensors.index.json"
    (source / file).write_text(f'{index[:-1]}, "weight_map": {{}}}}')
    assert document("pad", source, tmp_path / "b", "--multiple", 64)[0] == 0
    made = json.loads((tmp_path / "b" / file).read_text())
    assert made["weight_map"] == dict.fromkeys(floats(1), "model.safetensors")


def test_channels_beyond_all_measure_are_refused(document, tmp_path):
    source = checkpoint(tmp_path / "a", floats(1, 1 << 16), {})
    code, report = document("pad", source, tmp_path / "b", "--multiple", 1 << 16)
    assert code == 3
    assert "larger by 4294901760 weights" in report["result"]["refused"][0]["reason"]
    assert not (tmp_path / "b").exists()


def test_fused_experts_are_not_said_to_fit(document, tmp_path):
    name = "model.layers.0.mlp.experts.gate_up_proj"
    arrays = floats(64) | {name: np.ones((2, 96, 64), np.float16)}
    source = checkpoint(tmp_path / "a", arrays, {})
    code, report = document("pad", source, tmp_path / "b", "--multiple", 64)
    assert code == 0
    assert [one["name"] for one in report["result"]["left"]] == [name]
