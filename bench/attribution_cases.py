"""Planted faults, and what becomes of each: the cases of `bench/attribution.py`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.attribute import Problem, attribute
from qassay.comparison.attribution.inputs import Inputs
from qassay.comparison.attribution.predict import predict
from qassay.comparison.attribution.probes import probes
from qassay.comparison.attribution.setup import Setup, setup_of
from qassay.comparison.attribution.verdict import Attribution, Explanation, Verdict
from qassay.runtimes.sophgo.arithmetic import Model
from qassay.testing import faulty_devices as fd

Array = npt.NDArray[Any]

PAIRED = frozenset({"tail", "overflow", "nan hidden", "another layer", "rows permuted", "two rows",
                    "two columns", "dead lanes"})  # fmt: skip
"""Kinds of faults that are not planted two at a time."""


class Shape(NamedTuple):
    """Of a Linear."""

    n: int
    k: int
    group: int
    symmetric: bool
    bias: bool


def shapes() -> Iterator[Shape]:
    """Yield the shapes that are measured."""
    small = itertools.product((64, 96, 128, 192), (256,), (32, 64, 128))
    large = ((96, 2048, 64), (192, 2048, 32), (2048, 256, 64), (2048, 2048, 128))
    for place, (n, k, g) in enumerate((*small, *large)):
        yield Shape(n, k, g, place % 3 == 1, place % 2 == 0)


def inputs_of(kind: str, setup: Setup, seed: int) -> Array:
    """Return inputs by name: `probe`, `one-hot`, `random16`; of another seed than the weights."""
    if kind == "probe":
        return probes(setup, seed=seed + 10**6).x
    if kind == "one-hot":
        x = probes(setup, seed=seed + 10**6)
        return x.x[[name.startswith("one-hot") for name in x.kinds]]
    rows = int(kind.removeprefix("random"))
    rng = np.random.default_rng([seed, rows])
    return rng.standard_normal((rows, setup.k)).astype(np.float32)


class Case:
    """One Linear and its inputs."""

    def __init__(self, shape: tuple[int, int, int, bool, bool], kind: str, seed: int = 1) -> None:
        n, k, g, symmetric, bias = shape
        self.linear = fd.random_linear(seed, n, k, g, symmetric=symmetric, bias=bias)
        self.other = fd.random_linear(seed + 1000, n, k, g, symmetric=symmetric, bias=bias)
        self.true = setup_of(self.linear.canonical(), self.linear.bias, 4)
        self.others = {"other": setup_of(self.other.canonical(), self.other.bias, 4)}
        self.x = inputs_of(kind, self.true, seed)
        rng = np.random.default_rng(77)
        fresh = probes(self.true, seed=9).x[:-2]
        self.fresh = np.concatenate([fresh, rng.standard_normal((6, k)).astype(np.float32)])
        self.clean: dict[str, Array] = {}

    def judge(
        self, device: fd.Device, arithmetic: str, *, pairs: bool = True
    ) -> tuple[str, Attribution]:
        """Return what became of a fault, and what was said."""
        clean = self.clean.get(arithmetic)
        if clean is None:
            clean = self.clean[arithmetic] = fd.run(fd.Device(self.linear), self.x, arithmetic, 4)
        y = fd.run(device, self.x, arithmetic, 4)  # sums in the same order: equal is the same
        told = attribute(Problem(self.true, self.x, y, others=self.others, pairs=pairs))
        return self._judged(told, device, arithmetic, clean, y), told

    def _judged(
        self, told: Attribution, device: fd.Device, arithmetic: str, clean: Array, y: Array
    ) -> str:
        odd = told.non_finite
        if (device.f16_sum and odd.overflow) or (device.hides_nan and odd.hidden and not odd.born):
            return "exact"
        if told.verdict in (Verdict.EXPLAINED, Verdict.ROUNDING):
            same = (clean == y) | (np.isnan(clean) & np.isnan(y))
            if same.mean() > 0.999 or (device.f16_sum and np.isfinite(y).all()):
                return "clean is right"  # an accumulator that did not overflow is no fault
            return "rounding" if told.verdict is Verdict.ROUNDING else "wrong: clean"
        if told.verdict is Verdict.UNEXPLAINED:
            return "not explained"
        if device.after is not None and told.tail and not told.explanations:
            return "exact"
        if told.verdict is Verdict.PART:
            return "part"
        right = [self.same(one, device, arithmetic) for one in told.explanations]
        if told.verdict is Verdict.FAULT:
            return "exact" if any(right) else "wrong: proven"
        proven = told.verdict is Verdict.ONE_OF
        if not any(right):
            return "wrong: set" if proven else "wrong: likely"
        if len(right) > 3:
            return "large set"
        return "set" if proven else "likely"

    def same(self, explanation: Explanation, device: fd.Device, arithmetic: str) -> bool:
        """Whether the device that was named gives the outputs of the planted one, for new inputs.

        Under a documented arithmetic, where the planted one is not: what is named is a device.
        """
        setup = self.true
        for edit in explanation.edits:
            applied = edit.apply(setup)
            assert applied is not None
            setup = applied
        base = arithmetic if arithmetic in fd.ARITHMETICS else "dev"
        truth = fd.run(device, self.fresh, base, 5)
        finite = np.isfinite(truth)
        for _, p in predict(setup, Inputs(self.fresh, self.linear.group), (Model(base),)):
            return float(((p == truth) | ~finite).mean()) > 0.99
        return False


def combine(one: fd.Fault, two: fd.Fault, linear: fd.Linear) -> fd.Device | None:
    """Return the device with two faults, or None where the simulator cannot combine them."""
    first = one.plant(linear)
    second = two.plant(first.linear)
    if first.weight is not None or second.weight is not None:
        return None
    return fd.Device(
        second.linear,
        scale_as_is=first.scale_as_is or second.scale_as_is,
        int8=first.int8 or second.int8,
        bias_count=first.bias_count * second.bias_count,
        features=first.features if second.features is None else second.features,
        after=first.after or second.after,
    )


def draw_pair(case: Case, rng: np.random.Generator) -> tuple[str, fd.Device]:
    """Return two unlike faults at random, as one device."""
    listed = [one for one in fd.faults(case.linear, case.other) if one.kind not in PAIRED]
    while True:
        one, two = (listed[place] for place in rng.choice(len(listed), 2, replace=False))
        if one.kind == two.kind or (one.kind.startswith("rows") and two.kind.startswith("rows")):
            continue
        device = combine(one, two, case.linear)
        if device is not None:
            return f"{one.name} + {two.name}", device
