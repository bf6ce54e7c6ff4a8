"""The compiler's own quantizer: every code, scale and zero point it wrote."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qassay.core.errors import UsageError
from qassay.runtimes.sophgo.bfloat16 import bf16_bits, of_bf16
from qassay.runtimes.sophgo.packing import pack, unpack
from qassay.runtimes.sophgo.quantizer import quantize


@pytest.mark.parametrize("case", ["f32_n128_k256", "f32_n16_k256"])
def test_equals_the_compiler(tpu: Any, case: str) -> None:
    found = tpu(f"bm1684x-1.30.2/{case}")
    stored = found.stored("_bm1684x_w4bf16_tpu")
    record = found.mlir("_bm1684x_w4bf16_tpu").named("linear0")
    ours = quantize(found.origin()["weight"].T, group_size=record.q_group_size)
    np.testing.assert_array_equal(ours.stored_codes(), stored["linear0_uint"])
    np.testing.assert_array_equal(ours.stored_scales(), stored["linear0_scale_bf16"])
    np.testing.assert_array_equal(ours.zeros, stored["linear0_zp"])
    assert ours.sign is record.sign


def test_scales_of_a_checkpoint_are_rounded_alike(tpu: Any) -> None:
    found = tpu("bm1684x-1.28.1/w4_n128_k256_g64")
    lowered = found.stored("_bm1684x_w4bf16_tpu")
    np.testing.assert_array_equal(bf16_bits(found.origin()["scales"]), lowered["scales_bf16"])


def test_a_group_of_one_sign_is_destroyed() -> None:
    """Upstream's defect as measured: 0.50 to 0.69 came back as 0.08 to 0.19."""
    weights = np.linspace(0.50, 0.69, 64, dtype=np.float32).reshape(1, 64)
    made = quantize(weights, group_size=64)
    back = made.canonical().dequantize()
    assert made.clipped.all()
    assert made.zeros.tolist() == [[0]]
    assert made.codes.min() == 15
    assert 0.18 < back.max() < 0.20
    mirrored = quantize(-weights, group_size=64)
    assert mirrored.zeros.tolist() == [[15]]
    assert mirrored.codes.max() == 0
    kept = quantize(weights, group_size=64, symmetric=True).canonical().dequantize()
    assert np.abs(kept - weights).max() < 0.05  # half a step of 2 * 0.69 / 15
    assert not quantize(weights, group_size=64, symmetric=True).clipped.any()


def test_formulas_by_hand() -> None:
    weights = np.array([[-1.0, 0.0, 0.5, 2.0]], np.float32)
    asym = quantize(weights, group_size=4)
    assert asym.scales.tolist() == [[np.float32(3) / np.float32(15)]]
    assert asym.zeros.tolist() == [[5]]
    # 0.5 / 0.2f is 2.5 or a hair less; ties go away from zero
    third = 8 if np.float32(0.5) / np.float32(0.2) >= 2.5 else 7
    assert asym.codes.tolist() == [[0, 5, third, 15]]
    sym = quantize(weights, group_size=4, symmetric=True)
    assert sym.scales.tolist() == [[np.float32(4) / np.float32(15)]]
    assert sym.zeros.tolist() == [[8]]
    assert sym.codes.tolist() == [[4, 8, 10, 15]]
    wide = quantize(weights, weight_bits=8, group_size=4)
    assert wide.scales.tolist() == [[np.float32(3) / np.float32(255)]]
    assert wide.zeros.tolist() == [[85]]
    assert wide.codes[0, 0] == 0
    assert wide.codes[0, 3] == 255
    assert quantize(weights, weight_bits=8, group_size=4, symmetric=True).zeros.tolist() == [[128]]


def test_per_channel() -> None:
    weights = np.array([[-1.0, 0.25, 0.5, 1.0], [2.0, 1.0, 0.0, -0.5]], np.float32)
    four = quantize(weights[1:], group_size=0, symmetric=True)
    assert four.zeros.tolist() == [[3]]  # asymmetric, whatever was asked
    eight = quantize(weights, weight_bits=8, group_size=0)
    assert eight.codes.dtype == np.int8
    assert eight.codes.tolist() == [[-127, 32, 64, 127], [127, 64, 0, -32]]
    assert eight.sign
    assert unpack(eight.stored_codes(), 8)[0, 0] == 129
    positive = quantize(np.abs(weights) + 1, weight_bits=8, group_size=0)
    assert positive.codes.dtype == np.uint8
    assert positive.codes.max() == 255
    assert not positive.sign


def test_zeros_and_constants() -> None:
    for symmetric in (False, True):
        made = quantize(np.zeros((2, 8), np.float32), group_size=8, symmetric=symmetric)
        assert not made.canonical().dequantize().any()
    huge = quantize(np.full((1, 8), -1e9, np.float32), group_size=8)
    assert huge.zeros.tolist() == [[0]]  # the conversion to int overflows; 15 would be expected


@pytest.mark.parametrize(
    ("weights", "options"),
    [
        (np.full((2, 8), np.nan, np.float32), {"group_size": 8}),
        (np.full((2, 8), np.inf, np.float32), {"group_size": 8}),
        (np.ones((2, 8), np.float32), {"group_size": 3}),
        (np.ones((2, 8), np.float32), {"group_size": -1}),
        (np.ones((2, 7), np.float32), {"group_size": 7}),
        (np.ones(8, np.float32), {"group_size": 8}),
        (np.ones((0, 8), np.float32), {"group_size": 8}),
        (np.ones((2, 8), np.float32), {"group_size": 8, "weight_bits": 3}),
    ],
)
def test_what_is_refused(weights: Any, options: Any) -> None:
    with pytest.raises(UsageError):
        quantize(weights, **options)


@given(st.integers(0, 10_000), st.sampled_from([4, 8]), st.sampled_from([8, 16, 32]))
def test_two_sided_groups_are_within_half_a_step(seed: int, bits: int, group: int) -> None:
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((3, 32), np.float32)
    weights[:, ::group], weights[:, 1::group] = -0.1, 0.1  # both signs in every group
    made = quantize(weights, weight_bits=bits, group_size=group)
    exact = (made.codes.astype(np.float64) - np.repeat(made.zeros, group, 1)) * np.repeat(
        made.scales.astype(np.float64), group, 1
    )
    steps = np.abs(exact - weights) / np.repeat(made.scales, group, 1)
    assert not made.clipped.any()
    # the zero point is rounded, so that the ends of the range may be half a step further
    assert steps.max() <= 1.001


@given(st.integers(0, 999), st.sampled_from([4, 8]), st.integers(1, 5), st.integers(1, 9))
def test_packing_restores(seed: int, bits: int, n: int, half: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (n, 2 * half)).astype(np.uint8)
    packed = pack(codes, bits)
    np.testing.assert_array_equal(unpack(packed, bits), codes)
    if bits == 4:
        assert packed[0, 0] == codes[0, 0] | codes[0, 1] << 4


def test_packing_refuses() -> None:
    for codes, bits in [
        (np.array([[16, 0]]), 4),
        (np.array([[-1, 0]]), 4),
        (np.array([[1, 2, 3]]), 4),
        (np.array([1, 2]), 4),
        (np.array([[1.0, 2.0]]), 4),
        (np.array([[256, 0]]), 8),
        (np.array([[1, 2]]), 5),
    ]:
        with pytest.raises(UsageError):
            pack(codes, bits)
    with pytest.raises(UsageError):
        unpack(np.zeros((2, 2), np.int32), 4)


def test_bf16_ties_and_nan() -> None:
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0x80000001])
    floats = bits.astype(np.uint32).view(np.float32)
    assert [hex(one) for one in bf16_bits(floats)] == [
        "0x3f80", "0x3f82", "0x3f81", "0x7f80", "0x7fc0", "0x8000",
    ]  # fmt: skip
    with pytest.raises(UsageError):
        of_bf16(np.zeros(2, np.int16))
