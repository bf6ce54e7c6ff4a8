"""Q501 and Q502 turn on and off where the stored scale does, to the last float32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from qassay.encodings import BlockEncoding, by_id
from qassay.runtimes.preflight_settle import settle
from qassay.runtimes.registry import engine

LEGACY = ["Q4_0", "Q5_0", "Q8_0", "Q4_1", "Q5_1"]
# Largest magnitude up to which everything is zero, and from which on something is not finite:
# facts of ggml measured on one row (256 normal numbers), not made with this code.
MEASURED = {
    "Q2_K": (4.8e-7, 1.25e6),
    "Q3_K": (3.8e-6, 1e7),
    "Q4_K": (1.9e-6, 5e6),
    "Q5_K": (1.6e-6, 4.2e6),
    "Q6_K": (1.03e-4, 2.7e8),
}


def bisect(low: float, high: float, there: Callable[[np.float32], bool]) -> np.float32:
    """Return the first float32 from `low` on for which `there` has the answer it has at `high`."""
    first, last = (int(np.float32(end).view(np.uint32)) for end in (low, high))
    wanted = there(np.float32(high))
    assert there(np.float32(low)) != wanted
    while last - first > 1:
        middle = (first + last) // 2
        if there(np.uint32(middle).view(np.float32)) == wanted:
            last = middle
        else:
            first = middle
    return np.uint32(last).view(np.float32)


def spike(amax: np.float32) -> np.ndarray:
    row = np.zeros(32, np.float32)
    row[5] = amax
    return row


def written(amax: np.float32, to: str) -> np.ndarray:
    encoding = by_id(to)
    return encoding.dequantize(engine("ggml").quantize(spike(amax), encoding).reshape(-1))


def codes(findings: list) -> set[str]:
    return {finding.code for finding in findings}


@pytest.mark.parametrize("to", LEGACY)
def test_legacy_types_turn_on_and_off_at_the_last_float32(to, preflight, kernel_set):
    lost = bisect(1e-9, 1e-3, lambda amax: not codes(preflight(spike(amax), to)) & {"Q502"})
    kept = bisect(1e-9, 1e-3, lambda amax: bool(written(amax, to).any()))
    if to in ("Q4_1", "Q5_1"):
        # There the minimum is stored beside the scale; a lone spike is the range.
        assert "Q502" in codes(preflight(spike(np.nextafter(lost, np.float32(0))), to))
    assert lost == kept
    above = bisect(1e3, 1e8, lambda amax: "Q501" in codes(preflight(spike(amax), to)))
    assert above == bisect(1e3, 1e8, lambda amax: not np.isfinite(written(amax, to)).all())


def test_the_published_limits(preflight):
    for to, lost, last, over in (("Q8_0", 3.78e-6, 8_321_039.5, 8_321_040.0),):
        assert "Q502" in codes(preflight(spike(np.float32(lost)), to))
        assert "Q501" not in codes(preflight(spike(np.float32(last)), to))
        assert "Q501" in codes(preflight(spike(np.float32(over)), to))
    assert "Q502" in codes(preflight(spike(np.float32(2.38e-7)), "Q4_0"))
    assert "Q502" not in codes(preflight(spike(np.float32(2.39e-7)), "Q4_0"))
    assert "Q501" in codes(preflight(spike(np.float32(524_160)), "Q4_0"))
    assert "Q501" not in codes(preflight(spike(np.float32(524_159.96)), "Q4_0"))


@pytest.mark.parametrize("to", MEASURED)
def test_k_quants_are_within_a_factor_of_what_was_measured(to, preflight):
    row = np.random.default_rng(0).standard_normal(256).astype(np.float32)
    row /= np.abs(row).max()
    lost, over = MEASURED[to]
    zero = bisect(lost / 50, lost * 50, lambda amax: "Q502" not in codes(preflight(row * amax, to)))
    assert lost / 1.3 <= zero <= lost * 1.3
    high = bisect(over / 50, over * 50, lambda amax: "Q501" in codes(preflight(row * amax, to)))
    assert over / 1.3 <= high <= over * 1.3


@pytest.mark.parametrize("to", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4", *LEGACY])
def test_verdicts_are_those_of_the_bytes(to, preflight):
    """Whatever is lost or overflows in what ggml writes is found, and nothing else."""
    encoding = by_id(to)
    assert issubclass(encoding, BlockEncoding)
    rng = np.random.default_rng(8)
    rows = rng.standard_normal((400, encoding.block)).astype(np.float32)
    rows = np.ldexp(rows, rng.integers(-150, 126, (400, 1))).astype(np.float32)
    rows[::9] *= rng.random(rows[::9].shape) < 0.05
    got = encoding.dequantize(engine("ggml").quantize(rows, encoding).reshape(-1))
    got = got.reshape(rows.shape)
    infinite = ~np.isfinite(got).all(axis=1)
    lost = rows.any(axis=1) & ~got.any(axis=1)
    for code, key, wanted in (("Q501", "overflowing", infinite), ("Q502", "lost", lost)):
        found = [finding for finding in preflight(rows, to) if finding.code == code]
        counts = [finding.data[key] for finding in found] or [0]
        assert counts == [int(wanted.sum())], code


@pytest.mark.parametrize("to", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_healthy_weights_are_stored_well_at_any_scale_between(to):
    """The screen lets nothing through that exact judgement would find."""
    from qassay.runtimes.preflight_settle import doubtful

    encoding = by_id(to)
    assert issubclass(encoding, BlockEncoding)
    low, high = doubtful(encoding)
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((300, 256)).astype(np.float32)
    rows *= rng.random((300, 256)) < rng.random((300, 1))
    rows[:, 0] = 1
    rows /= np.abs(rows).max(axis=1, keepdims=True)
    for amax in (low * 1.0001, low * 1.3, low * 2, high / 2, high * 0.9999):
        verdict = settle((rows * np.float32(amax)).astype(np.float32), encoding)
        assert not (verdict.lost | verdict.overflow | verdict.coarse).any(), amax


@pytest.mark.parametrize(("to", "step"), [("Q4_1", 15), ("Q5_1", 31)])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("nearly", [0, 1])
def test_a_constant_block_is_coarse_where_what_is_written_is_far_off(
    to, step, sign, nearly, preflight
):
    """Judged by the bytes that ggml writes: off by more than 1.27 of a block from zero to it."""
    encoding = by_id(to)
    seen = set()
    for value in np.geomspace(3.5e-8, 1e-3, 97):
        row = np.full(32, sign * np.float32(value), np.float32)
        row[9] = np.nextafter(row[9], np.float32(sign)) if nearly else row[9]
        read = encoding.dequantize(engine("ggml").quantize(row, encoding).reshape(-1))
        off = np.abs(read.astype(np.float64) - row).max() / np.abs(row).max() * step
        if abs(off - 1.27) < 0.01:
            continue
        assert ("Q503" in codes(preflight(row, to))) == (off > 1.27), (value, off)
        seen.add(off > 1.27)
    assert seen == {True, False}
