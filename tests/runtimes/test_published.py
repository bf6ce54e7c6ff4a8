"""Two published write-ups, to the last printed digit (facts/reference_results.md 1 and 2)."""

from __future__ import annotations

import numpy as np
import pytest

from qassay.encodings import by_id
from qassay.runtimes.arithmetic_published import (
    RoundTrip,
    damaged_blocks,
    round_trips,
    sine_block,
    stored_scales,
)
from qassay.runtimes.arithmetic_rounding import rounding_profile
from qassay.runtimes.registry import engine
from qassay.runtimes.scale_storage import Scheme, compare

UNCHANGED = "-0.49996948, -0.46847534"

# case: in, out block 0, out block 1, the check's message
Q8_0_TABLE = {
    "plain": (
        "-0.5, -0.46774194, -0.43548387",
        "-0.49996948, -0.46847534, -0.4369812",
        UNCHANGED,
        "ok",
    ),
    "NaN at [1]": (
        "-0.5, NaN, -0.43548387",
        "-0.49996948, 0.0, -0.4369812",
        UNCHANGED,
        "block 0: element 1 is NaN",
    ),
    "inf at [1]": (
        "-0.5, inf, -0.43548387",
        "NaN, NaN, NaN",
        UNCHANGED,
        "block 0: element 1 is inf",
    ),
    "block x 1e-5": (
        "-5e-6, -4.6774194e-6, -4.3548384e-6",
        "-7.56979e-6, -7.0929527e-6, -6.6161156e-6",
        UNCHANGED,
        "block 0: amax 5e-6, scale 3.937008e-8 is stored as 5.9604645e-8 in f16",
    ),
    "block x 4e-6": (
        "-2e-6, -1.8709677e-6, -1.7419355e-6",
        "-0.0, -0.0, -0.0",
        UNCHANGED,
        "block 0: amax 2e-6, scale 1.5748032e-8 is stored as 0e0 in f16",
    ),
    "block x 2e7": (
        "-1e7, -9354839, -8709677",
        "-inf, -inf, -inf",
        UNCHANGED,
        "block 0: amax 1e7 overflows the f16 scale",
    ),
}


def printed(text: str) -> np.ndarray:
    """Return the float32 numbers that printed digits stand for: a shortest float32 is unique."""
    return np.array([np.float32(number) for number in text.split(", ")], np.float32)


def same(found: np.ndarray, text: str) -> bool:
    expected = printed(text)
    nan = np.isnan(expected)
    return np.array_equal(np.isnan(found), nan) and np.array_equal(
        found[~nan].view(np.uint32), expected[~nan].view(np.uint32)
    )


@pytest.mark.parametrize("case", Q8_0_TABLE)
@pytest.mark.parametrize("name", ["candle", "ggml"])
def test_the_q8_0_table(name: str, case: str) -> None:
    row: RoundTrip = {row.case: row for row in round_trips(engine(name))}[case]
    before, after_0, after_1, says = Q8_0_TABLE[case]
    assert same(row.before[:3], before)
    assert same(row.after[:3], after_0)
    assert same(row.after[32:34], after_1)
    assert row.says == says


def test_the_table_has_these_rows_and_no_others() -> None:
    assert [row.case for row in round_trips(engine("candle"))] == list(Q8_0_TABLE)
    assert list(damaged_blocks()) == list(Q8_0_TABLE)


def test_the_underflowing_row_is_1_51_times_too_big() -> None:
    row = round_trips(engine("candle"))[3]
    assert f"{row.after[0] / row.before[0]:.2f}" == "1.51"


def test_a_code_of_zero_under_an_infinite_scale_comes_back_nan() -> None:
    block = np.zeros(32, np.float32)
    block[0] = 1e7
    encoding = by_id("q8_0")
    values = encoding.dequantize(engine("candle").quantize(block, encoding).reshape(-1))
    assert np.isinf(values[0])
    assert np.isnan(values[1:]).all()


def test_a_normal_block_comes_back_within_0_4_percent_of_its_largest() -> None:
    row = round_trips(engine("candle"))[0]
    assert np.abs(row.after - row.before).max() / 0.5 < 0.004


def test_the_sine_block() -> None:
    assert np.abs(sine_block()).max() == np.float32("2.9782991")


# name: d and maximum absolute error, as printed
STORED = {
    "experiment, f16": ("0.023438", "0.03325"),
    "experiment, two decimals": ("0.020000", "0.43830"),
    "experiment, integer": ("0.000000", "2.97830"),
    "engine": ("0.0234528", "0.03492"),
    "engine, older f16 conversion": ("0.0234375", "0.03660"),
    "correct": ("0.0234528", "0.0115"),
}


def to_digits(number: float, text: str) -> str:
    return f"{number:.{len(text.partition('.')[2])}f}"


@pytest.mark.parametrize("name", STORED)
def test_the_scale_storage_tables(name: str) -> None:
    row = stored_scales()[name]
    scale, error = STORED[name]
    assert to_digits(float(row.stored[0, 0]), scale) == scale
    assert to_digits(float(np.abs(row.errors).max()), error) == error


def test_the_scale_storage_tables_in_steps() -> None:
    rows = stored_scales()

    def steps(name: str) -> str:
        row = rows[name]
        return f"{np.abs(row.errors).max() / row.stored[0, 0]:.2f}"

    assert steps("engine") == "1.49"
    assert steps("experiment, f16") == "1.42"
    assert f"{rows['correct'].exact[0, 0] / 2:.4f}" == "0.0117"  # half a step


def test_two_decimals_cost_13_times_the_published_f16_error() -> None:
    like = Scheme(codes_from="stored", rounding="c-cast")
    decimals, truncated = compare(sine_block(), ["2-decimals", "f16-truncated"], like=like)
    assert round(decimals.max_error / truncated.max_error) == 13
    stored, exact = float(np.float32(0.02)), float(stored_scales()["correct"].exact[0, 0])
    assert round((exact - stored) / exact, 2) == 0.15


@pytest.mark.parametrize("name", ["kestrel", "kestrel-legacy"])
@pytest.mark.parametrize("source", ["sine block", "tensor"])
def test_found_from_data_alone(name: str, source: str) -> None:
    """The finding of the second write-up, the engine untold: source and bytes are all it sees."""
    rng = np.random.default_rng(2)
    weights = sine_block() if source == "sine block" else rng.normal(0, 0.5, (32, 256))
    raw = engine(name).quantize(weights, "q8_0")
    profile = rounding_profile(weights, raw, "q8_0")
    assert profile.words() == "error above half a step; biased on negatives only"
    assert 1.4 < profile.max_negative < 1.61
    assert profile.max_positive < 0.5 + 127 * 2.0**-10
    assert profile.bias_negative == pytest.approx(1, abs=0.1)


def test_the_worked_block_of_the_exercise() -> None:
    """amax 3.0: scale 3/127, and the code of each element."""
    values = np.array([3.0, -3.0, 1.5, -1.5, 0.0, 0.02, *np.zeros(26)], np.float32)
    (correct,) = compare(values, ["f16"])
    assert correct.max_steps <= 0.5 + 127 * 2.0**-11
    block = engine("kestrel").quantize(values, "q8_0")[0]
    assert block[:2].view("<f2")[0] == np.float16(3 / 127)
    # v/s + 0.5: 127.5, -126.5, 64, -63, 0.5, 1.35, the fraction cut off
    assert list(block[2:8].view(np.int8)) == [127, -126, 64, -63, 0, 1]
