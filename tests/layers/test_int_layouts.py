"""Integer families built from known codes by Python integers: every width, layout and option."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from int_cases import NONE, fits, module, only, words_of

from qassay.encodings.layers import LayerClaim, Module
from qassay.encodings.layers.awq import gemv_width

V2 = LayerClaim(method="gptq", format="gptq_v2")
ACTORDER = LayerClaim(method="gptq", act_order=True)


def known(bits: int, rows: int, columns: int, groups: int, seed: int = 0):
    """Return codes [N, K], zero points and scales [N, G]."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (rows, columns))
    zeros = rng.integers(0, 1 << bits, (rows, groups))
    scales = rng.uniform(0.01, 0.02, (rows, groups)).astype(np.float16)
    return codes, zeros, scales


def truth(codes, zeros, scales, groups) -> np.ndarray:
    centred = (codes - zeros[:, groups]).astype(np.float32)
    return centred * scales.astype(np.float32)[:, groups]


def gptq_module(bits, codes, zeros, scales, offset=1, **more) -> Module:
    stored = (zeros.T - offset) % (1 << bits)
    return module(
        qweight=np.ascontiguousarray(words_of(codes.tolist(), bits).T),
        qzeros=words_of(stored.tolist(), bits),
        scales=np.ascontiguousarray(scales.T),
        **more,
    )


def repacks(layer, what: Module) -> None:
    for part, values in layer.encoding.pack(layer, layer.encoding.unpack(layer)).items():
        assert values.shape == what.tensors[part].shape
        assert values.tobytes() == what.tensors[part].raw().tobytes(), part


@pytest.mark.parametrize("offset", [1, 0])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq(bits, offset):
    codes, zeros, scales = known(bits, 96, 256, 4)
    what = gptq_module(bits, codes, zeros, scales, offset)
    layer = only(what, V2 if offset == 0 else NONE)
    assert (layer.label, layer.group, layer.shape) == (f"gptq.int{bits}", 64, (96, 256))
    made = layer.encoding.unpack(layer)
    assert np.array_equal(made.codes, codes)
    assert np.array_equal(made.zeros, zeros)
    assert np.array_equal(made.dequantize(), truth(codes, zeros, scales, np.arange(256) // 64))
    repacks(layer, what)


def test_the_label_v2_on_a_v1_file_moves_every_zero_point_by_one():
    codes, zeros, scales = known(4, 32, 128, 2)
    what = gptq_module(4, codes, zeros, scales, offset=1)
    layer = only(what, V2)
    assert np.array_equal(layer.encoding.unpack(layer).zeros, (zeros - 1) % 16)


@pytest.mark.parametrize(
    ("claim", "offset"),
    [
        (LayerClaim(method="gptq"), 1),
        (LayerClaim(method="gptq", format="gptq"), 1),
        (LayerClaim(method="gptq", format="gptq_v2"), 0),
        (LayerClaim(method="auto-round", format="auto_round:auto_gptq"), 1),
        (LayerClaim(method="auto-round", format="auto_round:gptq"), 1),
        (LayerClaim(method="auto-round", format="auto_round:gptqmodel"), 0),
        (LayerClaim(method="auto-round", format="auto_round"), 0),
        (LayerClaim(method="awq", format="gemm"), 1),
        (LayerClaim(method="something"), 1),
    ],
)
def test_which_zero_points_a_configuration_means(claim, offset):
    codes, zeros, scales = known(4, 32, 128, 2)
    assert only(gptq_module(4, codes, zeros, scales), claim).options == {"zero_offset": offset}


def test_a_stored_15_is_a_zero_point_of_0():
    codes, zeros, scales = known(4, 32, 64, 1)
    what = gptq_module(4, codes, np.zeros_like(zeros), scales)
    assert (what.tensors["qzeros"].raw() == 0xFF).all()
    layer = only(what)
    assert not layer.encoding.unpack(layer).zeros.any()
    repacks(layer, what)


def test_act_order_and_indexes_that_name_no_group():
    codes, zeros, scales = known(4, 32, 128, 4)
    index = np.random.default_rng(1).permutation(np.arange(128) // 32).astype(np.int32)
    layer = only(gptq_module(4, codes, zeros, scales, g_idx=index), ACTORDER)
    made = layer.encoding.unpack(layer)
    assert np.array_equal(made.dequantize(), truth(codes, zeros, scales, index))

    wrong = index.copy()
    wrong[[3, 5, 9]] = [-1, 4, 2**31 - 1]
    what = gptq_module(4, codes, zeros, scales, g_idx=wrong)
    layer = only(what, ACTORDER)
    values = layer.encoding.unpack(layer, 8, 24).dequantize()
    bad = np.zeros(128, bool)
    bad[[3, 5, 9]] = True
    assert np.isnan(values[:, bad]).all()
    assert np.array_equal(values[:, ~bad], truth(codes, zeros, scales, index)[8:24, ~bad])
    repacks(layer, what)


def test_a_last_group_that_is_short_needs_the_configurations_word():
    codes, zeros, scales = known(4, 32, 160, 3)
    what = gptq_module(4, codes, zeros, scales)
    layer = only(what, LayerClaim(method="gptq", group_size=64))
    assert (layer.group, layer.groups) == (64, 3)
    made = layer.encoding.unpack(layer)
    assert np.array_equal(made.dequantize(), truth(codes, zeros, scales, np.arange(160) // 64))
    assert fits(what)["gptq"].layer is None
    assert fits(what)["gptq"].defects
    # A size that does not give three groups decides nothing.
    assert fits(what, LayerClaim(method="gptq", group_size=32))["gptq"].layer is None


def test_one_group_for_all():
    codes, zeros, scales = known(8, 64, 96, 1)
    for size in (None, -1, 128):
        layer = only(gptq_module(8, codes, zeros, scales), LayerClaim("gptq", group_size=size))
        assert (layer.group, layer.bits) == (96, 8)


@pytest.mark.parametrize("bits", [5, 6, 7])
def test_widths_that_gptq_packs_in_planes_are_not_read(bits):
    codes, zeros, scales = known(bits, 32, 64, 2)
    fit = fits(gptq_module(bits, codes, zeros, scales), LayerClaim("gptq"))["gptq"]
    assert (fit.layer, fit.defects) == (None, ())
    assert "planes" in fit.reason


def awq_words(codes: np.ndarray) -> np.ndarray:
    """Return [rows, N] codes as AWQ GEMM words, one code at a time."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    rows, count = codes.shape
    words = [
        [sum(int(codes[r, 8 * w + order[i]]) << 4 * i for i in range(8)) for w in range(count // 8)]
        for r in range(rows)
    ]
    return np.array(words, np.uint32).view(np.int32)


def test_awq_gemm():
    codes, zeros, scales = known(4, 40, 96, 3)
    what = module(
        qweight=awq_words(codes.T), qzeros=awq_words(zeros.T), scales=np.ascontiguousarray(scales.T)
    )
    layer = only(what)
    assert (layer.label, layer.group, layer.shape) == ("awq.int4", 32, (40, 96))
    made = layer.encoding.unpack(layer)
    assert np.array_equal(made.codes, codes)
    assert np.array_equal(made.zeros, zeros)
    assert np.array_equal(made.dequantize(), truth(codes, zeros, scales, np.arange(96) // 32))
    assert np.array_equal(layer.encoding.unpack(layer, 5, 19).codes, codes[5:19])
    repacks(layer, what)


def gemv_module(codes, zeros, scales, group) -> Module:
    width = gemv_width(codes.shape[1], group)
    padded = np.zeros((len(codes), 8 * width), int)
    padded[:, : zeros.shape[1]] = zeros
    wide = np.zeros((len(codes), 8 * width), np.float16)
    wide[:, : zeros.shape[1]] = scales
    return module(
        qweight=words_of(codes.tolist(), 4), qzeros=words_of(padded.tolist(), 4), scales=wide
    )


@pytest.mark.parametrize("group", [32, 64, 128])
def test_awq_gemv(group):
    codes, zeros, scales = known(4, 24, 1280, 1280 // group)
    what = gemv_module(codes, zeros, scales, group)
    layer = only(what, LayerClaim(method="awq", format="gemv", group_size=group))
    assert (layer.label, layer.group, layer.shape) == ("awq.gemv.int4", group, (24, 1280))
    made = layer.encoding.unpack(layer, 3, 20)
    expected = truth(codes, zeros, scales, np.arange(1280) // group)
    assert np.array_equal(made.dequantize(), expected[3:20])
    repacks(layer, what)


def test_widths_of_gemv_zero_points():
    # calculate_zeros_width of AutoAWQ, by hand: 4096 inputs in groups of 128, 64 and 32 are 32,
    # 64 and 128 groups, 4, 8 and 16 words; 11008 are 86, 172 and 344 groups, 11, 22 and 43 words,
    # the last rounded up to 44.
    assert [gemv_width(4096, size) for size in (128, 64, 32)] == [4, 8, 16]
    assert [gemv_width(11008, size) for size in (128, 64, 32)] == [11, 22, 44]
    assert [gemv_width(256, size) for size in (128, 64, 32)] == [1, 2, 4]


def test_gemv_without_a_word_of_the_group_size():
    # 256 inputs: two words are groups of 64 and nothing else.
    codes, zeros, scales = known(4, 24, 256, 4)
    assert only(gemv_module(codes, zeros, scales, 64)).group == 64
    # 4608 inputs: one word too many for 128 (5), 9 words for 64 are rounded up to 10.
    codes, zeros, scales = known(4, 8, 4608, 72)
    assert only(gemv_module(codes, zeros, scales, 64)).group == 64


@settings(max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("bits", range(1, 9))
def test_pack_quantized(bits, data):
    rows, groups = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 4))
    columns = groups * data.draw(st.integers(12, 50))
    codes, zeros, scales = known(bits, rows, columns, groups)
    scales = scales.astype(np.float32)
    symmetric = data.draw(st.booleans())
    parts = {
        "weight_packed": words_of(codes.tolist(), bits),
        "weight_scale": scales,
        "weight_shape": np.array([rows, columns]),
    }
    if symmetric:
        zeros = np.full_like(zeros, 1 << (bits - 1))
    else:
        parts["weight_zero_point"] = np.ascontiguousarray(words_of(zeros.T.tolist(), bits).T)
    what = module(**parts)
    fit = fits(what, LayerClaim("compressed-tensors", "pack-quantized", bits=bits))
    if bits in (3, 5, 6, 7) and fit["compressed.pack"].reason:
        return  # so few columns that the older layout has the same size
    layer = only(what, LayerClaim("compressed-tensors", "pack-quantized", bits=bits))
    assert (layer.bits, layer.rows, layer.columns) == (bits, rows, columns)
    made = layer.encoding.unpack(layer)
    assert np.array_equal(made.codes, codes)
    expected = truth(codes, zeros, scales, np.arange(columns) // (columns // groups))
    assert np.array_equal(made.dequantize(), expected)
    start = data.draw(st.integers(0, rows))
    assert np.array_equal(layer.encoding.unpack(layer, start).dequantize(), expected[start:])
    repacks(layer, what)


@pytest.mark.parametrize("bits", range(1, 9))
def test_widths_are_told_by_the_size_alone(bits):
    codes, _, scales = known(bits, 8, 512, 4)
    layer = only(
        module(
            weight_packed=words_of(codes.tolist(), bits),
            weight_scale=scales,
            weight_shape=np.array([8, 512], np.int64),
        )
    )
    assert layer.label == f"compressed.pack.int{bits}"


@pytest.mark.parametrize("bits", [3, 5, 6, 7])
def test_widths_packed_word_by_word_are_not_read(bits):
    each = 32 // bits
    codes, _, scales = known(bits, 8, 480, 4)
    words = np.zeros((8, -(-480 // each)), np.uint32)
    for column in range(480):
        shift = np.uint32(bits * (column % each))
        words[:, column // each] |= codes[:, column].astype(np.uint32) << shift
    what = module(
        weight_packed=words.view(np.int32), weight_scale=scales, weight_shape=np.array([8, 480])
    )
    fit = fits(what, LayerClaim("compressed-tensors", "pack-quantized", bits=bits))
    assert fit["compressed.pack"].layer is None
    assert "word by word" in fit["compressed.pack"].reason
    assert fit["compressed.pack"].defects == ()


def test_old_zero_points_are_signed_bytes():
    codes, zeros, scales = known(4, 16, 64, 2)
    what = module(
        weight_packed=words_of(codes.tolist(), 4),
        weight_scale=scales,
        weight_shape=np.array([16, 64]),
        weight_zero_point=(zeros - 8).astype(np.int8),
    )
    layer = only(what)
    assert np.array_equal(layer.encoding.unpack(layer).zeros, zeros)
    repacks(layer, what)


def test_an_index_of_groups_and_one_that_was_never_set():
    codes, zeros, scales = known(4, 32, 64, 4)
    parts = {
        "weight_packed": words_of(codes.tolist(), 4),
        "weight_scale": scales,
        "weight_shape": np.array([32, 64]),
        "weight_zero_point": np.ascontiguousarray(words_of(zeros.T.tolist(), 4).T),
    }
    order = np.random.default_rng(2).permutation(np.arange(64) // 16).astype(np.int32)
    unset = np.full(64, -1, np.int32)
    beyond = order.copy()
    beyond[7] = 4
    for index, groups in ((order, order), (unset, np.arange(64) // 16)):
        layer = only(module(**parts, weight_g_idx=index))
        expected = truth(codes, zeros, scales, groups)
        assert np.array_equal(layer.encoding.unpack(layer).dequantize(), expected)
    what = module(**parts, weight_g_idx=beyond)
    layer = only(what)
    values = layer.encoding.unpack(layer).dequantize()
    assert np.isnan(values).any(axis=0).nonzero()[0].tolist() == [7]
    repacks(layer, what)


INT8 = [  # shape of scales, rows and columns that share one
    ((), 48, 64),
    ((1,), 48, 64),
    ((1, 1), 48, 64),
    ((48, 1), 1, 64),
    ((48,), 1, 64),
    ((48, 4), 1, 16),
    ((3, 4), 16, 16),
]


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize(("shape", "tall", "wide"), INT8)
def test_int8(shape, tall, wide, asymmetric):
    rng = np.random.default_rng(3)
    codes = rng.integers(-128, 128, (48, 64), dtype=np.int8)
    scales = rng.uniform(0.01, 0.02, shape).astype(np.float16)
    zeros = np.asarray(rng.integers(-128, 128, shape), np.int8)
    more = {"weight_zero_point": zeros} if asymmetric else {}
    what = module(weight=codes, weight_scale=np.asarray(scales), **more)
    layer = only(what)
    assert (layer.label, layer.group_rows, layer.group) == ("compressed.int.int8", tall, wide)
    grid = (48 // tall, 64 // wide)
    spread = [np.kron(np.reshape(each, grid), np.ones((tall, wide))) for each in (scales, zeros)]
    centred = codes.astype(np.float32) - (spread[1] if asymmetric else 0)
    expected = centred.astype(np.float32) * spread[0].astype(np.float32)
    assert np.array_equal(layer.encoding.unpack(layer).dequantize(), expected)
    for start, stop in ((0, 7), (5, 40), (15, 17), (48, 48), (0, 0)):
        slab = layer.encoding.unpack(layer, start, stop)
        assert np.array_equal(slab.dequantize(), expected[start:stop])
    repacks(layer, what)


def test_narrow_codes_in_bytes_and_short_blocks_by_the_configurations_word():
    codes = np.zeros((40, 72), np.int8)
    what = module(weight=codes, weight_scale=np.ones((3, 5), np.float32))
    claim = LayerClaim("compressed-tensors", "naive-quantized", bits=4, block=(16, 16))
    layer = only(what, claim)
    assert (layer.bits, layer.group_rows, layer.group, layer.groups) == (4, 16, 16, 5)
    made = layer.encoding.unpack(layer, 30, 40)
    assert made.scales.shape == (2, 5)
    assert made.row_groups.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    assert fits(what)["compressed.int"].layer is None


def test_activation_scales_belong_to_the_layer():
    scale = np.ones(1, np.float16)
    what = module(
        weight=np.ones((8, 8), np.int8),
        weight_scale=np.ones((8, 1), np.float16),
        input_scale=scale,
        input_zero_point=np.zeros(1, np.int8),
    )
    assert {"input_scale", "input_zero_point"} <= set(only(what).parts)
