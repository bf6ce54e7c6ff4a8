"""Sums of the compiled measures: their order is told, and chunks do not show in them."""

from __future__ import annotations

import numba
import numpy as np
import pytest

from qassay.comparison.canonical_blocks import canonical_rows
from qassay.comparison.cost.reading import grid_of
from qassay.comparison.forms import form_of
from qassay.encodings.registry import all_encodings
from qassay.kernels import cost, cost_fast
from qassay.kernels.cost import Grid, Of
from qassay.kernels.cost_lanes import EIGHT, LANES
from qassay.kernels.cost_q4_k import decode_q4_k

Q4_K = all_encodings()["ggml.q4_k"]


def of_eight(ref: np.ndarray, new: np.ndarray, inverse: np.ndarray) -> tuple[np.ndarray, ...]:
    """Add one row as `cost_lanes` says: float32 `[groups, length]` and `[groups]`."""
    w = ref.reshape(ref.shape[0], -1, LANES)
    e = (new - ref).reshape(w.shape)
    zero = np.float32(0)
    kinds = [w * w, w * e, e, w, np.where(w < 0, e, zero), np.where(w > 0, e, zero), e, e * e]
    lanes = []
    for kind in kinds:
        total = kind[:, 0]
        for part in range(1, kind.shape[1]):
            total = total + kind[:, part]
        lanes.append(total)
    for biased in (4, 5, 6):
        lanes[biased] = lanes[biased] * inverse[:, None]
    eights = np.arange(w.shape[0]).reshape(-1, EIGHT)
    with_zero = [eight for eight in eights if not w[eight].all()]
    sums = np.zeros((6, LANES))
    # Those that hold a zero are left for a second look, in which both signs are summed.
    for eight in [each for each in eights if w[each].all()] + with_zero:
        added = []
        for kind in lanes[:7]:
            total = kind[eight[0]]
            for group in eight[1:]:
                total = total + kind[group]
            added.append(total)
        if w[eight].all():
            added[5] = added[6] - added[4]
        sums += added[:6]
    folded = lanes[7]
    while folded.shape[1] > 1:
        half = folded.shape[1] // 2
        folded = folded[:, :half] + folded[:, half:]
    return sums, folded[:, 0]


def in_turn(values: np.ndarray) -> float:
    total = 0.0
    for value in values:
        total += float(value)
    return total


def by_eights(values: np.ndarray) -> float:
    """Add every eighth number, and fold what comes out in halves."""
    lanes = np.zeros(EIGHT)
    for eight in values.astype(np.float64).reshape(-1, EIGHT):
        lanes = lanes + eight
    while lanes.size > 1:
        lanes = lanes[: lanes.size // 2] + lanes[lanes.size // 2 :]
    return float(lanes[0])


@pytest.mark.parametrize("length", [16, 32])
def test_sums_are_in_the_order_that_is_told(length):
    rng = np.random.default_rng(0)
    rows, groups = 5, 24
    steps = rng.uniform(0.001, 2, (rows, groups)).astype(np.float32)
    codes = rng.integers(0, 16, (rows, groups, length))
    new = ((codes - 8).astype(np.float32) * steps[:, :, None]).astype(np.float32)
    away = rng.uniform(-0.49, 0.49, new.shape).astype(np.float32)
    ref = new + away * steps[:, :, None]
    ref[1, 3] = new[1, 3]
    grid = Grid(steps, -8 * steps, np.arange(groups + 1) * length, 16,
                np.ones(steps.shape, np.uint8), np.zeros(0, np.float32))  # fmt: skip
    found = cost_fast.measure_rows(ref.reshape(rows, -1), new.reshape(rows, -1), grid)
    for row in range(rows):
        sums, costs = of_eight(ref[row], new[row], np.float32(1) / steps[row])
        names = (Of.REF2, Of.CROSS, Of.ERR, Of.REF, Of.NEGATIVE_BIAS, Of.POSITIVE_BIAS)
        for name, lanes in zip(names, sums, strict=True):
            assert found[row, name] == in_turn(lanes), name
        assert found[row, Of.ERR2] == by_eights(costs)
        assert found[row, Of.LARGEST] == np.abs(new[row] - ref[row]).max()


def blocks(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    raw = rng.integers(0, 256, (rows, columns // 256, 144), dtype=np.uint8)
    raw[:, :, 1] = 0x2C
    raw[:, :, 3] = 0x2C
    return raw


def test_a_row_is_the_same_in_any_chunk():
    rng = np.random.default_rng(1)
    raw = blocks(rng, 24, 1024)
    raw[5, 2, 1] = 0x7C  # a scale that is not finite
    new = Q4_K.dequantize(raw.reshape(-1)).reshape(24, 1024)
    ref = new + rng.normal(size=new.shape).astype(np.float32) * np.float32(0.02)
    ref[5] = 1
    ref[9, 17] = np.nan
    factors = np.ones(24, np.float32)
    whole = cost_fast.measure_blocks(ref, raw.reshape(-1), Q4_K, factors)
    for size in (1, 5, 24):
        parts = [
            cost_fast.measure_blocks(
                ref[at : at + size], raw[at : at + size].reshape(-1), Q4_K, factors[at : at + size]
            )
            for at in range(0, 24, size)
        ]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert whole[9, Of.HIDDEN] == 1
    assert whole[5, Of.BORN] > 0


@pytest.mark.parametrize("columns", [256, 512, 1280])
def test_errors_beyond_half_a_step_are_set_against_the_grid(columns):
    rng = np.random.default_rng(2)
    raw = blocks(rng, 16, columns)
    raw[:, :, 3] = 0x1C  # minimums of few steps: nothing is rounded away
    new = Q4_K.dequantize(raw.reshape(-1)).reshape(16, columns)
    ref = new + rng.normal(size=new.shape).astype(np.float32)
    found = cost_fast.measure_blocks(ref, raw.reshape(-1), Q4_K, np.ones(16, np.float32))
    grid, _ = grid_of(form_of(canonical_rows(Q4_K, raw.reshape(-1), columns), 4), 4)
    expected = cost.measure_rows(ref, new, grid)
    assert (expected[:, Of.ASTRAY] > 0).all()
    for name in (Of.ASTRAY, Of.CLIPPED, Of.LARGEST_AT, Of.NEGATIVE, Of.POSITIVE):
        assert np.abs(found[:, name] - expected[:, name]).max() <= 1, name
    for name in (Of.BEST2, Of.ERR2, Of.NEGATIVE_EXCESS, Of.POSITIVE_EXCESS, Of.STEPS, Of.PAR2):
        np.testing.assert_allclose(found[:, name], expected[:, name], rtol=2e-5, err_msg=name.name)


@numba.njit
def _decoded(raw, factor, steps, taken, values):
    for block in range(steps.size // 8):
        decode_q4_k(raw, block * 144, factor, block * 8, steps, taken, values, block * 256)


def test_blocks_with_every_scale_are_decoded_as_the_reference_does():
    rng = np.random.default_rng(3)
    raw = rng.integers(0, 256, (1 << 16, 144), dtype=np.uint8)
    halves = np.arange(1 << 16, dtype="<u2")
    raw[:, 0:2] = halves.view(np.uint8).reshape(-1, 2)
    raw[:, 2:4] = rng.permutation(halves).view(np.uint8).reshape(-1, 2)
    steps, taken = np.zeros(raw.shape[0] * 8, np.float32), np.zeros(raw.shape[0] * 8, np.float32)
    values = np.zeros(raw.shape[0] * 256, np.float32)
    _decoded(raw.reshape(-1), np.float32(1), steps, taken, values)
    expected = Q4_K.dequantize(raw.reshape(-1))
    lost = np.isnan(expected)
    assert np.array_equal(np.isnan(values), lost)
    assert np.array_equal(values[~lost].view(np.uint32), expected[~lost].view(np.uint32))
