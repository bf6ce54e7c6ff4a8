"""FP8, NVFP4 and MXFP4 as other tools wrote them, and against what other programs decode."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from float_cases import (
    CHECKPOINTS,
    assert_same,
    module_of,
    only_layer,
    unpacked,
    weights,
)

from qassay.encodings.layers import Layer, LayerClaim
from qassay.encodings.layers.assemble import modules_of
from qassay.encodings.layers.narrow import e2m1, e8m0, float8
from qassay.encodings.registry import open_with_encodings

libgguf = pytest.importorskip("libgguf")
MXFP4, NVFP4 = 39, 40

LAYERS = {
    "self_attn.q_proj": (256, 256),
    "self_attn.k_proj": (128, 256),
    "self_attn.v_proj": (128, 256),
    "mlp.gate_proj": (512, 256),
    "mlp.up_proj": (512, 256),
    "mlp.down_proj": (256, 512),
}
FOLDERS = {  # family, label, group, rows that share a scale, bits of a weight's codes
    "llmcompressor-fp8_block": ("fp8", "fp8.e4m3", 128, 128, 8),
    "autoround-fp8_block": ("fp8", "fp8.e4m3", 128, 128, 8),
    "llmcompressor-nvfp4a16": ("nvfp4.compressed", "nvfp4", 16, 1, 4),
    "llmcompressor-mxfp4a16": ("mxfp4.compressed", "mxfp4", 32, 1, 4),
}


def layers_of(folder: str) -> dict[str, Layer]:
    """Return the layers of a fixture by name; its file stays mapped as long as they live."""
    container = open_with_encodings(CHECKPOINTS / folder)
    modules = modules_of(container.tensors)
    return {name: only_layer(modules[f"model.layers.0.{name}"]) for name in LAYERS}


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_every_layer_is_recognised_without_any_configuration(folder: str) -> None:
    family, label, group, group_rows, bits = FOLDERS[folder]
    for name, layer in layers_of(folder).items():
        assert layer.encoding.id == family
        assert layer.label == label
        assert (layer.rows, layer.columns) == LAYERS[name]
        assert (layer.group, layer.group_rows, layer.bits) == (group, group_rows, bits)
        assert (layer.experts, layer.symmetric) == (None, True)
        assert len(layer.evidence) >= 2


@pytest.mark.parametrize("tool", [name for name in FOLDERS if name.startswith("llmcompressor")])
def test_weights_equal_the_tools_own_after_rounding_to_bfloat16(tool: str) -> None:
    layers = layers_of(tool)
    with np.load(CHECKPOINTS / tool / "oracle.npz") as oracle:
        assert len(oracle.files) == 2
        for key in oracle.files:
            name, _, cut = key.removeprefix("model.layers.0.").partition("[:")
            rows = int(cut.rstrip("]")) if cut else None
            ours = weights(layers[name.removesuffix(".weight")], 0, rows)
            theirs = oracle[key].astype(np.float32)
            # What the tool calculated was bfloat16, and is exact in the oracle's dtype.
            assert_same(ours.astype(ml_dtypes.bfloat16), theirs.astype(ml_dtypes.bfloat16))
            assert_same(theirs.astype(ml_dtypes.bfloat16).astype(np.float32), theirs)


def test_autorounds_fp8_lies_within_half_a_step_of_its_source() -> None:
    source = open_with_encodings(CHECKPOINTS / "source-tiny-llama-f16")
    tensors = {tensor.name: tensor for tensor in source.tensors}
    for name, layer in layers_of("autoround-fp8_block").items():
        stored = tensors[f"model.layers.0.{name}.weight"]
        exact = stored.raw().view(np.float16).reshape(stored.shape).astype(np.float64)
        canonical = unpacked(layer)
        ours = canonical.dequantize()
        # Three bits of mantissa: half a step is 2^-4 of a normal value, 2^-10 scales below.
        bound = np.maximum(np.abs(exact) * 2**-4, canonical.spread(canonical.scales) * 2**-10)
        error = np.abs(ours - exact)
        assert (error <= bound * (1 + 1e-6)).all()
        assert error.max() > 0
    source.close()


def test_packing_what_was_unpacked_gives_the_files_bytes(folder: str) -> None:
    for layer in layers_of(folder).values():
        packed = layer.encoding.pack(layer, unpacked(layer))
        assert list(packed) == [layer.encoding.codes_part(layer.parts)]
        for part, values in packed.items():
            assert values.shape == layer.parts[part].shape
            assert values.tobytes() == layer.parts[part].raw().tobytes()


def test_rows_in_slabs_equal_the_whole(folder: str) -> None:
    for layer in layers_of(folder).values():
        whole = weights(layer)
        for size in (1, 100, 128, 1000):
            slabs = [weights(layer, at, at + size) for at in range(0, layer.rows, size)]
            assert_same(np.concatenate(slabs), whole)
        assert weights(layer, 7, 7).shape == (0, layer.columns)
        assert weights(layer, layer.rows, None).shape == (0, layer.columns)


def test_packing_refuses_codes_that_are_not_the_layers() -> None:
    layer = layers_of("llmcompressor-nvfp4a16")["mlp.down_proj"]
    with pytest.raises(ValueError, match="shape"):
        layer.encoding.pack(layer, unpacked(layer, 0, 8))
    wrong = unpacked(layer)
    wrong.codes[3, 4] = 16
    with pytest.raises(ValueError, match="4 bits"):
        layer.encoding.pack(layer, wrong)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (float8("F8_E4M3"), ml_dtypes.float8_e4m3fn),
        (float8("F8_E5M2"), ml_dtypes.float8_e5m2),
        (e8m0(), ml_dtypes.float8_e8m0fnu),
        (e2m1(), ml_dtypes.float4_e2m1fn),
    ],
    ids=["e4m3", "e5m2", "e8m0", "e2m1"],
)
def test_tables_equal_ml_dtypes(ours: np.ndarray, theirs: type) -> None:
    codes = np.arange(ours.size, dtype=np.uint8)
    assert_same(ours, codes.view(theirs).astype(np.float32))


def test_the_ends_of_the_tables() -> None:
    table = float8("F8_E4M3")
    assert table[0x7E] == 448
    assert np.isnan(table[[0x7F, 0xFF]]).all()
    assert e2m1()[:8].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert np.isnan(e8m0()[255])
    assert e8m0()[127] == 1.0  # K9: the byte is an exponent, not a number


def _codes(shape: tuple[int, ...], seed: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def _finite_scales(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(6).integers(1, 0x7F, shape).astype(np.uint8)


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16", "F8_E8M0", "U8"])
def test_ragged_blocks_by_their_definition(tmp_path: Path, name: str, dtype: str) -> None:
    codes = _codes((200, 300))
    small = dtype in {"F8_E8M0", "U8"}
    scales = np.array([[120, 121, 127], [130, 119, 128]]) if small else _ramp((2, 3))
    tensors = {"weight": ("F8_E4M3", codes), name: (dtype, scales)}
    with module_of(tmp_path, **tensors) as module:
        layer = only_layer(module)
        assert (layer.group, layer.group_rows) == (128, 128)
        ours = weights(layer)
        values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        factors = 2.0 ** (scales - 127.0) if small else scales
        expected = np.empty((200, 300), np.float32)
        for row in range(200):
            for column in range(300):
                factor = np.float32(factors[row // 128, column // 128])
                expected[row, column] = values[row, column] * factor
        assert_same(ours, expected)
        assert_same(np.concatenate([weights(layer, 0, 127), weights(layer, 127)]), expected)


def _ramp(shape: tuple[int, ...]) -> np.ndarray:
    """Return scales that every float dtype holds exactly, all different."""
    steps = np.arange(1, int(np.prod(shape)) + 1, dtype=np.float32)
    return (steps * np.float32(0.25)).reshape(shape)


@pytest.mark.parametrize(
    ("scales", "group_rows", "group"),
    [
        (np.float32(0.5), 6, 64),
        (np.full(1, 0.5), 6, 64),
        (np.full((1, 1), 0.5), 6, 64),
        (_ramp((6,)), 1, 64),
        (_ramp((6, 1)), 1, 64),
        (_ramp((6, 2)), 1, 32),
        (_ramp((3, 4)), 2, 16),
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)
@pytest.mark.parametrize("codes", ["F8_E4M3", "F8_E5M2"])
def test_one_scale_a_tensor_channel_group_or_block(
    tmp_path: Path, codes: str, scales: np.ndarray, group_rows: int, group: int
) -> None:
    stored = _codes((6, 64))
    with module_of(tmp_path, weight=(codes, stored), weight_scale=("F32", scales)) as module:
        layer = only_layer(module)
        assert (layer.group_rows, layer.group) == (group_rows, group)
        assert layer.label == {"F8_E4M3": "fp8.e4m3", "F8_E5M2": "fp8.e5m2"}[codes]
        grid = np.asarray(scales, np.float32).reshape(-1, 64 // group)
        factors = np.repeat(np.repeat(grid, group_rows, 0), group, 1)
        theirs = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}[codes]
        with np.errstate(invalid="ignore", over="ignore"):
            expected = stored.view(theirs).astype(np.float32) * factors
        assert_same(weights(layer), expected)
        assert_same(np.concatenate([weights(layer, 0, 5), weights(layer, 5)]), expected)


@pytest.mark.parametrize(
    ("shape", "per_expert"),
    [((), False), ((1,), False), ((3,), True), ((3, 1, 1), True), ((3, 6), True), ((3, 6, 1), True),
     ((3, 2, 2), True)],
)  # fmt: skip
def test_experts_have_scales_of_their_own(
    tmp_path: Path, shape: tuple[int, ...], per_expert: bool
) -> None:
    stored = _codes((3, 6, 64))
    scales = _ramp(shape)
    claim = LayerClaim(method="fp8", quantized=True, block=(4, 32)) if shape == (3, 2, 2) else None
    with module_of(tmp_path, weight=("F8_E4M3", stored), weight_scale=("F32", scales)) as module:
        layer = only_layer(module, claim)
        assert layer.shape == (3, 6, 64)
        values = stored.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        for expert in range(3):
            own = scales[expert] if per_expert else scales
            if shape == (3, 2, 2):
                own = np.repeat(np.repeat(own, 4, 0)[:6], 32, 1)
            else:
                own = np.asarray(own).reshape(-1, 1)
            expected = values[expert] * own
            assert_same(weights(layer, 6 * expert, 6 * expert + 6), expected)
        assert_same(weights(layer, 4, 15), weights(layer)[4:15])


@pytest.mark.parametrize(
    ("shape", "scales", "block", "expected"),
    [
        ((256, 512), (2, 4), None, (128, 128)),
        ((256, 512), (4, 8), None, (64, 64)),
        ((256, 512), (4, 8), (64, 64), (64, 64)),
        ((256, 512), (2, 4), (64, 64), (128, 128)),  # the shapes have the last word
        ((200, 200), (2, 2), (160, 160), (160, 160)),
        ((100, 100), (1, 1), (128, 128), (128, 128)),
        ((100, 100), (1, 1), None, (100, 100)),
        ((100, 300), (1, 3), None, (128, 128)),
        ((100, 300), (1, 3), (112, 112), (112, 112)),
        ((1, 512), (1, 4), (128, 128), (128, 128)),
        ((576, 512), (6, 4), None, (96, 128)),
        ((256, 512), (256, 4), None, (1, 128)),
    ],
)
def test_the_size_of_a_block_follows_from_shapes_first(
    tmp_path: Path,
    shape: tuple[int, int],
    scales: tuple[int, int],
    block: tuple[int, int] | None,
    expected: tuple[int, int],
) -> None:
    claim = LayerClaim(method="fp8", quantized=True, block=block)
    tensors = {"weight": ("F8_E4M3", _codes(shape)), "weight_scale": ("F32", _ramp(scales))}
    with module_of(tmp_path, **tensors) as module:
        layer = only_layer(module, claim)
        assert (layer.group_rows, layer.group) == expected
        assert weights(layer).shape == shape


def _ggml_nvfp4(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Repack pairs to ggml's NVFP4, byte by byte: nibbles (j, j + 8), scale bytes unsigned."""
    rows, half = packed.shape
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(rows, half // 8, 16)
    halves = codes[:, :, :8] | codes[:, :, 8:] << 4
    blocks = np.empty((rows, half // 32, 36), np.uint8)
    blocks[:, :, :4] = (scales & 0x7F).reshape(rows, -1, 4)
    blocks[:, :, 4:] = halves.reshape(rows, -1, 32)
    return blocks.reshape(rows, -1)


def _ggml_mxfp4(packed: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Repack pairs to ggml's MXFP4: the scale byte, then nibbles (j, j + 16)."""
    rows, half = packed.shape
    codes = np.stack([packed & 15, packed >> 4], axis=2).reshape(rows, half // 16, 32)
    blocks = np.empty((rows, half // 16, 17), np.uint8)
    blocks[:, :, 0] = scales
    blocks[:, :, 1:] = codes[:, :, :16] | codes[:, :, 16:] << 4
    return blocks.reshape(rows, -1)


def _by_libgguf(blocks: np.ndarray, number: int, columns: int) -> np.ndarray:
    rows = blocks.shape[0]
    raw = libgguf.dequantize_rows_raw(number, blocks.tobytes(), rows, columns)
    return np.frombuffer(raw, np.float32).reshape(rows, columns)


def _without_signed_zeros(values: np.ndarray) -> np.ndarray:
    # Code 8 is -0; ggml's table of integers has no such thing.
    return values + np.float32(0)


@pytest.mark.parametrize("packing", ["nvfp4.compressed", "nvfp4.modelopt"])
def test_nvfp4_repacked_for_ggml_decodes_to_the_same(tmp_path: Path, packing: str) -> None:
    packed, scales = _codes((8, 64)), _finite_scales((8, 8))
    overall = np.float32(0.0078125)
    names = {
        "nvfp4.compressed": ("weight_packed", "weight_global_scale", np.full(1, 1 / overall)),
        "nvfp4.modelopt": ("weight", "weight_scale_2", np.asarray(overall)),
    }
    held, second, stored = names[packing]
    tensors = {held: ("U8", packed), "weight_scale": ("F8_E4M3", scales), second: ("F32", stored)}
    with module_of(tmp_path, **tensors) as module:
        layer = only_layer(module)
        assert layer.encoding.id == packing
        assert (layer.rows, layer.columns, layer.group) == (8, 128, 16)
        theirs = _by_libgguf(_ggml_nvfp4(packed, scales), NVFP4, 128) * overall
        assert_same(_without_signed_zeros(weights(layer)), _without_signed_zeros(theirs))


def test_nvfp4_of_llmcompressor_repacked_for_ggml_decodes_to_the_same() -> None:
    for layer in layers_of("llmcompressor-nvfp4a16").values():
        blocks = _ggml_nvfp4(layer.array("weight_packed"), layer.array("weight_scale"))
        canonical = unpacked(layer)
        # Without the scale of the tensor, as in GGUF, where that is a tensor of its own.
        bare = float8("F8_E4M3")[layer.array("weight_scale")]
        assert (canonical.scales * layer.floats("weight_global_scale") == bare).mean() > 0.5
        ours = e2m1()[canonical.codes] * bare[:, canonical.groups]
        theirs = _by_libgguf(blocks, NVFP4, layer.columns)
        assert_same(_without_signed_zeros(ours), _without_signed_zeros(theirs))


def test_mxfp4_repacked_for_ggml_decodes_to_the_same() -> None:
    for layer in layers_of("llmcompressor-mxfp4a16").values():
        blocks = _ggml_mxfp4(layer.array("weight_packed"), layer.array("weight_scale"))
        theirs = _by_libgguf(blocks, MXFP4, layer.columns)
        assert_same(_without_signed_zeros(weights(layer)), _without_signed_zeros(theirs))


@pytest.mark.parametrize("parts", [("_blocks", "_scales"), ("blocks", "scales")])
@pytest.mark.parametrize("experts", [None, 3])
def test_gpt_oss_blocks_decode_as_ggml_decodes_them(
    tmp_path: Path, parts: tuple[str, str], experts: int | None
) -> None:
    shape = (4, 2) if experts is None else (experts, 4, 2)
    blocks = _codes((*shape, 16))
    scales = np.random.default_rng(9).integers(100, 140, shape).astype(np.uint8)
    tensors = {parts[0]: ("U8", blocks), parts[1]: ("U8", scales)}
    with module_of(tmp_path, **tensors) as module:
        layer = only_layer(module)
        assert layer.encoding.id == "mxfp4.gpt_oss"
        assert layer.label == "mxfp4"
        assert layer.shape == ((4, 64) if experts is None else (experts, 4, 64))
        rows = _ggml_mxfp4(blocks.reshape(-1, 32), scales.reshape(-1, 2))
        theirs = _by_libgguf(rows, MXFP4, 64)
        assert_same(_without_signed_zeros(weights(layer)), _without_signed_zeros(theirs))
        assert_same(weights(layer, 3, 4), weights(layer)[3:4])
        packed = layer.encoding.pack(layer, unpacked(layer))
        assert packed[parts[0]].tobytes() == blocks.tobytes()


def test_mxfp8_by_its_definition(tmp_path: Path) -> None:
    codes = _codes((4, 96))
    scales = np.random.default_rng(9).integers(100, 140, (4, 3)).astype(np.uint8)
    for dtype in ("U8", "F8_E8M0"):
        tensors = {"weight": ("F8_E4M3", codes), "weight_scale": (dtype, scales)}
        with module_of(tmp_path, **tensors) as module:
            layer = only_layer(module)
            assert (layer.encoding.id, layer.label, layer.group) == (
                "mxfp8.compressed", "mxfp8", 32,
            )  # fmt: skip
            values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
            factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
            assert_same(weights(layer), values * np.repeat(factors, 32, axis=1))
            packed = layer.encoding.pack(layer, unpacked(layer))
            assert packed["weight"].tobytes() == codes.tobytes()


def test_scales_that_are_not_finite_decode_to_what_they_are(tmp_path: Path) -> None:
    codes = np.full((2, 64), 0x38, np.uint8)  # 1.0
    scales = np.array([[np.nan], [np.inf]])
    with module_of(tmp_path, weight=("F8_E4M3", codes), weight_scale=("F32", scales)) as module:
        values = weights(only_layer(module))
        assert np.isnan(values[0]).all()
        assert np.isinf(values[1]).all()
    packed = np.full((1, 16), 0x22, np.uint8)
    exponents = np.array([[255]], np.uint8)
    tensors = {"weight_packed": ("U8", packed), "weight_scale": ("U8", exponents)}
    with module_of(tmp_path, **tensors) as module:
        assert np.isnan(weights(only_layer(module))).all()
    for overall, check in ((np.nan, np.isnan), (0.0, np.isinf), (np.inf, lambda x: x == 0)):
        tensors = {
            "weight_packed": ("U8", packed),
            "weight_scale": ("F8_E4M3", np.full((1, 2), 0x38, np.uint8)),
            "weight_global_scale": ("F32", np.full(1, overall)),
        }
        with module_of(tmp_path, **tensors) as module:
            assert check(weights(only_layer(module))).all()


def test_experts_of_nvfp4_have_scales_of_their_own(tmp_path: Path) -> None:
    packed, scales = _codes((3, 4, 16)), _finite_scales((3, 4, 2))
    overall = np.array([0.5, 2.0, 8.0], np.float32)
    tensors = {
        "weight": ("U8", packed),
        "weight_scale": ("F8_E4M3", scales),
        "weight_scale_2": ("F32", overall),
    }
    with module_of(tmp_path, **tensors) as module:
        layer = only_layer(module)
        assert layer.shape == (3, 4, 32)
        for expert in range(3):
            block = np.repeat(float8("F8_E4M3")[scales[expert]] * overall[expert], 16, axis=1)
            codes = np.stack([packed[expert] & 15, packed[expert] >> 4], axis=2).reshape(4, 32)
            assert_same(weights(layer, 4 * expert, 4 * expert + 4), e2m1()[codes] * block)
