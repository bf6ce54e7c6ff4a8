"""The search: what is clean, which single fault, which pair; and when to say nothing.

Clean comes before single and single before pair. Names are `proven` only where the prediction
equals the output and every other device that was tried trails by ten nats. What no name explains
is said to be unexplained: there is no least bad guess.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice, permutations
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution import routes
from qassay.comparison.attribution.edits import Edit
from qassay.comparison.attribution.evidence import (
    NATS,
    Fit,
    Rounding,
    even,
    fit,
    rounding,
    tolerance,
    unit,
)
from qassay.comparison.attribution.inputs import Inputs, screening_rows
from qassay.comparison.attribution.predict import bias_of, predict, weight_rms
from qassay.comparison.attribution.screen import Screen, screened
from qassay.comparison.attribution.setup import Floats, Setup, quick_bf16
from qassay.comparison.attribution.verdict import Explanation, text_of
from qassay.runtimes.sophgo.arithmetic import Model

Mask = npt.NDArray[np.bool_]
Edits = tuple[Edit, ...]
Tried = TypeVar("Tried", bound="tuple[object, Setup]")

_CHANNELS = 48
_SURVIVORS = 16
_PAIR_MOST = 60_000
_AT_ONCE = 64
_FAR = 1e-4
"""Share of outputs that may be off by more than rounding where nothing is added up."""


@dataclass(slots=True, eq=False)
class Verified:
    """A combination of faults, its prediction compared with every output.

    Attributes:
        edits: The faults; none for the clean setup.
        setup: With them.
        fits: By arithmetic.
        exact: The greatest share of equal outputs where nothing is added up; None: no such.
        rounding: The least difference where something is, in units of bf16's rounding.
        even: Whether what is unequal there is spread, not one channel's, and near.
        models: Arithmetics under which it holds.
    """

    edits: Edits
    setup: Setup
    fits: dict[Model, Fit]
    exact: float | None
    rounding: Rounding
    even: bool = True
    models: tuple[Model, ...] = ()

    @property
    def exactly(self) -> bool:
        """Whether outputs are equal where nothing is added up, or nothing tells."""
        return self.exact is None or (self.exact >= 0.99 and self.even)

    @property
    def best(self) -> Fit:
        """The best of its fits."""
        return max(self.fits.values(), key=lambda one: one.likelihood)


@dataclass(slots=True, eq=False)
class Search:
    """The state of one search.

    Attributes:
        true: The Linear as it should be.
        inputs: Rows that were run, finite.
        y: What came out, `[M, N]`.
        known: Which elements count.
        models: Arithmetics to try.
        edits: The single faults that were tried.
        found: Those of them that survived the screen.
    """

    true: Setup
    inputs: Inputs
    y: Floats
    known: Mask
    models: tuple[Model, ...]
    edits: list[Edit] = field(default_factory=list)
    found: list[Verified] = field(default_factory=list)
    size: Floats = field(init=False)
    clean: dict[Model, Floats] = field(init=False)
    base: Model = field(init=False)
    screen: Screen = field(init=False)
    finer: bool = field(init=False)
    looks: dict[str, tuple[float, float]] = field(default_factory=dict)
    verified: dict[tuple[str, ...], Verified] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.true.keep()
        rms = weight_rms(self.true.weight())
        typical = float(np.sqrt(np.mean(np.square(rms, dtype=np.float64)))) if rms.size else 0.0
        self.size = self.inputs.norms * np.maximum(rms, np.float32(typical))[None, :]
        self.clean = dict(predict(self.true, self.inputs, self.models))
        bias = bias_of(self.true)
        self.base = max(
            self.models,
            key=lambda one: fit(self.y, self.clean[one], bias, self.size, self.known).likelihood,
        )
        kept = np.ascontiguousarray(self.y).view(np.uint32) & 0xFFFF
        self.finer = int(np.count_nonzero(kept)) > self.y.size // 100
        self.screen = self._screen()

    def _screen(self) -> Screen:
        rows = screening_rows(self.inputs)
        n = self.true.n
        clean = self.clean[self.base]
        gap = np.abs(np.where(self.known, self.y - clean, 0)) / np.maximum(self.size, 1e-30)
        rng = np.random.default_rng(0)
        some = np.sort(rng.permutation(n)[: _CHANNELS // 2])
        rest = np.setdiff1d(np.arange(n), some)
        worst = rest[np.argsort(-gap.sum(axis=0)[rest], kind="stable")[: _CHANNELS // 2]]
        channels = np.concatenate([some, worst])
        return screened(self.true, self.inputs, rows, channels, self.base, self.y, clean, self.size,
                        self.known, slice(0, len(some)))  # fmt: skip

    def verify(self, edits: Edits, setup: Setup) -> Verified:
        """Compare a prediction with every output, under every arithmetic; results are kept."""
        key = tuple(edit.id for edit in edits)
        known = self.verified.get(key)
        if known is not None:
            return known
        bias = bias_of(setup)
        weight = setup.weight()
        rms = weight_rms(weight)
        size = self.inputs.norms * np.maximum(rms, np.sqrt(np.mean(np.square(rms))))[None, :]
        fits: dict[Model, Fit] = {}
        exact_rows = self.inputs.exact
        dense = self.inputs.nonzero > 1
        exact: tuple[float, bool] | None = None
        least = Rounding()
        told = predict(setup, self.inputs, self.models, weight=weight) if edits else ()
        for model, p in told or self.clean.items():
            fits[model] = fit(self.y, p, bias, self.size, self.known)
            if exact_rows.any():
                share = self._share(p, bias, exact_rows)
                exact = share if exact is None else max(exact, share)
            masked = np.where(self.known, p, self.y)
            here_ = rounding(self.y, masked, size, dense, self.true.k)
            least = min(least, here_, key=lambda one: one.ratio)
        share_, spread = exact or (None, True)
        done = Verified(edits, setup, fits, share_, least, spread)
        done.models = tuple(m for m, one in fits.items() if one.holds(1e-4 if edits else 1e-5))
        self.verified[key] = done
        return done

    def _share(self, p: Floats, bias: Floats | None, rows: Mask) -> tuple[float, bool]:
        """Return the share of outputs of some rows that are equal, or as near as their type tells.

        And whether the others are spread, and no further off than rounding. A device whose
        outputs are finer than bf16 rounds less than any documented one.
        """
        y, told, known = self.y[rows], p[rows], self.known[rows]
        with np.errstate(all="ignore"):
            close = np.abs(y - told) <= tolerance(y, told, bias, self.size[rows])
        same = (y == told) | close if self.finer else y == told
        count = int(np.count_nonzero(known))
        far = int(np.count_nonzero(~same & ~close & known))
        share = float(np.count_nonzero(same & known)) / max(1, count)
        return share, far <= _FAR * count and even(~same & known)

    def clean_verified(self) -> Verified:
        """Return how the true setup does."""
        return self.verify((), self.true)

    def singles(self, edits: Iterable[Edit]) -> list[Verified]:
        """Screen single faults and return those that survived, compared with everything."""
        looked: list[tuple[float, Edit, Setup]] = []
        applied = ((edit, edit.apply(self.true)) for edit in edits)
        for part in _parts((edit, setup) for edit, setup in applied if setup is not None):
            near, shares = self.screen.look([setup for _, setup in part])
            for (edit, setup), close, share in zip(part, near, shares, strict=True):
                self.looks[edit.id] = float(close), float(share)
                looked.append((float(close), edit, setup))
        looked.sort(key=lambda one: -one[0])
        return [
            self.verify((edit,), setup)
            for place, (near, edit, setup) in enumerate(looked)
            if near >= 0.9 or (place < 2 and near >= 0.5)
        ]

    def pairs(
        self, edits: Sequence[Edit], beside: Sequence[Edit] = ()
    ) -> tuple[list[Verified], int]:
        """Try pairs of unlike faults.

        Args:
            edits: Faults to combine.
            beside: If there are any, one of a pair has to be one of these.

        Returns:
            What survived, and how many were tried.
        """
        fixed = {edit.id for edit in beside}
        usable = self._distinct([*beside, *(edit for edit in edits if edit.id not in fixed)])
        small = self.screen.part(self.true, self.inputs)
        hits: list[tuple[float, Edits, Setup]] = []
        tried = 0
        for part in _parts(islice(_combined(usable, fixed), _PAIR_MOST)):
            tried += len(part)
            near, _ = small.look([setup for _, setup in part], shares=False)
            good = [one for one, close in zip(part, near, strict=True) if close >= 0.85]
            if good:
                near, shares = self.screen.look([setup for _, setup in good])
                hits += [(float(share), *one) for one, close, share
                         in zip(good, near, shares, strict=True) if close >= 0.9]  # fmt: skip
        hits.sort(key=lambda hit: -hit[0])
        return [self.verify(edits_, setup) for _, edits_, setup in hits[: 4 * _SURVIVORS]], tried

    def _distinct(self, edits: Sequence[Edit]) -> list[tuple[Edit, Setup]]:
        """Return the edits that show on the screen, one for each thing they show."""
        seen: set[bytes] = {self._shown(self.true)}
        kept: list[tuple[Edit, Setup]] = []
        for edit in edits:
            setup = edit.apply(self.true)
            if setup is None:
                continue
            shown = self._shown(setup)
            if shown not in seen:
                seen.add(shown)
                kept.append((edit, setup))
        return kept

    def _shown(self, setup: Setup) -> bytes:
        sums = self.screen.sums
        told = predict(setup, self.inputs, (self.base,), rows=sums.rows, channels=sums.channels,
                       fast=True)  # fmt: skip
        return next(iter(told))[1].tobytes()

    def proposals(self) -> list[Edit]:
        """Return what the parametric routes propose."""
        clean = self.clean[self.base]
        return list(routes.fitted(self.true, self.inputs, self.y, clean, self.known))

    def refined(self, edits: Sequence[Edit], most: int = 6) -> list[Verified]:
        """Return the single faults that explain most, each with a fitted one on top of it."""
        ranked = sorted(edits, key=lambda edit: -self.looks.get(edit.id, (0.0, 0.0))[1])
        found = []
        for edit in ranked[:most]:
            first = edit.apply(self.true)
            if first is None or edit.free:
                continue
            near = dict(predict(first, self.inputs, (self.base,)))[self.base]
            proposed = routes.fitted(first, self.inputs, self.y, near, self.known, swaps=False)
            for more in proposed:
                setup = more.apply(first)
                if setup is not None and self.screen.look([setup], shares=False)[0][0] >= 0.9:
                    found.append(self.verify((edit, more), setup))
        return found

    def enough(self, found: Verified) -> bool:
        """Whether outputs hold twice the bits that were fitted to them."""
        free = sum(edit.free for edit in found.edits)
        if free <= 0:
            return True
        clean = self.clean[self.base]
        told = 8.0 * float(np.count_nonzero((self.y != clean) & self.known))
        rows = len(np.unique(self.inputs.x[self.inputs.nonzero > 0], axis=0))
        return told >= 2 * free and (free <= 16 or rows >= 3)

    def holding(self, found: Iterable[Verified]) -> list[Explanation]:
        """Return the devices that hold, the likeliest first, those within ten nats of it."""
        good = [one for one in found if one.models and self.enough(one)]
        if not good:
            return []
        good.sort(key=lambda one: (-one.best.likelihood, _rank(one.edits)))
        top = good[0].best.likelihood
        near = [one for one in good if top - one.best.likelihood < NATS]
        return merged(near)


def _combined(
    usable: Sequence[tuple[Edit, Setup]], fixed: AbstractSet[str]
) -> Iterator[tuple[Edits, Setup]]:
    """Yield pairs of unlike faults with what they make, in both orders where that matters."""
    for (a, first), (b, second) in permutations(usable, 2):
        if a.way == b.way or (fixed and a.id not in fixed and b.id not in fixed):
            continue
        if not first.edited & second.edited and a.id > b.id:
            continue  # they commute
        setup = b.apply(first)
        if setup is not None:
            yield (a, b), setup


def _parts(items: Iterable[Tried]) -> Iterator[list[Tried]]:
    """Yield lists of so many items as are looked at together."""
    rest = iter(items)
    while part := list(islice(rest, _AT_ONCE)):
        yield part


def _rank(edits: Edits) -> tuple[int, float, int, int]:
    """Return how simple a name is: fewer faults, nothing fitted, the output before components.

    Of two ways to tell one order, a step left out comes before one taken too often.
    """
    order = {"y": 0, "b": 1, "z": 2, "m": 2, "s": 3, "sz": 4, "sm": 4, "q": 5, "x": 6}
    last = max((order.get(edit.component, 7) for edit in edits), default=0)
    often = sum("undeal" in edit.id or "inverse" in edit.id for edit in edits)
    return len(edits), sum(edit.free for edit in edits), last, often


def merged(found: Sequence[Verified]) -> list[Explanation]:
    """Return one explanation for each device, whatever it is called."""
    groups: dict[bytes, list[Verified]] = {}
    for one in found:
        key = signature(one.setup, one.models) if len(found) > 1 else b""
        groups.setdefault(key, []).append(one)
    done = []
    for members in groups.values():
        members.sort(key=lambda one: _rank(one.edits))
        first = members[0]
        texts = dict.fromkeys(text_of(one.edits) for one in members[1:])
        texts.pop(text_of(first.edits), None)
        done.append(Explanation(first.edits, tuple(texts), first.models, first.best))
    return _families(done)


def _families(devices: list[Explanation]) -> list[Explanation]:
    """Return one explanation for variants of one fault that these outputs cannot part."""
    kept: dict[tuple[str, ...], Explanation] = {}
    for one in devices:
        key = tuple(sorted(edit.kind for edit in one.edits))
        first = kept.setdefault(key, one)
        if first is not one:
            variants = (*first.variants, one.text)
            kept[key] = replace(first, variants=variants)
    return list(kept.values())


def signature(setup: Setup, models: tuple[Model, ...]) -> bytes:
    """Return what two setups share exactly if they give the same output for every input."""
    digest = hashlib.blake2b(digest_size=16)
    weight = setup.weight()
    if models and all(model.rounds_weight for model in models):
        weight = quick_bf16(weight)
    if setup.x_columns is not None:
        moved = np.empty_like(weight)
        moved[:, setup.x_columns] = weight
        weight = moved
    digest.update(np.ascontiguousarray(weight + np.float32(0)).tobytes())
    bias = bias_of(setup)
    if bias is not None and bias.any():
        digest.update(setup.bias_mode.replace("doubled", "once").encode() + bias.tobytes())
    digest.update(setup.x_mode.encode())
    return digest.digest()


def same_outputs(a: Floats, b: Floats) -> bool:
    """Whether two predictions are equal, NaN to NaN."""
    return bool(np.array_equal(a, b, equal_nan=True))


def off_channels(y: Floats, clean: Floats, size: Floats, known: Mask) -> int:
    """Return how many channels differ by more than rounding from what should be there."""
    with np.errstate(all="ignore"):
        allowed = size * np.float32(2**-6) + unit(np.maximum(np.abs(y), np.abs(clean)))
        off = (np.abs(y - clean) > allowed) & known
    return int(np.count_nonzero(off.any(axis=0)))
