"""How often `qassay diagnose` names a planted fault, and whether it ever names a wrong one.

    python bench/attribution.py --jobs 2         # all of it: an hour or two on two cores
    python bench/attribution.py --shapes 4 --kinds probe --pairs 20 --clean 50 --unknown 2
    python bench/attribution.py --every 10 --pairs 40 --clean 100   # a sample of everything

A fault counts as *exact* if the one device that is named gives the planted device's outputs for
fresh inputs as well; *set* if it is one of several that are named; *clean is right* if the faulty
output equals the clean one, or if the fault did not happen. Shares are of the faults that show.
Planted faults are simulated apart from the hypotheses (`qassay.testing.faulty_devices`).

Ends with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

import numpy as np

from attribution_cases import Case, Shape, draw_pair, shapes
from qassay.comparison.attribution.attribute import Problem, attribute
from qassay.comparison.attribution.verdict import Attribution, Verdict
from qassay.testing import faulty_devices as fd

from timing import verdict

SINGLE = {"probe": 99.0, "one-hot": 98.0, "random1": 95.0, "random4": 98.0, "random16": 98.0}
"""Percent of single faults that are to be exact, by kind of inputs."""
PAIRS, UNKNOWN = 95.0, 90.0
GOOD = ("exact", "clean is right", "likely")
LARGE = 10**6
"""Weights from which on a shape is not used for pairs and for clean devices by the hundred."""
AT_ONCE = 10

Told = tuple[str, str, str, tuple[str, ...]]


@dataclass(frozen=True)
class Job:
    """A part of the whole that one process does.

    Attributes:
        part: `single probe`, `nameless random4`, `pairs`, `clean known`, `unknown random16`.
        shape: Of the Linear; None where they change from case to case.
        first: The first seed.
        count: How many seeds.
        every: Plant every n-th fault only.
        cost: About how long it takes, in any unit.
    """

    part: str
    shape: Shape | None = None
    first: int = 0
    count: int = 0
    every: int = 1
    cost: float = 0.0


@dataclass
class Tally:
    """What became of the cases of one part."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def share(self, *outcomes: str) -> float:
        """Return the percentage of such outcomes among the cases in which something shows."""
        seen = self.counts.total() - self.counts["clean is right"]
        return 100 * sum(self.counts[one] for one in outcomes) / seen if seen else 100.0

    @property
    def wrong(self) -> int:
        """How often a wrong name was proven."""
        return sum(self.counts[one] for one in ("wrong: proven", "wrong: set", "wrong: clean"))


def jobs_of(asked: argparse.Namespace) -> Iterator[Job]:
    """Yield all that is to be done."""
    chosen = list(shapes())[asked.first : asked.first + asked.shapes]
    for shape in chosen:
        size = 1 + (shape.n * shape.k / 2**17) * (1 + shape.k / 2**9)
        for kind in filter(None, asked.kinds.split(",")):
            yield Job(f"single {kind}", shape, every=asked.every, cost=size)
            yield Job(f"nameless {kind}", shape, cost=size)
    for shape in chosen[: asked.unknown]:
        size = 2 * (1 + (shape.n * shape.k / 2**17) * (1 + shape.k / 2**9))
        for kind in ("probe", "random16"):
            yield Job(f"unknown {kind}", shape, every=asked.every, cost=size)
    for part, total in (("pairs", asked.pairs), ("clean known", asked.clean),
                        ("clean unknown", asked.unknown_clean)):  # fmt: skip
        for first in range(0, total, AT_ONCE):
            yield Job(part, first=first, count=min(AT_ONCE, total - first))


def done(job: Job) -> tuple[Job, float, list[Told]]:
    """Do a part; return seconds of processor time and what became of each case."""
    start = time.process_time()
    part, _, kind = job.part.partition(" ")
    cases = {"pairs": _pairs, "clean": _clean}.get(part, _faults)(job, kind)
    found = [(outcome, what, told.verdict.value,
              tuple(one.text for one in told.explanations[:3]) or (told.best,))
             for what, outcome, told in cases]  # fmt: skip
    return job, time.process_time() - start, found


def _faults(job: Job, kind: str) -> Iterator[tuple[str, str, Attribution]]:
    part = job.part.partition(" ")[0]
    assert job.shape is not None
    case = Case(job.shape, kind)
    listed = list(fd.faults(case.linear, case.other))[:: job.every]
    listed = list(fd.nameless(case.linear)) if part == "nameless" else listed
    for place, fault in enumerate(listed):
        arithmetic = {"single": fd.ARITHMETICS[place % 3], "unknown": fd.UNKNOWN[place % 2]}
        device = fault.plant(case.linear)
        yield fault.name, *case.judge(device, arithmetic.get(part, "dev"))


def _pairs(job: Job, _: str) -> Iterator[tuple[str, str, Attribution]]:
    chosen = [shape for shape in shapes() if shape.n * shape.k < LARGE]
    for seed in range(job.first, job.first + job.count):
        rng = np.random.default_rng([5, seed])
        shape = chosen[rng.integers(len(chosen))]
        case = Case(shape, "probe")
        name, device = draw_pair(case, rng)
        yield f"{tuple(shape)} {name}", *case.judge(device, "dev")


def _clean(job: Job, arithmetic: str) -> Iterator[tuple[str, str, Attribution]]:
    kinds = fd.ARITHMETICS if arithmetic == "known" else fd.UNKNOWN
    chosen = list(shapes())
    for seed in range(job.first, job.first + job.count):
        shape = chosen[seed % len(chosen)]
        case = Case(shape, ("probe", "random4", "one-hot", "random16")[seed // 7 % 4], seed)
        y = fd.run(fd.Device(case.linear), case.x, kinds[seed % len(kinds)], seed)
        told = attribute(Problem(case.true, case.x, y, others=case.others))
        good = told.verdict in (Verdict.EXPLAINED, Verdict.ROUNDING)
        yield f"{tuple(shape)} seed {seed}", "exact" if good else "accused", told


def run_all(listed: list[Job], processes: int, *, quiet: bool) -> dict[str, Tally]:
    """Do all parts, the longest first, and return what became of them."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by what is started from here on
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    tallies: dict[str, Tally] = {}
    listed.sort(key=lambda job: -job.cost)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for future in as_completed([pool.submit(done, job) for job in listed]):
            job, seconds, found = future.result()
            tally = tallies.setdefault(job.part, Tally())
            tally.seconds += seconds
            tally.counts.update(outcome for outcome, *_ in found)
            if quiet:
                continue
            place = tuple(job.shape) if job.shape else f"from {job.first}"
            print(f"     {job.part} {place}: {len(found)} cases, {seconds:.0f} s", flush=True)
            fine = ("not explained",) if job.part.startswith("nameless") else GOOD
            for told in found:
                if told[0] not in fine:
                    print("       ", *told, flush=True)
    return tallies


def judged(tallies: dict[str, Tally]) -> bool:
    """Print every part beside its bar; return whether all are met."""
    met = []
    for part in sorted(tallies):
        tally = tallies[part]
        counts = ", ".join(f"{count} {name}" for name, count in tally.counts.most_common())
        print(f"     {part}: {tally.counts.total()} cases, {counts}; {tally.seconds:.0f} s")
        group, _, kind = part.partition(" ")
        if group == "single":
            met.append(verdict(f"{part}: % exact", tally.share("exact"), SINGLE.get(kind),
                               at_least=True))  # fmt: skip
        elif group == "pairs":
            met.append(verdict(f"{part}: % exact", tally.share("exact"), PAIRS, at_least=True))
        elif group == "unknown":
            told = tally.share("exact", "set", "likely")
            met.append(verdict(f"{part}: % in a set of 3", told, UNKNOWN, at_least=True))
        elif group == "clean":
            met.append(verdict(f"{part}: accused", tally.counts["accused"], 0))
        elif kind != "random1":
            named = tally.counts.total() - tally.counts["not explained"]
            met.append(verdict(f"{part}: named or clean", named, 0))
        if group != "clean":
            met.append(verdict(f"{part}: wrong and proven", tally.wrong, 0))
    return all(met)


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--shapes", type=int, default=99, help="how many shapes")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--kinds", default=",".join(SINGLE), help="kinds of inputs")
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--clean", type=int, default=1000)
    parser.add_argument("--unknown", type=int, default=99, help="shapes for unknown arithmetic")
    parser.add_argument("--unknown-clean", type=int, default=200)
    parser.add_argument("--every", type=int, default=1, help="plant every n-th fault only")
    parser.add_argument("--quiet", action="store_true", help="bars only, not each miss")
    asked = parser.parse_args()
    start = time.perf_counter()
    tallies = run_all(list(jobs_of(asked)), asked.jobs, quiet=asked.quiet)
    met = judged(tallies)
    print(f"     {time.perf_counter() - start:.0f} s with {asked.jobs} processes")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
