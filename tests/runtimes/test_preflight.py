"""What a stored scale would do, against what real quantizers then do."""

from __future__ import annotations

from collections.abc import Callable

import gguf
import libgguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from qassay.core.errors import UsageError
from qassay.encodings import all_encodings, by_id
from qassay.encodings.base import BlockEncoding
from qassay.encodings.fields import Role
from qassay.runtimes.preflight import measurable, preflight, published_message, shortest
from qassay.runtimes.registry import engine

TYPES = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
FLT_MAX = np.finfo(np.float32).max


def spike(amax: np.float32) -> np.ndarray:
    """Return a block whose range and largest magnitude are `amax`."""
    block = np.zeros(32, np.float32)
    block[7] = amax
    return block


def written_scale(name: str, block: np.ndarray, to: str) -> float:
    """Return the scale that a real quantizer stores: libgguf, or one of the engines."""
    encoding = by_id(to)
    assert issubclass(encoding, BlockEncoding)
    if name == "libgguf":
        kind = gguf.GGMLQuantizationType[to.upper()]
        raw = np.asarray(libgguf.quantize_rows(block[None], kind)).view(np.uint8).reshape(1, -1)
    else:
        raw = engine(name).quantize(block, encoding)
    field = encoding.scale_of(Role.SCALE)
    assert field is not None
    return float(field.values[field.patterns_of(raw)[0]])


def bisect(low: float, high: float, wrong: Callable[[np.float32], bool]) -> np.float32:
    """Return the first float32 above `low` for which `wrong` has the answer it has at `high`."""
    bits = [int(np.float32(end).view(np.uint32)) for end in (low, high)]
    there = wrong(np.float32(high))
    assert wrong(np.float32(low)) != there
    while bits[1] - bits[0] > 1:
        middle = sum(bits) // 2
        value = np.uint32(middle).view(np.float32)
        bits[int(wrong(value) == there)] = middle
    return np.uint32(bits[1]).view(np.float32)


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("name", ["libgguf", "candle", "gguf-py", "ggml"])
def test_thresholds_are_the_quantizers(name: str, to: str) -> None:
    """Bisected over float32: the first amax that survives, and the first that overflows."""
    alive = bisect(1e-12, 1.0, lambda amax: written_scale(name, spike(amax), to) != 0)
    told = bisect(1e-12, 1.0, lambda amax: not preflight(spike(amax), to).lost[0])
    assert alive == told
    burst = bisect(1.0, 3e38, lambda amax: not np.isfinite(written_scale(name, spike(amax), to)))
    told = bisect(1.0, 3e38, lambda amax: bool(preflight(spike(amax), to).overflows[0]))
    assert burst == told


def test_thresholds_are_the_published_ones() -> None:
    """Q8_0: zero at amax <= 3.78e-6, infinite from 8,321,040; Q4_0: 2.38e-7 and 524,160."""
    for to, digits, infinite in (("q8_0", "3.78e-06", 8_321_040), ("q4_0", "2.38e-07", 524_160)):
        first = bisect(1e-12, 1.0, lambda amax, to=to: not preflight(spike(amax), to).lost[0])
        last_zero = np.nextafter(first, np.float32(0))
        assert f"{last_zero:.2e}" == digits
        burst = bisect(1.0, 3e38, lambda amax, to=to: bool(preflight(spike(amax), to).overflows[0]))
        assert burst == infinite


def test_coarse_begins_where_the_f16_rounding_of_q8_0_reaches_one_percent() -> None:
    """On the same side as the published check for every f16-subnormal scale and its neighbours."""
    middles = (np.arange(1, 2048) + 0.5) * 2.0**-24 * 127
    amax = np.concatenate([middles * (1 + shift) for shift in (-0.01, -1e-4, 0, 1e-4, 0.01)])
    blocks = np.zeros((amax.size, 32), np.float32)
    blocks[:, 0] = amax
    facts = preflight(blocks, "q8_0")
    assert np.array_equal(facts.coarse | facts.lost, facts.refused_by_published_check)
    assert facts.coarse.any()
    assert not facts.coarse.all()
    exact = (blocks[:, 0] / np.float32(127)).astype(float)
    with np.errstate(under="ignore"):
        stored = exact.astype(np.float16).astype(float)
    assert np.array_equal(np.abs(stored - exact) / exact > 0.01, facts.coarse | facts.lost)


def test_reported_relative_errors_of_q8_0() -> None:
    """Facts: at block maximum 1e-3, 1e-4, 2e-5, 5e-6: 0.08 %, 1.6 %, 14 %, 51 %."""
    amax = np.array([1e-3, 1e-4, 2e-5, 5e-6], np.float32)
    blocks = np.zeros((4, 32), np.float32)
    blocks[:, 0] = amax
    percent = preflight(blocks, "q8_0").steps / 127 * 100
    assert f"{percent[0]:.2f}" == "0.08"
    assert [f"{value:.2g}" for value in percent[1:]] == ["1.6", "14", "51"]


def test_healthy_weights_are_silent() -> None:
    weights = np.random.default_rng(0).normal(0, 0.02, (5000, 32)).astype(np.float32)
    for to in TYPES:
        facts = preflight(weights, to)
        assert not (facts.coarse | facts.lost | facts.overflows | facts.not_finite).any(), to
        assert not facts.refused_by_published_check.any(), to


def test_elements_that_are_not_finite() -> None:
    blocks = np.ones((4, 32), np.float32)
    blocks[1, 3], blocks[1, 9] = np.nan, np.inf
    blocks[2, 0] = -np.inf
    blocks[3] = np.nan
    for to in TYPES:
        facts = preflight(blocks, to)
        assert list(facts.first) == [-1, 3, 0, 0]
        assert list(facts.nan) == [0, 1, 0, 32]
        assert list(facts.inf) == [0, 1, 1, 0]
        assert list(facts.amax) == [1, 1, 1, 0]
        assert not facts.overflows.any()
        assert not facts.lost.any()
    facts = preflight(blocks, "q8_0")
    assert published_message(facts, blocks, 0) is None
    assert published_message(facts, blocks, 2) == "block 2: element 0 is -inf"


def test_the_published_check_allows_scales_up_to_65504_only() -> None:
    """f16 itself overflows from 65520 on; between the two the check refuses what is stored."""
    amax = np.array([127 * 65504, 127 * 65510, 127 * 65520], np.float32)
    blocks = np.zeros((3, 32), np.float32)
    blocks[:, 0] = amax
    facts = preflight(blocks, "q8_0")
    assert list(facts.refused_by_published_check) == [False, True, True]
    assert list(facts.overflows) == [False, False, True]


def test_a_minimum_that_f16_cannot_hold() -> None:
    blocks = np.zeros((2, 32), np.float32)
    blocks[0] = 100 + np.arange(32) * 1e-3  # m is off by up to 1/32, a step is 0.002
    blocks[1] = 1e5
    facts = preflight(blocks, "q4_1")
    assert facts.coarse[0] or facts.offset_steps[0] == 0
    assert list(facts.overflows) == [False, True]
    off = preflight(blocks + np.float32(0.03), "q4_1")
    assert off.coarse[0]
    assert off.offset_steps[0] > 1.27


def test_a_constant_block_needs_no_scale_where_a_minimum_is_stored() -> None:
    constant = np.full((1, 32), 0.25, np.float32)
    assert not preflight(constant, "q4_1").lost[0]
    assert not preflight(constant, "q4_1").live[0]
    assert preflight(constant * np.float32(1e-9), "q4_0").lost[0]


def test_a_scale_that_vanishes_in_float32_already_is_lost() -> None:
    tiny = np.float32(1e-45)
    for to in ("q4_0", "q5_0", "q8_0"):
        assert preflight(spike(tiny), to).lost[0]
    assert not preflight(spike(np.float32(0)), "q8_0").lost[0]


def test_what_can_be_measured() -> None:
    able = [encoding for encoding in all_encodings() if measurable(encoding)]
    assert able == sorted(f"ggml.{to}" for to in TYPES)
    with pytest.raises(UsageError, match="no preflight"):
        preflight(np.ones((1, 256), np.float32), "q6_k")
    with pytest.raises(UsageError, match="no preflight"):
        preflight(np.ones((1, 31), np.float32), "q8_0")


def test_numbers_are_printed_as_published() -> None:
    given_ = [5e-6, 3.937008e-8, 5.9604645e-8, 0.0, 1e7, 2e-6]
    told = ["5e-6", "3.937008e-8", "5.9604645e-8", "0e0", "1e7", "2e-6"]
    assert [shortest(np.float32(value)) for value in given_] == told


@pytest.mark.parametrize("to", TYPES)
@settings(max_examples=150, deadline=None)
@given(bits=hnp.arrays(np.uint32, (3, 32)))
def test_the_stored_scale_is_what_the_engine_stores(to: str, bits: np.ndarray) -> None:
    """For every block of finite weights, bit for bit; and nothing fails on any other."""
    blocks = bits.view(np.float32)
    facts = preflight(blocks, to)
    encoding = by_id(to)
    assert issubclass(encoding, BlockEncoding)
    raw = engine("candle").quantize(blocks, encoding)
    field = encoding.scale_of(Role.SCALE)
    assert field is not None
    stored = field.values[field.patterns_of(raw)]
    whole = np.isfinite(blocks).all(axis=1)
    assert np.array_equal(whole, ~facts.not_finite)
    assert np.array_equal(stored[whole], facts.stored[whole])
