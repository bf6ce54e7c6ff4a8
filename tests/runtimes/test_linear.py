"""How runtimes compute a Linear: products by C, and a NaN that one path hides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qassay.core.errors import UsageError
from qassay.encodings import by_id
from qassay.runtimes.arithmetic_activations import q8_0, q8_1, q8_k
from qassay.runtimes.arithmetic_products import CANDLE, GGML
from qassay.runtimes.linear import PATHS, Matrix, linear
from qassay.runtimes.registry import engine

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
ROWS = np.load(FIXTURES / "ggml_quantize.npz")
PRODUCTS = np.load(FIXTURES / "ggml_vec_dot.npz")
RUST = np.load(FIXTURES / "rust_candle_formulas.npz")
TYPES = [name[:-3] for name in PRODUCTS.files if name.endswith("__w")]


def f16_bits(values: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float16).view(np.uint16)


def test_q8_0_activations_are_ggmls() -> None:
    held = q8_0(ROWS["x"], program="ggml")
    theirs = ROWS["Q8_0__avx2"].reshape(-1, 8, 34)
    assert np.array_equal(theirs[..., 2:].view(np.int8), held.codes)
    assert np.array_equal(
        np.ascontiguousarray(theirs[..., :2]).view("<u2")[..., 0], f16_bits(held.scale)
    )


def test_q8_1_activations_are_ggmls() -> None:
    held = q8_1(ROWS["x"], program="ggml")
    theirs = ROWS["Q8_1__avx2"].reshape(-1, 8, 36)
    numbers = np.ascontiguousarray(theirs[..., :4]).view("<u2")
    assert np.array_equal(theirs[..., 4:].view(np.int8), held.codes)
    assert np.array_equal(numbers[..., 0], f16_bits(held.scale))
    assert held.sums is not None
    assert np.array_equal(numbers[..., 1], f16_bits(held.sums))


@pytest.mark.parametrize("column", ["Q8_K__ref", "Q8_K__avx2"])
def test_q8_k_activations_are_ggmls(column: str) -> None:
    held = q8_k(ROWS["x"], program="ggml")
    theirs = ROWS[column]
    assert np.array_equal(theirs[:, 4:260].view(np.int8), held.codes[:, 0])
    scale = np.ascontiguousarray(theirs[:, :4]).view("<u4")
    assert np.array_equal(scale, held.scale.view(np.uint32))
    assert held.sums is not None
    assert np.array_equal(np.ascontiguousarray(theirs[:, 260:]).view("<i2"), held.sums[:, 0])


def test_q8_k_activations_of_candle_are_rusts() -> None:
    """The Rust program runs the formula over 32 values; the rest of the 256 are zero."""
    x = np.zeros((RUST["x"].shape[0], 256), np.float32)
    x[:, :32] = RUST["x"].view(np.float32)
    held = q8_k(x, program="candle")
    assert np.array_equal(RUST["q8_k__q"].view(np.int8), held.codes[:, 0, :32])
    assert np.array_equal(RUST["q8_k__d"], held.scale[:, 0].view(np.uint32))


@pytest.mark.parametrize("kind", TYPES)
def test_products_equal_ggmls_bit_for_bit(kind: str) -> None:
    raw = PRODUCTS[f"{kind}__w"]
    found = linear(PRODUCTS["x"], (raw, kind, (raw.shape[0], 512)), on="ggml:cpu")
    assert np.array_equal(found.view(np.uint32), PRODUCTS[f"{kind}__y"].view(np.uint32))


def test_every_ggml_product_has_a_golden_one() -> None:
    assert sorted(f"ggml.{kind}" for kind in TYPES) == sorted(GGML)


@pytest.mark.parametrize("encoding", CANDLE)
def test_candles_products_differ_from_ggmls_only_as_their_activations_do(encoding: str) -> None:
    kind = encoding.rpartition(".")[2]
    raw = PRODUCTS[f"{kind}__w"]
    weight = Matrix(raw, by_id(kind), (raw.shape[0], 512))
    x = PRODUCTS["x"]
    exact = x.astype(np.float64) @ weight.values().T.astype(np.float64)
    found = linear(x, weight, on="candle:cpu")
    # Codes are off by half a step at most (Q8_K: 1/128 of the largest at the clipped end).
    amax = np.abs(x.reshape(5, 2, 256)).max(axis=2).repeat(256, axis=1)
    room = (amax / 120) @ np.abs(weight.values().T)
    assert (np.abs(found - exact) < room).all()


class TestNaN:
    """Weight (4, 64), a NaN as input element 1: the first write-up's product."""

    RNG = np.random.default_rng(9)
    FLOATS = RNG.normal(0, 0.1, (4, 64)).astype(np.float32)
    X = RNG.normal(0, 1, 64).astype(np.float32)
    X[1] = np.nan
    WEIGHT = Matrix(engine("candle").quantize(FLOATS, "q8_0"), by_id("q8_0"), (4, 64))

    def test_candles_cpu_path_hides_it(self) -> None:
        found = linear(self.X, self.WEIGHT, on="candle:cpu")
        assert found.shape == (1, 4)
        assert np.isfinite(found).all()
        without = np.where(np.isnan(self.X), np.float32(0), self.X)
        assert np.array_equal(found, linear(without, self.WEIGHT, on="candle:cpu"))

    @pytest.mark.parametrize("path", ["candle:metal", "candle:dequantize-all"])
    def test_the_others_show_it(self, path: str) -> None:
        assert np.isnan(linear(self.X, self.WEIGHT, on=path)).all()

    def test_ggmls_cpu_path_takes_it_for_the_most_negative_code(self) -> None:
        found = linear(self.X, self.WEIGHT, on="ggml:cpu")
        assert np.isfinite(found).all()
        lowest = np.nanmax(np.abs(self.X[:32])) * -128 / 127
        instead = np.where(np.isnan(self.X), np.float32(lowest), self.X)
        expected = instead @ self.WEIGHT.values().T
        assert np.allclose(found, expected, atol=0.02)

    def test_float_weights_show_it_everywhere(self) -> None:
        for path in PATHS:
            assert np.isnan(linear(self.X, self.FLOATS, on=path)).all()

    @pytest.mark.parametrize("path", PATHS)
    def test_without_it_all_paths_agree(self, path: str) -> None:
        x = np.nan_to_num(self.X)
        assert np.allclose(linear(x, self.WEIGHT, on=path), x @ self.FLOATS.T, atol=0.02)

    def test_candles_k_quants_take_it_for_the_largest_code(self) -> None:
        x = np.zeros((1, 256), np.float32)
        x[0, :2] = 1, np.nan
        held = q8_k(x, program="candle")
        assert list(held.codes[0, 0, :2]) == [-128, 127]
        assert q8_k(x, program="ggml").codes[0, 0, 1] == 0

    def test_ggmls_q8_1_sum_turns_infinite(self) -> None:
        raw = engine("candle").quantize(self.FLOATS, "q4_1")
        found = linear(self.X, (raw, "q4_1", (4, 64)), on="ggml:cpu")
        assert not np.isfinite(found).any()
        assert np.isfinite(linear(self.X, (raw, "q4_1", (4, 64)), on="candle:cpu")).all()


class TestSumField:
    """Q8_1's sum is f16: 32 equal activations of 2,048 overflow it."""

    def sums(self, value: float, program: str) -> float:
        held = q8_1(np.full((1, 32), value, np.float32), program=program)
        assert held.sums is not None
        return float(held.sums[0, 0])

    def test_ggml(self) -> None:
        assert self.sums(2047, "ggml") == 65504
        assert self.sums(2048, "ggml") == np.inf

    def test_candle_multiplies_two_f16_numbers_and_overflows_a_little_earlier(self) -> None:
        """d = 2047/127 rounds up to 16.125 in f16, and 16.125 * 4064 = 65532."""
        assert self.sums(2046, "candle") == 65472
        assert self.sums(2047, "candle") == np.inf

    def test_the_output_is_infinite(self) -> None:
        raw = engine("candle").quantize(np.linspace(-1, 2, 128).reshape(2, 64), "q4_1")
        x = np.full((1, 64), 2048, np.float32)
        assert not np.isfinite(linear(x, (raw, "q4_1", (2, 64)), on="ggml:cpu")).any()
        assert np.isfinite(linear(x / 2, (raw, "q4_1", (2, 64)), on="ggml:cpu")).all()
        assert np.isfinite(linear(x, (raw, "q4_1", (2, 64)), on="candle:metal")).all()


def test_f16_weights_meet_f16_activations_in_ggml_and_not_in_candle() -> None:
    weight = Matrix(engine("gguf-py").quantize(np.ones((2, 4)), "f16"), by_id("f16"), (2, 4))
    x = np.full((1, 4), 70000, np.float32)
    assert np.isinf(linear(x, weight, on="ggml:cpu")).all()
    assert (linear(x, weight, on="candle:cpu") == 280000).all()
    narrow = Matrix(engine("gguf-py").quantize(np.ones((2, 4)), "bf16"), by_id("bf16"), (2, 4))
    assert (linear(x, narrow, on="ggml:cpu") == 4 * 70144).all()


def test_shapes_paths_and_types_are_checked() -> None:
    x, raw = np.ones((1, 64), np.float32), np.zeros(2 * 36, np.uint8)
    with pytest.raises(UsageError, match="no such path"):
        linear(x, x, on="cuda")
    with pytest.raises(UsageError, match="do not fit"):
        linear(x, np.ones((4, 32), np.float32), on="ggml:cpu")
    with pytest.raises(UsageError, match=r"no ggml\.q4_0 matrix"):
        linear(x, (raw[:-1], "q4_0", (2, 64)), on="ggml:cpu")
    with pytest.raises(UsageError, match=r"no ggml\.q4_0 matrix"):
        Matrix(raw, by_id("q4_0"), (2, 63))
    with pytest.raises(UsageError, match="has no product"):
        linear(x, (np.zeros(68, np.uint8), "mxfp4", (2, 64)), on="candle:cpu")
    odd = np.zeros(2 * 60, np.uint8)
    with pytest.raises(UsageError, match="odd number of blocks"):
        linear(np.ones((1, 96)), (odd, "q4_1", (2, 96)), on="candle:cpu")
    assert not linear(np.ones((1, 96)), (odd, "q4_1", (2, 96)), on="ggml:cpu").any()


@settings(max_examples=40, deadline=None)
@given(
    x=hnp.arrays(np.uint32, (2, 256)),
    raw=hnp.arrays(np.uint8, 2 * 210),
    kind=st.sampled_from(sorted(GGML)),
    path=st.sampled_from(PATHS),
)
def test_no_product_fails_on_any_bits(x: np.ndarray, raw: np.ndarray, kind: str, path: str) -> None:
    encoding = by_id(kind)
    size = 256 // encoding.block * encoding.block_bytes
    matrix = Matrix(np.resize(raw, 2 * size), encoding, (2, 256))
    if path == "candle:cpu" and kind not in CANDLE:
        return
    found = linear(x.view(np.float32), matrix, on=path)
    assert (found.shape, found.dtype) == ((2, 2), np.float32)
