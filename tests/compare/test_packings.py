"""One matrix in every packing is the same quantization."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from packings import (
    AWQ_CONFIG,
    GGUF_NAME,
    GPTQ_CONFIG,
    GPTQ_V2,
    NAME,
    PACK_CONFIG,
    Matrix,
    save,
    save_gguf,
)

E4M3_ONE = 0x38


@pytest.fixture
def packings(tmp_path):
    """Return one matrix, symmetric so that Q4_0 can hold it, in each integer packing."""
    matrix = Matrix.random(symmetric=True)
    q4_0 = [(GGUF_NAME, 2, [128, 64], matrix.q4_0())]
    return {
        "gptq": save(tmp_path / "gptq", {NAME: matrix.gptq()}, GPTQ_CONFIG),
        "gptq_v2": save(tmp_path / "gptq_v2", {NAME: matrix.gptq(version=2)}, GPTQ_V2),
        "awq": save(tmp_path / "awq", {NAME: matrix.awq()}, AWQ_CONFIG),
        "compressed": save(tmp_path / "compressed", {NAME: matrix.compressed()}, PACK_CONFIG),
        "gguf": save_gguf(tmp_path / "m.gguf", q4_0),
    }


KINDS = ["gptq", "gptq_v2", "awq", "compressed", "gguf"]


@pytest.mark.parametrize("a", KINDS)
@pytest.mark.parametrize("b", KINDS)
def test_every_packing_of_one_matrix_is_equal(packings, compare, a, b):
    code, report = compare(packings[a], packings[b])
    assert (code, report["verdict"], report["result"]["relation"]) == (0, "clean", "equal")
    [layer] = report["result"]["layers"]
    assert layer["relation"] == "equal"
    assert layer["shape"] == [64, 128]
    assert report["coverage"]["checked"] == 1
    assert report["coverage"]["bytes"] > 0
    assert report["findings"] == []


def test_asymmetric_matrix_is_equal_across_packings(tmp_path, compare):
    matrix = Matrix.random(seed=3)
    gptq = save(tmp_path / "gptq", {NAME: matrix.gptq()}, GPTQ_CONFIG)
    awq = save(tmp_path / "awq", {NAME: matrix.awq()}, AWQ_CONFIG)
    packed = save(tmp_path / "packed", {NAME: matrix.compressed()}, PACK_CONFIG)
    for other in (awq, packed):
        assert compare(gptq, other)[1]["result"]["relation"] == "equal"


def test_one_code_apart_is_different(packings, tmp_path, compare):
    matrix = Matrix.random(symmetric=True)
    codes = matrix.codes.copy()
    codes[5, 77] = (codes[5, 77] + 2) % 16
    away = abs(int(codes[5, 77]) - int(matrix.codes[5, 77]))
    other = save(tmp_path / "x", {NAME: replace(matrix, codes=codes).awq()}, AWQ_CONFIG)
    code, report = compare(packings["gptq"], other)
    assert code == 1
    [layer] = report["result"]["layers"]
    assert layer["relation"] == report["result"]["relation"] == "different"
    told = layer["difference"]
    assert told["codes"]["different"] == told["weights"]["different"] == 1
    assert told["codes"]["of"] == 64 * 128
    assert told["codes"]["steps"] == {"1": 0, "2": int(away == 2), "3+": int(away > 2)}
    assert (told["first"]["row"], told["first"]["column"]) == (5, 77)
    assert told["largest_steps"] == pytest.approx(away, rel=1e-6)
    assert told["rows"] == {"different": 1, "of": 64}
    assert told["scales"]["different"] == told["zeros"]["different"] == 0
    [finding] = report["findings"]
    assert finding["code"] == "Q611"
    assert finding["tensor"] == f"{NAME}.qweight"
    assert (finding["location"]["row"], finding["location"]["column"]) == (5, 77)


def test_act_order_with_renumbered_groups_is_equal(tmp_path, compare):
    """Groups have no names: the same columns with the same scales under other numbers."""
    matrix = Matrix.random()
    rng = np.random.default_rng(1)
    index = rng.permutation(np.arange(128) // 32)
    renamed = np.array([2, 0, 3, 1])
    other = replace(
        matrix,
        zeros=matrix.zeros[:, np.argsort(renamed)],
        scales=matrix.scales[:, np.argsort(renamed)],
    )
    config = {**GPTQ_CONFIG, "desc_act": True}
    a = save(tmp_path / "a", {NAME: matrix.gptq(g_idx=index)}, config)
    b = save(tmp_path / "b", {NAME: other.gptq(g_idx=renamed[index])}, config)
    code, report = compare(a, b)
    assert (code, report["result"]["relation"]) == (0, "equal")


def test_wide_groups_repeated_in_narrow_ones_are_equal(tmp_path, compare):
    wide = Matrix.random(group=128, symmetric=True)
    narrow = replace(
        wide, zeros=np.repeat(wide.zeros, 4, 1), scales=np.repeat(wide.scales, 4, 1), group=32
    )
    config = {**GPTQ_CONFIG, "group_size": 128}
    a = save(tmp_path / "a", {NAME: wide.gptq()}, config)
    b = save_gguf(tmp_path / "b.gguf", [(GGUF_NAME, 2, [128, 64], narrow.q4_0())])
    assert compare(a, b)[1]["result"]["relation"] == "equal"


def pairs(codes: np.ndarray) -> np.ndarray:
    """Element 2i in the low half of byte i."""
    low, high = codes[..., 0::2], codes[..., 1::2]
    return (low | (high << 4)).astype(np.uint8)


def halves(codes: np.ndarray, block: int) -> np.ndarray:
    """ggml: element j in the low half of byte j, j + block / 2 in the high one."""
    cut = codes.reshape(-1, block)
    return (cut[:, : block // 2] | (cut[:, block // 2 :] << 4)).astype(np.uint8)


@pytest.fixture
def fp4():
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 16, (48, 128)).astype(np.uint8)
    return codes, rng


def mxfp4_gguf(codes: np.ndarray, scales: np.ndarray) -> bytes:
    blocks = np.concatenate([scales.reshape(-1, 1), halves(codes, 32)], axis=1)
    return blocks.astype(np.uint8).tobytes()


def nvfp4_gguf(codes: np.ndarray, scales: np.ndarray) -> bytes:
    """Block of 64: four scales, then four runs of 8 bytes."""
    quants = halves(codes, 16).reshape(-1, 32)
    return np.concatenate([scales.reshape(-1, 4), quants], axis=1).astype(np.uint8).tobytes()


MX_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "mxfp4-pack-quantized",
    "config_groups": {"group_0": {"format": "mxfp4-pack-quantized", "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "group",
                    "group_size": 32}}},
    "ignore": [],
}  # fmt: skip


def test_mxfp4_of_compressed_tensors_and_gguf_is_equal(tmp_path, compare, fp4):
    codes, rng = fp4
    scales = rng.integers(0, 253, (48, 4)).astype(np.uint8)
    parts = {"weight_packed": pairs(codes), "weight_scale": scales}
    a = save(tmp_path / "a", {NAME: parts}, MX_CONFIG)
    b = save_gguf(tmp_path / "b.gguf", [(GGUF_NAME, 39, [128, 48], mxfp4_gguf(codes, scales))])
    code, report = compare(a, b)
    assert (code, report["result"]["relation"]) == (0, "equal"), report["result"]["layers"]


def test_mxfp4_of_gpt_oss_and_gguf_is_equal(tmp_path, compare):
    """gate_up_proj holds the rows of both in turn; GGUF keeps them apart."""
    rng = np.random.default_rng(6)
    codes = rng.integers(0, 16, (3, 64, 128)).astype(np.uint8)
    scales = rng.integers(110, 130, (3, 64, 4)).astype(np.uint8)
    module = "model.layers.0.mlp.experts.gate_up_proj"
    parts = {"_blocks": pairs(codes).reshape(3, 64, 4, 16), "_scales": scales}
    a = save(tmp_path / "a", {module: parts}, {"quant_method": "mxfp4"})
    tensors = [
        (
            f"blk.0.ffn_{which}_exps.weight",
            39,
            [128, 32, 3],
            mxfp4_gguf(
                np.ascontiguousarray(codes[:, first::2]), np.ascontiguousarray(scales[:, first::2])
            ),
        )
        for first, which in enumerate(("gate", "up"))
    ]
    code, report = compare(a, save_gguf(tmp_path / "b.gguf", tensors))
    assert (code, report["result"]["relation"]) == (0, "equal"), report["findings"]
    assert [layer["shape"] for layer in report["result"]["layers"]] == [[3, 32, 128]] * 2
    swapped = [(b[0], *a[1:]) for a, b in zip(tensors, tensors[::-1], strict=True)]
    code, report = compare(a, save_gguf(tmp_path / "c.gguf", swapped))
    assert (code, report["result"]["relation"]) == (1, "different")


NV_CONFIG = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {"group_0": {"format": "nvfp4-pack-quantized", "targets": ["Linear"],
        "weights": {"num_bits": 4, "type": "float", "symmetric": True,
                    "strategy": "tensor_group", "group_size": 16}}},
    "ignore": [],
}  # fmt: skip
MODELOPT = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


@pytest.fixture
def nvfp4(tmp_path, fp4):
    codes, rng = fp4
    scales = rng.integers(1, 0x7E, (48, 8)).astype(np.uint8)
    divisor = np.array([2873.25], np.float32)
    multiplier = np.float32(1) / divisor
    scale = scales.view(np.int8)
    packed = {
        "weight_packed": pairs(codes), "weight_scale": scale, "weight_global_scale": divisor,
    }  # fmt: skip
    modelopt = {
        "weight": pairs(codes), "weight_scale": scale, "weight_scale_2": multiplier.reshape(()),
    }  # fmt: skip
    tensors = [
        (GGUF_NAME, 40, [128, 48], nvfp4_gguf(codes, scales)),
        ("blk.0.ffn_up.scale", 0, [1], multiplier.tobytes()),
    ]
    inverted = [tensors[0], ("blk.0.ffn_up.scale", 0, [1], divisor.tobytes())]
    return {
        "compressed": save(tmp_path / "compressed", {NAME: packed}, NV_CONFIG),
        "modelopt": save(tmp_path / "modelopt", {NAME: modelopt}, MODELOPT),
        "gguf": save_gguf(tmp_path / "m.gguf", tensors),
        "inverted": save_gguf(tmp_path / "i.gguf", inverted),
        "without": save_gguf(tmp_path / "w.gguf", tensors[:1]),
    }


@pytest.mark.parametrize("a", ["compressed", "modelopt", "gguf"])
@pytest.mark.parametrize("b", ["compressed", "modelopt", "gguf"])
def test_nvfp4_of_every_packing_is_equal(nvfp4, compare, a, b):
    code, report = compare(nvfp4[a], nvfp4[b])
    assert (code, report["result"]["relation"]) == (0, "equal"), report["findings"]
    [layer] = report["result"]["layers"]
    reciprocal = any("reciprocals" in note for note in layer.get("notes", []))
    assert reciprocal == ((a == "compressed") != (b == "compressed"))


@pytest.mark.parametrize("a", ["compressed", "modelopt", "gguf"])
def test_inverted_global_scale_is_named(nvfp4, compare, a):
    code, report = compare(nvfp4[a], nvfp4["inverted"])
    assert code == 1
    [finding] = report["findings"]
    assert (finding["code"], finding["data"]["kind"]) == ("Q613", "global-scale-inverted")
    assert report["result"]["relation"] == "equal-up-to"
    assert finding["data"]["factor"] == pytest.approx(2873.25**2, rel=1e-6)


def test_lost_global_scale_is_a_factor(nvfp4, compare):
    code, report = compare(nvfp4["modelopt"], nvfp4["without"])
    [finding] = report["findings"]
    assert (code, finding["code"], finding["data"]["kind"]) == (1, "Q613", "scales-multiplied")
    assert finding["data"]["factor"] == pytest.approx(2873.25, rel=1e-6)


def test_activation_scales_are_compared_too(nvfp4, tmp_path, compare, fp4):
    codes, _ = fp4
    scale = np.full((48, 8), E4M3_ONE, np.int8)
    module = {
        "weight_packed": pairs(codes),
        "weight_scale": scale,
        "weight_global_scale": np.array([2.0], np.float32),
        "input_global_scale": np.array([3.0], np.float32),
    }
    tensors = [
        (GGUF_NAME, 40, [128, 48], nvfp4_gguf(codes, scale.view(np.uint8))),
        ("blk.0.ffn_up.scale", 0, [1], np.float32(0.5).tobytes()),
        ("blk.0.ffn_up.input_scale", 0, [1], (np.float32(1) / np.float32(3)).tobytes()),
    ]
    a = save(tmp_path / "a", {NAME: module}, NV_CONFIG)
    b = save_gguf(tmp_path / "b.gguf", tensors)
    for pair in ((a, b), (b, a)):
        code, report = compare(*pair)
        assert (code, report["result"]["relation"]) == (0, "equal"), report["findings"]
        assert len(report["result"]["layers"]) == 2
    tensors[2] = ("blk.0.ffn_up.input_scale", 0, [1], np.float32(3).tobytes())
    code, report = compare(a, save_gguf(tmp_path / "c.gguf", tensors))
    assert [(x["code"], x["tensor"]) for x in report["findings"]] == [
        ("Q611", "blk.0.ffn_up.input_scale")
    ]


GOLDEN = Path(__file__).resolve().parents[1] / "fixtures" / "converter_repack_golden.npz"


@pytest.fixture
def golden(tmp_path):
    """One matrix that another program's test packs three ways; see tests/fixtures/README.md."""
    with np.load(GOLDEN) as kept:
        arrays = dict(kept)
    parts = {
        "gptq": {name: arrays[f"gptq_{name}"] for name in ("qweight", "qzeros", "scales")},
        "awq": {name: arrays[f"awq_{name}"] for name in ("qweight", "qzeros", "scales")},
        "compressed": {
            "weight_packed": arrays["ct_weight_packed"],
            "weight_zero_point": arrays["ct_zero_point"],
            "weight_scale": arrays["ct_scale"],
            "weight_shape": np.array([64, 128], np.int64),
        },
    }
    configs = {"gptq": GPTQ_CONFIG, "awq": AWQ_CONFIG, "compressed": PACK_CONFIG}
    return {
        name: save(tmp_path / f"golden-{name}", {NAME: members}, configs[name])
        for name, members in parts.items()
    }


@pytest.mark.parametrize("a", ["gptq", "awq", "compressed"])
@pytest.mark.parametrize("b", ["gptq", "awq", "compressed"])
def test_what_another_program_packed_three_ways_is_equal(golden, compare, a, b):
    code, report = compare(golden[a], golden[b])
    assert (code, report["result"]["relation"]) == (0, "equal"), report["findings"]
