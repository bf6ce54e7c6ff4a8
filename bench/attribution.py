"""How often `qassay diagnose` names a planted fault, and whether it ever names a wrong one.

    python bench/attribution.py                 # all of it: hours on one core
    python bench/attribution.py --shapes 4 --probes probe --pairs 20 --clean 50 --unknown 2

A fault counts as *exact* if the one device that is named gives the planted device's outputs for
fresh inputs as well; *set* if it is one of several that are named; *clean is right* if the faulty
output equals the clean one. Planted faults are simulated apart from the hypotheses
(`qassay.testing.faulty_devices`).
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections import Counter

import numpy as np

from qassay.compare.attribution.attribute import Problem, attribute
from qassay.compare.attribution.inputs import Inputs
from qassay.compare.attribution.predict import predict
from qassay.compare.attribution.probes import probes
from qassay.compare.attribution.setup import setup_of
from qassay.compare.attribution.verdict import Verdict
from qassay.runtimes.sophgo.arithmetic import Model
from qassay.testing import faulty_devices as fd


def shapes():
    small = itertools.product((64, 96, 128, 192), (256,), (32, 64, 128))
    large = ((96, 2048, 64), (192, 2048, 32), (2048, 256, 64), (2048, 2048, 128))
    for place, (n, k, g) in enumerate((*small, *large)):
        yield n, k, g, place % 3 == 1, place % 2 == 0


def inputs_of(kind, setup, seed):
    k = setup.k
    rng = np.random.default_rng(seed)
    if kind == "probe":
        return probes(setup, seed=seed).x
    if kind == "one-hot":
        x = probes(setup, seed=seed)
        return x.x[[name.startswith("one-hot") for name in x.kinds]]
    m = int(kind.removeprefix("random"))
    return rng.standard_normal((m, k)).astype(np.float32)


class Case:
    """One Linear, its inputs and its faults."""

    def __init__(self, shape, kind, seed=1):
        n, k, g, symmetric, bias = shape
        self.linear = fd.random_linear(seed, n, k, g, symmetric=symmetric, bias=bias)
        self.other = fd.random_linear(seed + 1000, n, k, g, symmetric=symmetric, bias=bias)
        self.true = setup_of(self.linear.canonical(), self.linear.bias, 4)
        self.others = {"other": setup_of(self.other.canonical(), self.other.bias, 4)}
        self.x = inputs_of(kind, self.true, seed)
        rng = np.random.default_rng(77)
        fresh = probes(self.true, seed=9).x[:-2]
        self.fresh = np.concatenate([fresh, rng.standard_normal((6, k)).astype(np.float32)])

    def judge(self, devices, arithmetic, pairs=True):
        """Return what became of a fault, and what was said."""
        clean = fd.run(fd.Device(self.linear), self.x, arithmetic, 3)
        device = devices[-1]
        y = fd.run(device, self.x, arithmetic, 4)
        told = attribute(Problem(self.true, self.x, y, others=self.others, pairs=pairs))
        return self._judged(told, device, arithmetic, clean, y), told

    def _judged(self, told, device, arithmetic, clean, y):
        odd = told.non_finite
        if (device.f16_sum and odd.overflow) or (device.hides_nan and odd.hidden and not odd.born):
            return "exact"
        same = (clean == y) | (np.isnan(clean) & np.isnan(y))
        if told.verdict in (Verdict.EXPLAINED, Verdict.ROUNDING):
            if same.mean() > 0.999:
                return "clean is right"
            return "rounding" if told.verdict is Verdict.ROUNDING else "wrong: clean"
        if told.verdict is Verdict.UNEXPLAINED:
            return "not explained"
        if device.after is not None and told.tail and not told.explanations:
            return "exact"
        if told.verdict is Verdict.PART:
            return "part"
        right = [self._same(one, device, arithmetic) for one in told.explanations]
        proven = told.verdict in (Verdict.FAULT, Verdict.ONE_OF)
        if not any(right):
            return (
                "wrong: proven"
                if told.verdict is Verdict.FAULT
                else ("wrong: set" if proven else "wrong: likely")
            )
        if told.verdict is Verdict.FAULT:
            return "exact"
        if len(right) > 3:
            return "large set"
        return "set" if proven else "right among three, likely"

    def _same(self, explanation, device, arithmetic):
        setup = self.true
        for edit in explanation.edits:
            setup = edit.apply(setup)
        base = arithmetic if arithmetic in fd.ARITHMETICS else "dev"
        truth = fd.run(device, self.fresh, base, 5)
        finite = np.isfinite(truth)
        for _, p in predict(setup, Inputs(self.fresh, self.linear.group), (Model(base),)):
            share = float(((p == truth) | ~finite).mean())
            return share > 0.99
        return False


def combine(one, two, linear):
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


class Tally:
    def __init__(self, title):
        self.title, self.counts, self.odd, self.started = title, Counter(), [], time.time()

    def add(self, outcome, what, told):
        self.counts[outcome] += 1
        if outcome not in ("exact", "clean is right", "right among three, likely"):
            names = [one.text for one in told.explanations] or [told.best]
            self.odd.append((outcome, what, told.verdict.value, names[:3]))

    def show(self, *, odd):
        total = sum(self.counts.values())
        good = self.counts["exact"] + self.counts["clean is right"]
        seen = total - self.counts["clean is right"]
        share = self.counts["exact"] / seen if seen else 1.0
        print(
            f"{self.title}: {total} cases, right {good / max(1, total):.2%}, of what shows exact"
            f" {share:.2%}, {dict(self.counts)}, {time.time() - self.started:.0f} s",
            flush=True,
        )
        for outcome in self.odd if odd else []:
            print("   ", *outcome, flush=True)
        return self.counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--shapes", type=int, default=99)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--probes", default="probe,one-hot,random1,random4,random16")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--clean", type=int, default=1000)
    parser.add_argument("--unknown", type=int, default=99, help="shapes for unknown arithmetic")
    parser.add_argument("--unknown-clean", type=int, default=200)
    parser.add_argument("--every", type=int, default=1, help="plant every n-th fault only")
    parser.add_argument("--quiet", action="store_true")
    asked = parser.parse_args()
    chosen = list(shapes())[asked.first : asked.first + asked.shapes]
    wrong = 0
    for kind in filter(None, asked.probes.split(",")):
        tally, unnamed = Tally(f"single faults, {kind}"), Tally(f"nameless faults, {kind}")
        for shape in chosen:
            case = Case(shape, kind)
            listed = list(fd.faults(case.linear, case.other))[:: asked.every]
            for place, fault in enumerate(listed):
                arithmetic = fd.ARITHMETICS[place % 3]
                tally.add(*_with(case, [fault.plant(case.linear)], arithmetic, (shape, fault.name)))
            for fault in fd.nameless(case.linear):
                unnamed.add(*_with(case, [fault.plant(case.linear)], "dev", (shape, fault.name)))
        wrong += tally.show(odd=not asked.quiet)["wrong: proven"]
        wrong += unnamed.show(odd=not asked.quiet)["wrong: proven"]
    wrong += _pairs(chosen, asked)["wrong: proven"]
    _clean(chosen, asked)
    wrong += _unknown(chosen, asked)["wrong: proven"]
    return 1 if wrong else 0


def _with(case, devices, arithmetic, what, *, pairs=True):
    outcome, told = case.judge(devices, arithmetic, pairs)
    return outcome, what, told


def _pairs(chosen, asked):
    tally = Tally("pairs of faults, probe")
    rng = np.random.default_rng(5)
    cases = [Case(shape, "probe") for shape in chosen if shape[0] * shape[1] < 10**6]
    while cases and sum(tally.counts.values()) < asked.pairs:
        case = cases[rng.integers(len(cases))]
        listed = [
            f
            for f in fd.faults(case.linear, case.other)
            if f.kind
            not in (
                "overflow",
                "nan hidden",
                "tail",
                "rows permuted",
                "two rows",
                "two columns",
                "dead lanes",
                "another layer",
            )
        ]
        one, two = (listed[i] for i in rng.choice(len(listed), 2, replace=False))
        if one.kind == two.kind or (one.kind.startswith("rows") and two.kind.startswith("rows")):
            continue
        device = combine(one, two, case.linear)
        if device is not None:
            n, k = case.linear.codes.shape
            tally.add(*_with(case, [device], "dev", ((n, k), one.name, two.name)))
    return tally.show(odd=not asked.quiet)


def _clean(chosen, asked):
    for title, kinds, total in (
        ("clean, known", fd.ARITHMETICS, asked.clean),
        ("clean, unknown", fd.UNKNOWN, asked.unknown_clean),
    ):
        tally = Tally(title)
        for seed in range(total):
            shape = chosen[seed % len(chosen)]
            case = Case(shape, ("probe", "random4", "one-hot", "random16")[seed // 7 % 4], seed)
            device = fd.Device(case.linear)
            y = fd.run(device, case.x, kinds[seed % len(kinds)], seed)
            told = attribute(Problem(case.true, case.x, y, others=case.others))
            good = told.verdict in (Verdict.EXPLAINED, Verdict.ROUNDING)
            tally.add("exact" if good else "accused", (shape, seed), told)
        tally.show(odd=True)


def _unknown(chosen, asked):
    tally = Tally("single faults, unknown arithmetic")
    for shape in chosen[: asked.unknown]:
        for kind in ("probe", "random16"):
            case = Case(shape, kind)
            for place, fault in enumerate(list(fd.faults(case.linear, case.other))[:: asked.every]):
                device = fault.plant(case.linear)
                arithmetic = fd.UNKNOWN[place % 2]
                tally.add(*_with(case, [device], arithmetic, (shape, kind, fault.name)))
    return tally.show(odd=not asked.quiet)


if __name__ == "__main__":
    sys.exit(main())
