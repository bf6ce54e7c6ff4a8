"""The reorder equals the compiler's, chip by chip, and its inverse restores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qassay.core.errors import UsageError
from qassay.runtimes.sophgo.bfloat16 import bf16_bits
from qassay.runtimes.sophgo.chips import Branch, behaviour
from qassay.runtimes.sophgo.layout import (
    Reordered,
    check_channels,
    collect,
    deal,
    per_channel_to_groups,
    reorder,
    restore,
)

PLAIN_CASES = [
    # N = 64 is the identity: it shows the types, not the order
    ("bm1684x-1.30.2/w4_n64_k256_g64", "bm1684x", "1.30.2", "_bm1684x_w4bf16_reorder"),
    ("bm1684x-1.28.1/w4_n128_k256_g64", "bm1684x", "1.28.1", "_bm1684x_w4bf16_reorder"),
    ("bm1684x-1.28.1/w4_n192_k256_g128", "bm1684x", "1.28.1", "_bm1684x_w4bf16_reorder"),
    ("bm1684x-1.28.1/w8_n128_k256_g64", "bm1684x", "1.28.1", "_bm1684x_w8bf16_reorder"),
    ("bm1684x-1.30.2/w4_n96pad128_k256_g64", "bm1684x", "1.30.2", "_bm1684x_w4bf16_reorder"),
    ("chips-1.30.2/m192", "bm1684x", "1.30.2", "_bm1684x_w4bf16_reorder"),
    ("chips-1.30.2/m192", "bm1688", "1.30.2", "_bm1688_w4bf16_reorder"),
]
INTERLEAVED_CASES = [
    ("cv184x", Branch.INTERLEAVED, 8),
    ("bm1684x2", Branch.INTERLEAVED_IN_ORDER, 16),
]


@pytest.mark.parametrize(("case", "chip", "version", "suffix"), PLAIN_CASES)
def test_plain_equals_the_compiler(
    tpu: Any, case: str, chip: str, version: str, suffix: str
) -> None:
    found = tpu(case)
    before, after = found.origin(), found.stored(suffix)
    record = found.mlir(suffix).named("linear0")
    acts = behaviour(chip, version, weight_bits=found.bits, q_group_size=record.q_group_size)
    assert acts.branch is Branch.PLAIN
    assert acts.chip.lanes == record.lanes
    scales = bf16_bits(before["scales"])
    ours = reorder(scales, before["qzeros"], lanes=acts.chip.lanes, branch=acts.branch)
    theirs = Reordered(after[record.scale.name], after[record.zero_point.name], acts.branch)
    np.testing.assert_array_equal(ours.scales, theirs.scales)
    np.testing.assert_array_equal(ours.zeros, theirs.zeros)
    back = restore(theirs)
    np.testing.assert_array_equal(back[0], scales)
    np.testing.assert_array_equal(back[1], before["qzeros"])
    # the packed weight does not move
    np.testing.assert_array_equal(after[record.weight.name], before["qweight"])
    if record.n > record.lanes:
        assert not np.array_equal(ours.scales.reshape(-1), scales.reshape(-1))


@pytest.mark.parametrize(("chip", "branch", "lanes"), INTERLEAVED_CASES)
def test_interleaved_equals_the_compiler(tpu: Any, chip: str, branch: Branch, lanes: int) -> None:
    found = tpu("chips-1.30.2/m192")
    before = found.origin()
    suffix = f"_{chip}_w4bf16_reorder"
    record = found.mlir(suffix).named("linear0")
    acts = behaviour(chip, "1.30.2", q_group_size=record.q_group_size)
    assert (acts.branch, acts.chip.lanes, record.lanes) == (branch, lanes, lanes)
    assert record.zero_point is None
    after = found.stored(suffix)[record.scale.name]
    scales = bf16_bits(before["scales"])
    ours = reorder(scales, before["qzeros"], lanes=lanes, branch=branch)
    np.testing.assert_array_equal(ours.scales, after)
    back = restore(Reordered(after, None, branch))
    np.testing.assert_array_equal(back[0], scales)
    np.testing.assert_array_equal(back[1], before["qzeros"])


shapes = st.tuples(st.integers(1, 70), st.integers(1, 5), st.integers(1, 6))


@given(shapes, st.sampled_from(list(Branch)), st.sampled_from(["bf16", "f16"]), st.integers(0, 99))
def test_the_inverse_law(shape: tuple[int, int, int], branch: Branch, half: Any, seed: int) -> None:
    lanes, h, w = shape
    rng = np.random.default_rng(seed)
    scales = rng.integers(0, 1 << 16, (lanes * h, w)).astype(np.uint16)
    zeros = rng.integers(0, 256, (lanes * h, w)).astype(np.uint8)
    moved = reorder(scales, zeros, lanes=lanes, branch=branch, half=half)
    back = restore(moved, half=half)
    np.testing.assert_array_equal(back[0], scales)
    np.testing.assert_array_equal(back[1], zeros)
    assert moved.scales.size == scales.size * (2 if moved.zeros is None else 1)


@given(shapes)
def test_dealing_is_the_formula(shape: tuple[int, int, int]) -> None:
    lanes, h, w = shape
    rows = np.arange(lanes * h * w).reshape(lanes * h, w)
    dealt = deal(rows, lanes)
    for i, j in [(0, 0), (lanes - 1, h - 1), (lanes // 2, h // 2)]:
        np.testing.assert_array_equal(dealt[i, j], rows[j * lanes + i])
    np.testing.assert_array_equal(collect(dealt), rows)


@given(st.integers(1, 300), st.integers(1, 70))
def test_n_is_refused_as_the_compiler_refuses_it(n: int, lanes: int) -> None:
    if n % lanes == 0:
        assert check_channels(n, lanes) == n // lanes
        return
    for branch in Branch:
        zeros = np.zeros((n, 1), np.uint8)
        if branch is Branch.NONE:
            continue
        with pytest.raises(UsageError, match="invalid scale channel") as caught:
            reorder(zeros.astype(np.uint16), zeros, lanes=lanes, branch=branch)
        padded = -(-n // lanes) * lanes
        assert f"pad N to {padded}" in (caught.value.hint or "")


def test_shapes_and_types_that_do_not_belong_together() -> None:
    scales, zeros = np.ones((8, 2), np.uint16), np.ones((8, 2), np.uint8)
    bad = [
        (scales.astype(np.float32), zeros),
        (scales, zeros.astype(np.int32)),
        (scales, zeros[:, :1]),
        (scales[0], zeros[0]),
    ]
    for one, other in bad:
        with pytest.raises(UsageError):
            reorder(one, other, lanes=4, branch=Branch.PLAIN)
    moved = reorder(scales, zeros, lanes=4, branch=Branch.PLAIN)
    with pytest.raises(UsageError, match="together"):
        restore(Reordered(moved.scales, None, Branch.PLAIN))
    with pytest.raises(UsageError, match="hold their zero points"):
        restore(Reordered(moved.scales, moved.zeros, Branch.INTERLEAVED))
    with pytest.raises(UsageError, match="no whole number"):
        restore(Reordered(np.full((4, 2, 4), 0x3F00, np.uint16), None, Branch.INTERLEAVED))
    with pytest.raises(UsageError):
        reorder(scales, zeros, lanes=0, branch=Branch.PLAIN)


def test_a_scale_per_channel_loses_its_tail() -> None:
    values = np.arange(3, dtype=np.uint16).reshape(3, 1)
    assert per_channel_to_groups(values, 256).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert per_channel_to_groups(values, 192).shape == (3, 1)
    assert per_channel_to_groups(values, 64).shape == (3, 0)
