"""The scale-storage experiment and the rounding profile."""

from __future__ import annotations

import gguf
import libgguf
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qassay.core.errors import UsageError
from qassay.runtimes.arithmetic import halves_truncated
from qassay.runtimes.arithmetic_rounding import RoundingProfile, rounding_profile
from qassay.runtimes.registry import engine
from qassay.runtimes.scale_storage import CODES_FROM, ROUNDINGS, Scheme, Trial, compare, worked
from qassay.runtimes.scale_storage_formats import DEFAULT, storage

WEIGHTS = np.random.default_rng(1).normal(0, 0.05, (40, 512)).astype(np.float32)


def scales() -> np.ndarray:
    """Return positive numbers of every size, with the ties of every format among them."""
    rng = np.random.default_rng(4)
    bits = rng.integers(0, 0x7F800000, 50_000, dtype=np.uint32).view(np.float32)
    ties = (np.arange(0, 8192) * 2.0 ** rng.integers(-30, 20, 8192)).astype(np.float32)
    grid = np.arange(0, 600, 0.25, dtype=np.float32)
    return np.concatenate([bits, ties, grid, np.ldexp(grid, -12), [0, 61440, 464, 465, 65520]])


@pytest.mark.parametrize(
    ("name", "theirs"),
    [
        ("f16", np.float16),
        ("bf16", ml_dtypes.bfloat16),
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("e5m2", ml_dtypes.float8_e5m2),
    ],
)
def test_narrow_floats_round_as_ml_dtypes_does(name: str, theirs: type) -> None:
    given_ = scales().astype(np.float32)
    with np.errstate(all="ignore"):
        expected = given_.astype(theirs).astype(np.float32)
    found = storage(name).store(given_[None])[0]
    fits = np.isfinite(expected)
    assert np.array_equal(np.isfinite(found), fits)
    assert np.array_equal(found[fits], expected[fits])


def test_powers_of_two() -> None:
    given_ = scales().astype(np.float32)
    given_ = given_[given_ > 0]
    floor = storage("e8m0-floor").store(given_[None])[0].astype(float)
    nearest = storage("e8m0-nearest").store(given_[None])[0].astype(float)
    inside = given_ >= 2.0**-127
    assert (floor[inside] <= given_[inside]).all()
    assert (2 * floor > given_).all()
    expected = np.ldexp(1.0, np.clip(np.rint(np.log2(given_.astype(float))), -127, 127).astype(int))
    mantissa = np.frexp(given_)[0]
    clear = np.abs(mantissa - 0.5**0.5) > 1e-6
    assert np.array_equal(nearest[clear], expected[clear])
    assert storage("e8m0-floor").store(np.zeros((1, 1), np.float32))[0, 0] == 2.0**-127


def test_the_truncated_half_against_every_half_and_its_neighbours() -> None:
    """Cut off: the largest half not above; below 2^-14 zero; from 65536 infinity."""
    every = np.arange(0x0400, 0x7C00, dtype=np.uint16)
    values = every.view(np.float16).astype(np.float32)
    above = np.nextafter(np.append(values[1:], np.float32(65536)), np.float32(0))
    assert np.array_equal(halves_truncated(values), every)
    assert np.array_equal(halves_truncated(above), every)
    assert np.array_equal(halves_truncated(-values), every | 0x8000)
    below = np.nextafter(np.float32(2.0**-14), np.float32(0))
    odd = np.array([below, 65536, np.inf, -np.inf, np.nan, 0, -0.0], np.float32)
    assert [hex(bits) for bits in halves_truncated(odd)] == [
        "0x0",
        "0x7c00",
        "0x7c00",
        "0xfc00",
        "0x7e00",
        "0x0",
        "0x8000",
    ]


def test_decimals_and_integers() -> None:
    given_ = np.array([[0.0234528, 0.025, 2.5, 1234.567]], np.float32)
    assert list(storage("2-decimals").store(given_)[0]) == list(
        np.float32([0.02, 0.03, 2.5, 1234.57])
    )
    assert list(storage("integer").store(given_)[0]) == [0, 0, 3, 1235]


def test_six_bit_scales_share_a_super_scale_of_eight_blocks() -> None:
    given_ = np.array([[63, 31.4, 0.4, 0, 1, 2, 3, 4, 126, 2]], np.float32)
    assert list(storage("6-bit").store(given_)[0]) == [63, 31, 0, 0, 1, 2, 3, 4, 126, 2]


def test_names() -> None:
    for name in DEFAULT:
        assert storage(name).name == name
        assert storage(name).title
    for wrong in ("f64", "-decimals", "x-decimals", ""):
        with pytest.raises(UsageError, match="no such way"):
            storage(wrong)
    with pytest.raises(UsageError, match="no such scheme"):
        Scheme(rounding="up")
    with pytest.raises(UsageError, match="no such scheme"):
        Scheme(codes_from="guess")
    with pytest.raises(UsageError, match="whole number of blocks"):
        worked(np.ones(33), Scheme())


def test_the_f16_scheme_decodes_to_what_q8_0_decodes_to() -> None:
    """Rounded away, codes from the exact scale: the bytes that libgguf writes, decoded by it."""
    kind = gguf.GGMLQuantizationType.Q8_0
    raw = libgguf.quantize_rows(WEIGHTS, kind)
    theirs = np.asarray(libgguf.dequantize_rows(raw, kind, WEIGHTS.shape[1])).reshape(WEIGHTS.shape)
    ours = worked(WEIGHTS, Scheme("f16")).decoded.reshape(WEIGHTS.shape)
    # x * (1 / d) there, x / d here: a code may differ where both are as near.
    assert (ours != theirs).mean() < 1e-3
    assert compare(WEIGHTS, ["f16"])[0].max_steps <= 0.5 + 127 * 2.0**-11


def test_outcomes_do_not_depend_on_chunks() -> None:
    whole = compare(WEIGHTS)
    for cut in (1, 7, 40):
        assert compare(np.array_split(WEIGHTS, cut)) == whole
    assert compare(iter([WEIGHTS[:13], *WEIGHTS[13:]])) == whole


def test_a_model_of_tensors_of_different_widths() -> None:
    both = compare([WEIGHTS, WEIGHTS[:, :64]])
    assert both[0].weights == WEIGHTS.size + 40 * 64
    assert both[0].blocks == both[0].weights // 32


def test_multiples_of_f16() -> None:
    rows = {row.scheme.storage: row for row in compare(WEIGHTS, ["e4m3", "f32", "integer"])}
    (f16,) = compare(WEIGHTS, ["f16"])
    assert (f16.max_times_f16, f16.rms_times_f16) == (1, 1)
    assert rows["e4m3"].max_times_f16 == rows["e4m3"].max_error / f16.max_error
    assert rows["f32"].rms_times_f16 == pytest.approx(1, abs=0.01)
    assert rows["integer"].lost == rows["integer"].blocks
    assert rows["integer"].max_error == pytest.approx(np.abs(WEIGHTS).max())
    assert compare(np.zeros(32, np.float32), ["e4m3"])[0].max_times_f16 is None


def test_rounding_error_is_half_a_step_with_exact_scales() -> None:
    for rounding, limit in (("nearest-away", 0.5), ("nearest-even", 0.5), ("c-cast", 1.5)):
        (row,) = compare(WEIGHTS, ["f32"], like=Scheme(rounding=rounding))
        assert limit - 0.01 < row.max_steps <= limit + 1e-4, rounding


def test_lost_overflowed_and_not_finite_blocks_are_counted() -> None:
    rows = np.zeros((1, 5 * 32), np.float32)
    rows[0, ::32] = 1e-6, 1e7, 1, np.nan, 0
    (f16, f32, e5m2) = compare(rows, ["f16", "f32", "e5m2"])
    assert (f16.blocks, f16.lost, f16.overflowed, f16.not_finite) == (5, 1, 1, 1)
    assert (f32.lost, f32.overflowed, f32.not_finite) == (0, 0, 1)
    assert (e5m2.lost, e5m2.overflowed) == (1, 1)
    assert np.isfinite([f16.max_error, f16.rms_error, f16.max_steps]).all()


@settings(max_examples=100, deadline=None)
@given(
    bits=hnp.arrays(np.uint32, (2, 64)),
    name=st.sampled_from(DEFAULT),
    codes=st.sampled_from(CODES_FROM),
    rounding=st.sampled_from(sorted(ROUNDINGS)),
)
def test_no_scheme_fails_on_any_bits(
    bits: np.ndarray, name: str, codes: str, rounding: str
) -> None:
    trial = Trial(Scheme(name, codes, rounding))
    trial.add(bits.view(np.float32))
    found = trial.outcome()
    assert found.blocks == 4
    assert found.lost + found.overflowed + found.not_finite <= 4
    errors = [found.max_error, found.rms_error, found.max_steps]
    if found.overflowed + found.not_finite == 4:
        assert errors == [None] * 3  # there is no block left to measure
    else:
        assert not np.isnan(np.array(errors, np.float64)).any()


HONEST = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


@pytest.mark.parametrize("kind", HONEST)
@pytest.mark.parametrize("size", [0.05, 1e-4, 3.0])
def test_an_honest_quantizer_shows_no_bias(kind: str, size: float) -> None:
    weights = np.random.default_rng(8).normal(0, size, (64, 1024)).astype(np.float32)
    raw = np.asarray(libgguf.quantize_rows(weights, gguf.GGMLQuantizationType[kind]))
    found = rounding_profile(weights, raw.view(np.uint8), kind)
    assert found.words() == "error of nearest rounding; no bias"
    assert found.positive + found.negative > 0.8 * weights.size


def test_profiles_of_parts_add_up() -> None:
    raw = engine("kestrel").quantize(WEIGHTS, "q8_0")
    whole = rounding_profile(WEIGHTS, raw, "q8_0")
    parts = sum(
        (rounding_profile(w, r, "q8_0") for w, r in zip(WEIGHTS, raw, strict=True)),
        RoundingProfile(),
    )
    assert (parts.positive, parts.negative) == (whole.positive, whole.negative)
    assert (parts.max_negative, parts.above_negative) == (whole.max_negative, whole.above_negative)
    assert parts.bias_negative == pytest.approx(whole.bias_negative)
    assert parts.words() == whole.words()


@pytest.mark.parametrize(("sign", "side"), [(1, "negatives"), (-1, "positives")])
def test_the_biased_side_follows_the_sign(sign: int, side: str) -> None:
    raw = engine("kestrel").quantize(WEIGHTS, "q8_0")
    if sign < 0:  # the mirror image: codes negated
        raw = raw.copy()
        raw[:, np.arange(raw.shape[1]) % 34 >= 2] *= np.uint8(255)
    found = rounding_profile(sign * WEIGHTS, raw, "q8_0")
    assert found.biased == side
    assert found.above_bound


def test_profile_refuses_what_it_cannot_measure() -> None:
    with pytest.raises(UsageError, match="no even steps"):
        rounding_profile(np.ones(32), np.zeros(17, np.uint8), "mxfp4")
    with pytest.raises(UsageError, match="no even steps"):
        rounding_profile(np.ones(32), np.zeros(64, np.uint8), "f16")
    with pytest.raises(UsageError, match="different numbers of weights"):
        rounding_profile(np.ones(31), np.zeros(34, np.uint8), "q8_0")


@settings(max_examples=60, deadline=None)
@given(
    bits=hnp.arrays(np.uint32, 256),
    raw=hnp.arrays(np.uint8, 292),
    kind=st.sampled_from(HONEST),
)
def test_no_profile_fails_on_any_bits(bits: np.ndarray, raw: np.ndarray, kind: str) -> None:
    from qassay.encodings import by_id

    encoding = by_id(kind)
    size = 256 // encoding.block * encoding.block_bytes
    found = rounding_profile(bits.view(np.float32), np.resize(raw, size), kind)
    assert found.positive + found.negative + found.unmeasured <= 256
    assert found.words()
