"""Three-way attribution: one Linear, its inputs, and what came out of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution import nonfinite
from qassay.comparison.attribution.edits import Edit
from qassay.comparison.attribution.inputs import Inputs
from qassay.comparison.attribution.library import LANES, library
from qassay.comparison.attribution.predict import predict
from qassay.comparison.attribution.search import (
    Search,
    Verified,
    merged,
    off_channels,
    same_outputs,
)
from qassay.comparison.attribution.setup import Floats, Setup
from qassay.comparison.attribution.verdict import Attribution, Explanation, Verdict
from qassay.core.errors import UsageError
from qassay.core.finding import Certainty
from qassay.runtimes.sophgo.arithmetic import Model

Mask = npt.NDArray[np.bool_]

_NEAREST = 1.25
_MOST_LIKELY = 3
_VARIANT, _SECOND, _PART = 0.95, 0.9, 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What is to be explained.

    Attributes:
        true: The Linear as it should be.
        x: Inputs, float32 `[M, K]`; NaN and inf are allowed.
        y: Outputs, float32 `[M, N]`, or `[M, N']` with N' > N.
        models: Arithmetics that may apply, the likeliest first.
        lanes: Numbers of lanes to try; one where the chip is known.
        others: Other layers by name.
        pairs: Whether pairs of faults are tried.
        tell: Is called with what is being tried.
    """

    true: Setup
    x: Floats
    y: Floats
    models: tuple[Model, ...] = tuple(Model)
    lanes: tuple[int, ...] = LANES
    others: Mapping[str, Setup] = field(default_factory=dict)
    pairs: bool = True
    tell: Callable[[str], None] = lambda _: None


def attribute(problem: Problem) -> Attribution:
    """Return what explains an output.

    Raises:
        UsageError: Inputs, weights and outputs do not belong together.
    """
    _check(problem)
    n = problem.true.n
    width = problem.y.shape[1]
    if width > n:
        told = attribute(replace(problem, y=np.ascontiguousarray(problem.y[:, :n])))
        if told.verdict is Verdict.EXPLAINED:
            told.verdict = Verdict.FAULT
        told.tail = width
        told.tail_text = _tail_text(problem.y[:, n:])
        return told
    told, search = _read(problem, problem.y, None)
    plain = told.verdict in (Verdict.EXPLAINED, Verdict.FAULT, Verdict.ONE_OF)
    odd = told.non_finite
    if plain and not odd.born and not odd.hidden:
        return told
    tail = _flat_tail(problem, told)
    if tail is not None:
        return tail
    return told if plain or search is None else _further(problem, search, told)


def _read(
    problem: Problem, outputs: Floats, seen: Mask | None
) -> tuple[Attribution, Search | None]:
    """Return what is clean or explained by a single fault, and the search to go on with."""
    found, rows, known = nonfinite.look(problem.true, problem.x, outputs, problem.models, seen)
    if not rows.any():
        verdict = Verdict.UNEXPLAINED if found.hidden or found.born else Verdict.EXPLAINED
        return Attribution(verdict, non_finite=found, data={"rows": 0}), None
    y = np.ascontiguousarray(np.where(known, outputs, 0)[rows], np.float32)
    search = Search(
        problem.true,
        Inputs(np.ascontiguousarray(problem.x[rows]), problem.true.k // max(1, problem.true.g)),
        y,
        known[rows],
        problem.models,
    )
    told = _single(problem, search)
    told.non_finite = found
    told.data = {"finer": search.finer}
    told.channels = off_channels(y, search.clean[search.base], search.size, search.known)
    return told, search


def _check(problem: Problem) -> None:
    x, y, true = problem.x, problem.y, problem.true
    if x.ndim != 2 or y.ndim != 2 or x.shape[0] != y.shape[0] or not x.shape[0]:
        raise UsageError(
            "inputs and outputs are not rows that belong together",
            expected="x [M, K] and y [M, N]",
            found=f"x {list(x.shape)}, y {list(y.shape)}",
        )
    if x.shape[1] != true.k or y.shape[1] < true.n:
        raise UsageError(
            "inputs or outputs are not those of this weight",
            expected=f"x [M, {true.k}] and y [M, {true.n}]",
            found=f"x {list(x.shape)}, y {list(y.shape)}",
        )


def _single(problem: Problem, search: Search) -> Attribution:
    clean = search.clean_verified()
    done = Attribution(Verdict.UNEXPLAINED, clean=clean.best)
    if not search.known.any():
        return done
    if clean.models:
        done.verdict, done.models = Verdict.EXPLAINED, clean.models
        return done
    problem.tell("single faults")
    search.edits = library(problem.true, problem.lanes, problem.others)
    search.found = search.singles(search.edits)
    search.edits += (proposals := search.proposals())
    search.found += search.singles(proposals)
    done.tried = (len(search.edits), 0)
    held = search.holding(search.found)
    return _named(done, held) if held else done


def _further(problem: Problem, search: Search, done: Attribution) -> Attribution:
    """Go on where nothing fits bit for bit: rounding, pairs, what is likely, what is a part."""
    clean = search.clean_verified()
    if not search.known.any():
        return done
    overflow = done.non_finite.overflow and clean.rounding.ratio <= clean.rounding.most
    if _rounding_only(clean) or (
        overflow and (clean.exact is None or (clean.exact >= 0.9 and clean.even))
    ):
        done.verdict, done.certainty = Verdict.ROUNDING, Certainty.LIKELY
        return done
    twos: list[Verified] = []
    if problem.pairs:
        problem.tell("pairs of faults")
        common = [edit for edit in search.edits if edit.common]
        nearly = _nearly(search, clean)
        twos, tried = search.pairs(common, beside=nearly)
        twos += [] if nearly else search.refined(search.edits)
        done.tried = (done.tried[0], tried)
        held = search.holding(twos)
        if held:
            return _named(done, held)
    likely = _likely(search, search.found, clean) or _likely(search, twos, clean)
    if likely:
        done.verdict, done.certainty = Verdict.LIKELY, Certainty.LIKELY
        done.explanations = tuple(likely)
        return done
    return _partly(done, search, [edit for edit in search.edits if not edit.free])


def _named(done: Attribution, held: list[Explanation]) -> Attribution:
    done.verdict = Verdict.FAULT if len(held) == 1 else Verdict.ONE_OF
    done.certainty = Certainty.PROVEN
    done.explanations = tuple(held)
    done.models = held[0].models
    return done


def _rounding_only(clean: Verified) -> bool:
    """Whether an output is what it should be, up to another way of adding up."""
    return clean.exactly and clean.rounding.small()


def _nearly(search: Search, clean: Verified) -> list[Edit]:
    """Return the single faults that leave no more than rounding: a second one is that small.

    None where the sound device leaves no more either: then both may be that small.
    """
    if not search.inputs.dense_rows() or clean.rounding.small():
        return []
    return [one.edits[0] for one in search.found if one.rounding.small() and search.enough(one)]


def _likely(search: Search, found: Sequence[Verified], clean: Verified) -> list[Explanation]:
    """Return the faults that explain an output up to rounding: at most three devices, or none.

    A fault of the size of rounding itself needs rows in which nothing is added up, and in which
    it shows.
    """
    if not search.inputs.dense_rows():
        return []
    good = []
    for one in found:
        if not one.rounding.small() or not one.exactly:
            continue
        if not search.enough(one):
            continue
        if clean.rounding.ratio <= 2 * clean.rounding.most and (one.exact is None or clean.exactly):
            continue
        good.append(one)
    if not good:
        return []
    least = min(one.rounding.ratio for one in good)
    devices = merged([one for one in good if one.rounding.ratio <= _NEAREST * least])
    return devices if len(devices) <= _MOST_LIKELY else []


def _partly(done: Attribution, search: Search, edits: Sequence[Edit]) -> Attribution:
    """Say what explains most of the difference, if that is a good part of it."""
    by_kind: dict[str, tuple[float, Edit]] = {}
    for edit in edits:
        _, share = search.looks.get(edit.id, (0.0, 0.0))
        kind = _kind(edit)
        if kind not in by_kind or share > by_kind[kind][0]:
            by_kind[kind] = share, edit
    ranked = sorted(by_kind.values(), key=lambda one: -one[0])
    if not ranked or ranked[0][0] < _PART:
        return done
    share, edit = ranked[0]
    second = ranked[1][0] if len(ranked) > 1 else 0.0
    done.share, done.best = share, edit.text
    if share >= _VARIANT and second <= _SECOND:
        done.verdict, done.certainty = Verdict.PART, Certainty.LIKELY
    else:
        done.verdict, done.certainty = Verdict.PART, Certainty.HINT
    setup = edit.apply(search.true)
    if setup is not None:
        one = search.verify((edit,), setup)
        done.explanations = (Explanation((edit,), (), (), one.best),)
    return done


def _kind(edit: Edit) -> str:
    """Return the family of a fault: `rows:z`, `zeros:z`; variants of one share it."""
    head, _, component = edit.id.rpartition(":")
    return f"{head.partition('-')[0].rstrip('+0123456789')}:{component}"


def _flat_tail(problem: Problem, told: Attribution) -> Attribution | None:
    """Return the explanation in which rows of N' outputs were read as rows of N.

    The first M * N numbers of the device's memory were taken, N' the next multiple of P. What
    lies in the last rows was never read.
    """
    n, m = problem.true.n, len(problem.y)
    if m < 2:
        return None
    for width in sorted({-(-n // p) * p for p in {*problem.lanes, *LANES}} - {n}):
        flat = np.zeros((m, width), np.float32)
        flat.reshape(-1)[: m * n] = problem.y.reshape(-1)
        seen = (np.arange(m * width) < m * n).reshape(m, width)
        inner, search = _read(problem, flat[:, :n], np.ascontiguousarray(seen[:, :n]))
        odd = inner.non_finite
        exact = inner.verdict in (Verdict.EXPLAINED, Verdict.FAULT)
        rounded = not exact and search is not None and _rounded_behind(search)
        if (exact or rounded) and not odd.hidden and not odd.born:
            inner.certainty = Certainty.PROVEN if exact else Certainty.LIKELY
            tail = flat[:, n:][seen[:, n:]]
            inner.verdict, inner.tail = Verdict.FAULT, width
            inner.tail_text = _tail_text(tail[np.isfinite(tail)])
            inner.clean = told.clean
            return inner
    return None


def _rounded_behind(search: Search) -> bool:
    """Whether outputs are those of the sound device up to rounding, in rows behind the first.

    The first row lies where it should, however long the others are.
    """
    shown = search.known.any(axis=1) & (search.inputs.nonzero > 1)
    return bool(shown[1:].any()) and _rounding_only(search.clean_verified())


def _tail_text(tail: npt.NDArray[np.float32]) -> str:
    if not tail.size:
        return "nothing of it was seen"
    zeros = int(np.count_nonzero(tail == 0))
    if zeros == tail.size:
        return "it holds zeros: padded channels whose codes equal their zero point"
    return (
        f"{tail.size - zeros} of {tail.size} of its numbers are not zero: padded with zero bytes,"
        " whose codes do not equal their zero point"
    )


def blind_spots(problem: Problem) -> Iterator[Edit]:
    """Yield the faults of the list that give just these outputs with these inputs.

    Those that are the same device for every input are left out: they are no faults.
    """
    rows = np.isfinite(problem.x).all(axis=1)
    if not rows.any():
        return
    k, true = problem.true.k, problem.true
    inputs = Inputs(np.ascontiguousarray(problem.x[rows]), k // max(1, true.g))
    channels = np.arange(min(true.n, 48))
    base = problem.models[:1]
    rng = np.random.default_rng(1)
    probe = Inputs(rng.standard_normal((2, k)).astype(np.float32), inputs.group)

    def outputs(setup: Setup, given: Inputs) -> Floats:
        return next(iter(predict(setup, given, base, channels=channels, fast=True)))[1]

    seen, other = outputs(true, inputs), outputs(true, probe)
    for edit in library(true, problem.lanes):
        setup = edit.apply(true)
        if setup is None or not same_outputs(outputs(setup, inputs), seen):
            continue
        if not same_outputs(outputs(setup, probe), other):
            yield edit
