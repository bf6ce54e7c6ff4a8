"""The compiled measures of an error against the reference, for every block encoding and layer."""

from __future__ import annotations

import numpy as np
import pytest

from qassay.comparison.canonical_blocks import canonical_rows
from qassay.comparison.cost.reading import grid_of
from qassay.comparison.forms import form_of
from qassay.encodings.base import BlockEncoding
from qassay.encodings.registry import all_encodings
from qassay.kernels import cost, cost_fast
from qassay.kernels.cost import Grid, Of

BLOCKS = [e for e in all_encodings().values() if issubclass(e, BlockEncoding)]
EXACT = (Of.COMPARED, Of.HIDDEN, Of.BORN, Of.BOTH)
PLACES = (Of.LARGEST_AT, Of.STEPS_AT, Of.GROUP_AT)
EXCESS = (Of.NEGATIVE_EXCESS, Of.POSITIVE_EXCESS)
COUNTS = (Of.NEGATIVE, Of.POSITIVE, Of.ASTRAY, Of.CLIPPED)
ROWS, COLUMNS = 64, 512


def assert_same(found: np.ndarray, expected: np.ndarray, *, sound: bool = True) -> None:
    for name in Of:
        # Minimums of a million steps are rounded by many: then only the reference tells e*.
        if name in PLACES or (not sound and name in (*EXCESS, Of.BEST2, Of.ASTRAY, Of.CLIPPED)):
            continue
        a, b = expected[:, name], found[:, name]
        if name in EXACT:
            assert np.array_equal(a, b), name
        elif name in COUNTS:  # a weight on a limit may fall on either side
            assert np.abs(a - b).max() <= 1, name
        elif name in EXCESS:
            # Where a minimum is many steps, float32 rounds it by some: the short way calls that
            # the nearest value, the reference has the value before rounding.
            np.testing.assert_allclose(b, a, rtol=1e-2, atol=1, err_msg=name.name)
        else:
            size = np.abs(a[np.isfinite(a)]).max(initial=0)
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-6 * size, err_msg=name.name)


def source_of(new: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    near = new + rng.normal(size=new.shape).astype(np.float32) * np.float32(0.01)
    with np.errstate(all="ignore"):
        ref = np.where(rng.random(new.shape) < 0.5, new, near).astype(np.float32)
    ref[3, 5], ref[4, 6], ref[7] = np.nan, np.inf, 0
    return ref


@pytest.mark.parametrize("encoding", BLOCKS, ids=lambda e: e.id)
@pytest.mark.parametrize("sound", [True, False])
def test_blocks(encoding, sound):
    rng = np.random.default_rng(0)
    n = ROWS * COLUMNS // encoding.block
    raw = rng.integers(0, 256, (n, encoding.block_bytes), dtype=np.uint8)
    if sound:  # scales of about 0.06, where they are f16
        for field in encoding.scale_fields.values():
            if field.nbytes == 2:
                raw[:, field.offset + 1] = 0x2C
            else:
                raw[:, field.offset] = 0x38 if encoding.id == "ggml.nvfp4" else 120
    raw = raw.reshape(-1)
    bits = encoding.code_bits().width
    form = form_of(canonical_rows(encoding, raw, COLUMNS), bits)
    new = form.values()
    ref = source_of(new, rng)
    grid, order = grid_of(form, bits)
    assert order is None
    expected = cost.measure_rows(ref, new, grid)
    assert_same(cost_fast.measure_rows(ref, new, grid), expected, sound=sound)
    ones = np.ones(ROWS, np.float32)
    assert_same(cost_fast.measure_blocks(ref, raw, encoding, ones), expected, sound=sound)


@pytest.mark.parametrize("length", [16, 24, 32, 128])
def test_nearest_codes_go_the_short_way(length):
    rng = np.random.default_rng(1)
    groups = 8
    steps = rng.uniform(0.5, 2, (ROWS, groups)).astype(np.float32)
    codes = rng.integers(0, 16, (ROWS, groups * length))
    wide = np.repeat(steps, length, axis=1)
    new = ((codes - 8) * wide).astype(np.float32)
    ref = (new + rng.uniform(-0.49, 0.49, new.shape) * wide).astype(np.float32)
    bounds = np.arange(groups + 1) * length
    grid = Grid(steps, -8 * steps, bounds, 16, np.ones(steps.shape, np.uint8),
                np.zeros(0, np.float32))  # fmt: skip
    found = cost_fast.measure_rows(ref, new, grid)
    assert_same(found, cost.measure_rows(ref, new, grid))
    np.testing.assert_allclose(found[:, Of.BEST2], found[:, Of.ERR2])
    assert (found[:, Of.ASTRAY] == 0).all()


@pytest.mark.parametrize("size", [1e-30, 1e-20, 1e20, 1e37])
def test_squares_that_float32_cannot_hold(size):
    rng = np.random.default_rng(2)
    new = (rng.normal(size=(4, 64)) * size).astype(np.float32)
    ref = (new * np.float32(1.01)).astype(np.float32)
    steps = np.full((4, 2), size, np.float32)
    with np.errstate(all="ignore"):
        grid = Grid(steps, -8 * steps, np.array([0, 32, 64]), 16, np.ones((4, 2), np.uint8),
                    np.zeros(0, np.float32))  # fmt: skip
    found = cost_fast.measure_rows(ref, new, grid)
    expected = cost.measure_rows(ref, new, grid)
    assert (expected[:, Of.ERR2] > 0).all()
    np.testing.assert_allclose(found[:, Of.ERR2], expected[:, Of.ERR2], rtol=1e-5)


def test_groups_of_unequal_length_are_left_to_the_reference():
    rng = np.random.default_rng(3)
    ref = rng.normal(size=(4, 40)).astype(np.float32)
    grid = Grid(np.ones((4, 2), np.float32), np.zeros((4, 2), np.float32), np.array([0, 32, 40]),
                16, np.zeros((4, 2), np.uint8), np.zeros(0, np.float32))  # fmt: skip
    new = np.rint(ref)
    assert_same(cost_fast.measure_rows(ref, new, grid), cost.measure_rows(ref, new, grid))
