"""Every output that a cmodel or the compiler's CPU inference gave, bit for bit; and padding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from qassay.core.errors import UsageError
from qassay.runtimes.sophgo.arithmetic import (
    Model,
    dequantized,
    every_model,
    linear,
    model_of,
    multiply,
)
from qassay.runtimes.sophgo.bfloat16 import bf16, bf16_bits
from qassay.runtimes.sophgo.packing import pack, unpack
from qassay.runtimes.sophgo.padding import Linear, crop, differences, pad, pad_floats

DEVICE_CASES = [
    # case, chip, version, model, operation
    ("bm1684x-1.28.1/w4_n128_k256_g64", "bm1684x", "1.28.1", Model.DEVICE, "A16MatMul"),
    ("bm1684x-1.28.1/w4_n192_k256_g128", "bm1684x", "1.28.1", Model.DEVICE, "A16MatMul"),
    ("bm1684x-1.28.1/w8_n128_k256_g64", "bm1684x", "1.28.1", Model.DEVICE, "A16MatMul"),
    ("bm1684x-1.30.2/w4_n64_k256_g64", "bm1684x", "1.30.2", Model.DEVICE, "A16MatMul"),
    ("bm1684x-1.30.2/w4_n16pad64_k256_g64", "bm1684x", "1.30.2", Model.DEVICE, "A16MatMul"),
    ("bm1684x-1.30.2/w4_n96pad128_k256_g64", "bm1684x", "1.30.2", Model.DEVICE, "A16MatMul"),
    ("bm1684x-1.30.2/f32_n128_k256", "bm1684x", "1.30.2", Model.DEVICE, "A16MatMul"),
    ("bm1684x-1.30.2/f32_n16_k256", "bm1684x", "1.30.2", Model.DEVICE, "MatMul"),
    ("bm1684x-1.30.2/w4_n16_k256_g64", "bm1684x", "1.30.2", Model.DEVICE, "MatMul"),
    ("bm1684x-1.30.2/w4_n96_k256_g64", "bm1684x", "1.30.2", Model.DEVICE, "MatMul"),
    ("bm1688-1.30.2/w4_n16_k256_g64", "bm1688", "1.30.2", Model.ONE, "MatMul"),
]
HOST_CASES = [
    *(one[0] for one in DEVICE_CASES if not one[0].startswith("bm1688")),
    "bm1684x-1.28.1/w4_n96_k256_g64",
    "bm1684x-1.28.1/w4_n16_k256_g64",
]


def bits_of(values: Any) -> Any:
    return np.ascontiguousarray(values, np.float32).view(np.uint32)


@pytest.mark.parametrize(("case", "chip", "version", "model", "operation"), DEVICE_CASES)
def test_the_device(
    tpu: Any, case: str, chip: str, version: str, model: Model, operation: str
) -> None:
    found = tpu(case)
    codes, scales, zeros, bias = found.quantized()
    said = model_of(chip, version, n=codes.shape[0], weight_bits=found.bits)
    assert said is not None
    assert (said.model, said.operation) == (model, operation)
    x, y = found.array("in", "in0"), found.array("dev", "linear0_f32")
    ours = linear(x, codes, scales, zeros, bias, model=said.model)
    np.testing.assert_array_equal(bits_of(ours), bits_of(y))
    others = set(every_model(found.bits)) - {said.model}
    if bias is None:
        others.discard(Model.ONE)  # without bias the same as DEVICE
    for other in others:
        wrong = linear(x, codes, scales, zeros, bias, model=other)
        assert (bits_of(wrong) != bits_of(y)).mean() > 0.05


@pytest.mark.parametrize("case", HOST_CASES)
def test_the_host(tpu: Any, case: str) -> None:
    found = tpu(case)
    codes, scales, zeros, bias = found.quantized()
    said = model_of("bm1684x", n=codes.shape[0], weight_bits=found.bits, where="host")
    assert said is not None
    x, y = found.array("in", "in0"), found.array("host", "linear0_f32")
    ours = linear(x, codes, scales, zeros, bias, model=said.model)
    np.testing.assert_array_equal(bits_of(ours), bits_of(y))
    np.testing.assert_array_equal(bf16(x), found.array("host", "in0linear0_bf16"))


@pytest.mark.parametrize(
    ("chip", "folder"), [("bm1684x", "bm1684x-1.30.2"), ("bm1688", "bm1688-1.30.2")]
)
def test_the_weight_of_a_fall_back(tpu: Any, chip: str, folder: str) -> None:
    found = tpu(f"{folder}/w4_n16_k256_g64")
    codes, scales, zeros, bias = found.quantized()
    stored = found.stored(f"_{chip}_w4bf16_final")
    weight = bf16_bits(dequantized(codes, scales, zeros)).T
    np.testing.assert_array_equal(stored["linear0_dequant_bf16"][0], weight)
    kept = stored.get("bias_bf16_f32")
    if chip == "bm1688":
        np.testing.assert_array_equal(kept, bf16(bias))
    else:
        np.testing.assert_array_equal(stored["bias_bf16"], bf16_bits(bias))


def original(found: Any) -> Linear:
    codes, scales, zeros, bias = found.quantized()
    return Linear(codes, scales, zeros, bias, found.bits)


@pytest.mark.parametrize(
    ("case", "padded"),
    [("w4_n16_k256_g64", "w4_n16pad64_k256_g64"), ("w4_n96_k256_g64", "w4_n96pad128_k256_g64")],
)
def test_padding_equals_the_padded_fixtures(tpu: Any, case: str, padded: str) -> None:
    small, large = tpu(f"bm1684x-1.30.2/{case}"), tpu(f"bm1684x-1.30.2/{padded}").origin()
    before = original(small)
    made = pad(before, 64)
    np.testing.assert_array_equal(pack(made.codes, 4), large["qweight"])
    np.testing.assert_array_equal(made.scales, large["scales"])
    np.testing.assert_array_equal(made.zeros, large["qzeros"])
    np.testing.assert_array_equal(made.bias, large["bias"])
    assert differences(before, made) == []
    # the crop of what 1.30.2 computes from it is what its fall-back computes, and the rest is 0
    outputs = tpu(f"bm1684x-1.30.2/{padded}").array("dev", "linear0_f32")
    np.testing.assert_array_equal(crop(outputs, before.n), small.array("dev", "linear0_f32"))
    assert not outputs[..., before.n :].any()


def test_1_28_1_computes_the_padded_one_alike(tpu: Any) -> None:
    outputs = tpu("bm1684x-1.28.1/w4_n16pad64_k256_g64").array("dev", "linear0_f32")
    fall_back = tpu("bm1684x-1.30.2/w4_n16_k256_g64").array("dev", "linear0_f32")
    np.testing.assert_array_equal(crop(outputs, 16), fall_back)


def test_padding_that_is_not_sound_is_seen(tpu: Any) -> None:
    before = original(tpu("bm1684x-1.30.2/w4_n16_k256_g64"))
    made = pad(before, 64)
    codes, scales, bias = made.codes.copy(), made.scales.copy(), np.array(made.bias)
    codes[16:] = 0  # zero bytes are not zero weights
    found = differences(before, replace(made, codes=codes))
    assert [one.what for one in found] == ["padding", "outputs"]
    assert found[0].count == 48 * 256
    scales[3, 2] *= 2
    assert "weights" in [one.what for one in differences(before, replace(made, scales=scales))]
    bias[..., 20] = 1
    assert [one.what for one in differences(before, replace(made, bias=bias))] == ["bias"]
    assert [one.what for one in differences(before, replace(made, bias=None))] == ["bias"]
    other = pad(before, 64, zero=0)
    assert not other.codes[16:].any()
    assert differences(before, other) == []
    assert pad(made, 64) is made


def test_padding_of_floats_and_what_is_refused(tpu: Any) -> None:
    weight = np.ones((3, 4), np.float16)
    assert pad_floats(weight, 4).shape == (4, 4)
    assert not pad_floats(weight, 4)[3].any()
    before = original(tpu("bm1684x-1.30.2/w4_n16_k256_g64"))
    for options in ({"zero": 16}, {"zero": -1}, {"scale": 0.0}, {"scale": 1e39}, {"scale": np.nan}):
        with pytest.raises(UsageError):
            pad(before, 64, **options)
    with pytest.raises(UsageError):
        crop(np.zeros((1, 3)), 4)


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(UsageError):
        multiply(np.ones(3), np.ones((2, 4)), model=Model.HOST)
    with pytest.raises(UsageError):
        multiply(np.ones(4), np.ones((2, 4)), np.ones(3), model=Model.HOST)
    with pytest.raises(UsageError):
        dequantized(np.ones((2, 5), np.uint8), np.ones((2, 2)), np.ones((2, 2), np.uint8))


def test_where_nothing_is_known() -> None:
    assert model_of("bm1684x", "1.28.1", n=16) is None  # aborts
    assert model_of("bm1690", "1.30.2", n=16) is None  # falls back, arithmetic never seen
    likely = model_of("cv184x", "1.30.2", n=16)
    assert likely is not None
    assert likely.certainty.value == "likely"
    with pytest.raises(UsageError):
        model_of("bm1684", n=64)


def test_unpacked_codes_are_those_of_the_fixture(tpu: Any) -> None:
    stored = tpu("bm1684x-1.28.1/w8_n128_k256_g64").stored("_bm1684x_w8bf16_tpu")
    origin = tpu("bm1684x-1.28.1/w8_n128_k256_g64").origin()
    # its npz calls them int8; the type in the text says ui8
    assert stored["linear0_weight"].dtype == np.uint8
    np.testing.assert_array_equal(unpack(stored["linear0_weight"], 8), origin["qweight"])
