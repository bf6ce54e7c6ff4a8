"""Planted faults: a sample of what `bench/attribution.py` plants."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qassay.comparison.attribution.attribute import Problem, attribute
from qassay.comparison.attribution.setup import setup_of
from qassay.comparison.attribution.verdict import Verdict
from qassay.core.finding import Certainty
from qassay.testing import faulty_devices as fd

BENCH = Path(__file__).resolve().parents[2] / "bench" / "attribution_cases.py"
SPEC = importlib.util.spec_from_file_location("attribution_cases", BENCH)
assert SPEC is not None
assert SPEC.loader is not None
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)

SHAPE = (96, 128, 32, False, True)


@pytest.fixture(scope="module")
def case():
    return bench.Case(SHAPE, "probe")


def one_of_each_kind(listed):
    return list({fault.kind: fault for fault in listed}.values())


def test_a_fault_of_every_kind_is_named(case):
    listed = one_of_each_kind(fd.faults(case.linear, case.other))
    assert len(listed) >= 18
    for place, fault in enumerate(listed):
        arithmetic = fd.ARITHMETICS[place % 3]
        outcome, told = case.judge(fault.plant(case.linear), arithmetic, pairs=False)
        assert outcome in ("exact", "clean is right"), (fault, told)


def test_one_row_does_not_prove_a_permutation_that_was_fitted():
    case = bench.Case(SHAPE, "random1")
    rng = np.random.default_rng(4)
    order = rng.permutation(96)
    y = fd.run(fd.Device(fd.move_rows(case.linear, order, "y")), case.x, "dev")
    told = attribute(Problem(case.true, case.x, y, pairs=False))
    assert told.verdict in (Verdict.UNEXPLAINED, Verdict.PART)
    four = bench.Case(SHAPE, "random4")
    y = fd.run(fd.Device(fd.move_rows(four.linear, order, "y")), four.x, "dev")
    told = attribute(Problem(four.true, four.x, y, pairs=False))
    assert told.verdict is Verdict.FAULT
    assert np.array_equal(told.explanations[0].edits[0].order, order)


def test_a_permutation_of_padded_channels_is_named():
    """Channels that are all alike stay where they are: which of them was meant nothing tells."""
    linear = fd.random_linear(3, 64, 128, 32)
    linear.codes[40:], linear.zeros[40:], linear.bias[40:] = 8, 8, 0
    true = setup_of(linear.canonical(), linear.bias, 4)
    x = np.random.default_rng(1).standard_normal((4, 128)).astype(np.float32)
    order = np.random.default_rng(2).permutation(64)
    y = fd.run(fd.Device(linear), x, "dev")
    told = attribute(Problem(true, x, y[:, order], pairs=False))
    assert told.verdict is Verdict.FAULT
    [edit] = told.explanations[0].edits
    assert np.array_equal(
        np.where(edit.order < 40, edit.order, 40), np.where(order < 40, order, 40)
    )
    # Alike for these inputs only: one of many permutations, none of them proven.
    x[:, :64] = 0
    linear.codes[40:, :64] = np.random.default_rng(3).integers(0, 16, (24, 64))
    true = setup_of(linear.canonical(), linear.bias, 4)
    y = fd.run(fd.Device(linear), x, "dev")
    told = attribute(Problem(true, x, y[:, order], pairs=False))
    assert told.verdict is Verdict.UNEXPLAINED


@pytest.mark.parametrize("kind", ["probe", "random4"])
def test_what_has_no_name_gets_none(kind):
    case = bench.Case(SHAPE, kind)
    for fault in fd.nameless(case.linear):
        outcome, told = case.judge(fault.plant(case.linear), "dev", pairs=False)
        assert outcome == "not explained", (fault, told)


def test_a_wrong_channel_of_many_is_no_rounding():
    """One in a thousand outputs, where nothing is added up: all in one channel."""
    case = bench.Case((1024, 64, 32, False, False), "one-hot")
    scales = case.linear.scales.copy()
    scales[77] = 0.011
    y = fd.run(fd.Device(replace(case.linear, scales=scales)), case.x, "dev")
    told = attribute(Problem(case.true, case.x, y, pairs=False))
    assert told.verdict is Verdict.UNEXPLAINED
    assert told.channels == 1


@pytest.mark.parametrize("kind", ["one-hot", "probe"])
def test_a_few_wrong_weights_are_no_rounding(kind):
    """One weight of a hundred, by whole steps: few outputs differ where one feature is given."""
    case = bench.Case((128, 256, 32, False, False), kind)
    flips = next(fault for fault in fd.nameless(case.linear) if fault.kind == "bit flips")
    y = fd.run(flips.plant(case.linear), case.x, "dev")
    told = attribute(Problem(case.true, case.x, y, pairs=False))
    assert told.verdict is Verdict.UNEXPLAINED


@pytest.mark.parametrize("seed", range(6))
def test_noise_of_2_percent_is_no_rounding(seed):
    case = bench.Case((96, 256, 128, False, bool(seed % 2)), "random4", seed)
    y = fd.run(fd.Device(case.linear), case.x, "dev")
    noisy = y * (1 + 0.02 * np.random.default_rng(seed).standard_normal(y.shape))
    told = attribute(Problem(case.true, case.x, fd.bf16(noisy), pairs=False))
    assert told.verdict is Verdict.UNEXPLAINED


def test_two_faults_at_once(case):
    known = {fault.name: fault for fault in fd.faults(case.linear, case.other)}
    for one, two in (("deal32 of y", "zero points +1"), ("nibbles of codes", "bias twice")):
        device = bench.combine(known[one], known[two], case.linear)
        outcome, told = case.judge(device, "dev")
        assert outcome == "exact", (one, two, told)
        assert len(told.explanations[0].edits) == 2


def test_sound_devices_are_not_accused():
    for seed in range(30):
        kind = ("probe", "one-hot", "random4", "random1")[seed % 4]
        case = bench.Case((64, 128, 32, bool(seed & 4), bool(seed & 8)), kind, seed)
        y = fd.run(fd.Device(case.linear), case.x, fd.ARITHMETICS[seed % 3], seed)
        told = attribute(Problem(case.true, case.x, y))
        assert told.verdict is Verdict.EXPLAINED, seed


@pytest.mark.parametrize("arithmetic", fd.UNKNOWN)
@pytest.mark.parametrize("kind", ["probe", "random16"])
def test_an_arithmetic_that_is_not_known(arithmetic, kind):
    case = bench.Case((64, 256, 64, False, True), kind)
    y = fd.run(fd.Device(case.linear), case.x, arithmetic, 1)
    told = attribute(Problem(case.true, case.x, y, pairs=False))
    assert told.verdict is Verdict.ROUNDING
    known = {fault.name: fault for fault in fd.faults(case.linear, case.other)}
    for name in ("deal32 of y", "nibbles of codes", "zero points -1", "groups of s rolled by 1"):
        y = fd.run(known[name].plant(case.linear), case.x, arithmetic, 1)
        told = attribute(Problem(case.true, case.x, y, pairs=False))
        assert told.verdict is Verdict.LIKELY, name
        assert len(told.explanations) <= 3
        assert any(case.same(one, known[name].plant(case.linear), arithmetic)
                   for one in told.explanations)  # fmt: skip


@pytest.mark.parametrize("arithmetic", fd.UNKNOWN)
def test_a_tail_is_likely_where_the_arithmetic_is_not_known(arithmetic):
    case = bench.Case((96, 256, 64, False, True), "random4")
    known = {fault.name: fault for fault in fd.faults(case.linear, case.other)}
    for name in ("tail of zeros not cropped", "tail of zero bytes not cropped"):
        y = fd.run(known[name].plant(case.linear), case.x, arithmetic, 1)
        told = attribute(Problem(case.true, case.x, y, pairs=False))
        assert (told.verdict, told.certainty) == (Verdict.FAULT, Certainty.LIKELY)
        assert (told.tail, told.explanations) == (128, ())
    y = fd.run(fd.Device(case.linear), case.x, arithmetic, 1)
    assert attribute(Problem(case.true, case.x, y)).verdict is Verdict.ROUNDING
    # One row tells nothing of where the others lie.
    x = np.concatenate([case.x[:1], np.zeros((3, 256), np.float32)])
    y = fd.run(fd.Device(case.linear), x, arithmetic, 1)
    y[1:] += np.float32(0.5)
    told = attribute(Problem(case.true, x, y, pairs=False))
    assert told.tail == 0


def test_zeros_show_the_bias_only_and_say_so():
    case = bench.Case(SHAPE, "probe")
    x = np.zeros((4, 128), np.float32)
    device = fd.Device(case.linear, bias_count=2)
    told = attribute(Problem(case.true, x, fd.run(device, x, "dev"), pairs=False))
    assert told.verdict in (Verdict.FAULT, Verdict.ONE_OF)
    assert any("bias" in one.text for one in told.explanations)
    moved = fd.move_rows(case.linear, fd.row_orders(96)["deal32"], "y")
    told = attribute(Problem(case.true, x, fd.run(fd.Device(moved), x, "dev"), pairs=False))
    assert told.verdict is Verdict.ONE_OF  # the outputs, or the bias: zeros cannot tell


def test_one_device_has_one_name(case):
    """z + 1 is codes - 1; P = 8 dealt is P = 16 dealt back at N = 128."""
    known = {fault.name: fault for fault in fd.faults(case.linear, case.other)}
    y = fd.run(known["zero points +1"].plant(case.linear), case.x, "dev")
    told = attribute(Problem(case.true, case.x, y, pairs=False))
    [one] = told.explanations
    assert one.ids == ("zeros-plus:z",)
    assert "every code is one too low" in one.spellings


def test_columns_that_were_not_cropped_are_a_finding(case):
    y = fd.run(fd.Device(case.linear), case.x, "dev")
    wide = np.concatenate([y, np.zeros((len(y), 32), np.float32)], axis=1)
    told = attribute(Problem(case.true, case.x, wide, pairs=False))
    assert told.verdict is Verdict.FAULT
    assert told.tail == 128
    assert told.explanations == ()


@pytest.mark.parametrize("kind", ["probe", "random4"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_outputs_finer_than_bf16_are_no_fault(kind, dtype):
    """A device that rounds less than any documented one, its scales not rounded to bf16 either."""
    case = bench.Case((64, 256, 64, False, True), kind)
    known = {fault.name: fault for fault in fd.faults(case.linear, case.other)}
    for name in (None, "zero points +1", "deal16 of q"):
        linear = case.linear if name is None else known[name].plant(case.linear).linear
        with np.errstate(all="ignore"):
            product = case.x @ fd.weights(linear, scale_as_is=True).T + linear.bias
            y = product.astype(dtype).astype(np.float32)
        told = attribute(Problem(case.true, case.x, y, pairs=False))
        assert told.verdict is (Verdict.ROUNDING if name is None else Verdict.LIKELY), name
        assert len(told.explanations) == (name is not None)
