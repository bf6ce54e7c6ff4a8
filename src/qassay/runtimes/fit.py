"""Which Linears of a model a runtime takes, and what becomes of the others.

Every Linear meets the entries of the runtime's catalog in their order. Linears that fail one entry
for one reason (the same entry, the same size on the axis that it is about) are one judgement.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qassay.core.container import Skipped
from qassay.core.finding import Certainty, Severity
from qassay.runtimes.catalog.expressions import Expression, Unknown
from qassay.runtimes.catalog.grammar import UNKNOWN, CatalogRule, Effect
from qassay.runtimes.fit_profile import Asked, Cap, Place, Profile, as_codes
from qassay.runtimes.shapes.linear import Linear, Shapes

_DIMENSIONS = {"N": "N", "K": "K", "g": "g", "bits": "bits"}
_WANTED = {
    "bits": "how many bits its codes have",
    "g": "its group size",
    "G": "its group size",
    "sym": "whether its codes are symmetric",
    "act_order": "whether its columns are in another order (act-order)",
}
_SURENESS = (Certainty.PROVEN, Certainty.LIKELY, Certainty.HINT)


@dataclass(frozen=True, slots=True)
class Failure:
    """One entry that a Linear does not meet.

    Attributes:
        rule: The entry.
        code: `Q701` to `Q704`.
        severity: How bad.
        certainty: How sure.
        doubts: Why not surer, and conditions in words.
        values: The facts of the Linear.
    """

    rule: CatalogRule
    code: str
    severity: Severity
    certainty: Certainty
    doubts: tuple[str, ...]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What becomes of one Linear.

    Attributes:
        how: See `Profile.settle`.
        failures: What it does not meet, in the order of the catalog.
        unknown: Why it was not judged, "" where it was.
    """

    how: str
    failures: tuple[Failure, ...] = ()
    unknown: str = ""

    @property
    def worst(self) -> Severity | None:
        """The worst of the failures, None for a Linear that fits."""
        return max((each.severity for each in self.failures), default=None)


@dataclass(slots=True)
class Judgement:
    """Linears that fail one entry for one reason.

    Attributes:
        failure: What fails, with the facts of the first of them.
        how: How the runtime comes to run them; see `Profile.settle`.
        linears: They.
    """

    failure: Failure
    how: str
    linears: list[Linear] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of Linears; stacked experts count each."""
        return sum(linear.experts or 1 for linear in self.linears)


@dataclass(slots=True)
class Fit:
    """What a runtime does with a model.

    Attributes:
        path: The model, as reports name it.
        shapes: Its Linears.
        profile: The runtime.
        asked: In which mode, on what.
        judgements: What does not fit, in the order of the first Linear concerned.
        outcomes: What becomes of each Linear, in the order of `shapes`.
        unread: What was not judged, with the reason.
        tried: How many Linears were judged to find remedies; there is a limit to that.
    """

    path: str
    shapes: Shapes
    profile: Profile
    asked: Asked
    judgements: list[Judgement] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    unread: list[Skipped] = field(default_factory=list)
    tried: int = 0


def fit(path: str, shapes: Shapes, profile: Profile, asked: Asked) -> Fit:
    """Return what a runtime does with each Linear of a model."""
    result = Fit(path, shapes, profile, asked, unread=list(shapes.unread))
    known: dict[Linear, Outcome] = {}
    groups: dict[tuple[object, ...], Judgement] = {}
    for linear in shapes.linears:
        alike = linear.alike
        outcome = known.get(alike)
        if outcome is None:
            outcome = known[alike] = outcome_of(linear, shapes, profile, asked)
        result.outcomes.append(outcome)
        if outcome.unknown:
            result.unread.append(Skipped(linear.name, outcome.unknown))
        for failure in outcome.failures:
            rule = failure.rule
            size = failure.values.get(_DIMENSIONS.get(rule.dimension, ""))
            key = (rule.id, failure.code, size, outcome.how)
            groups.setdefault(key, Judgement(failure, outcome.how)).linears.append(linear)
    result.judgements = list(groups.values())
    return result


def outcome_of(linear: Linear, shapes: Shapes, profile: Profile, asked: Asked) -> Outcome:
    """Return what becomes of one Linear."""
    if linear.quantized is not None:
        return _judged(linear, shapes, profile, asked)
    # The configuration does not say how it is kept: it counts only if that does not matter.
    both = [
        _judged(as_codes(linear, quantized=quantized), shapes, profile, asked)
        for quantized in (False, True)
    ]
    if not any(each.failures or each.unknown for each in both):
        return both[0]
    return Outcome("", unknown="the configuration does not say whether it is quantized")


def _judged(linear: Linear, shapes: Shapes, profile: Profile, asked: Asked) -> Outcome:
    how = profile.settle(linear, shapes, asked)
    if how not in ("codes", "floats", "again"):
        return Outcome(how)
    reason = profile.unread(linear, how)
    if reason:
        return Outcome(how, unknown=reason)
    values = profile.facts(linear, shapes, asked, how)
    values |= {"variant": asked.place.variant, "version": asked.place.version}
    caps = profile.caps(linear, asked, how)
    failures: list[Failure] = []
    rejected: dict[str, list[CatalogRule]] = {}
    for rule in profile.catalog.rules:
        try:
            if not applies(rule, asked.place, values) or rule.condition.holds(values):
                continue
        except Unknown as error:
            return Outcome(how, tuple(failures), _unknown(rule, str(error), linear, asked))
        if rule.effect is Effect.KERNEL_REJECTED:
            rejected.setdefault(rule.path, []).append(rule)
        failures.append(_failure(rule, values, caps))
        if rule.effect is Effect.HARD_ERROR:
            break  # it gets no further
    taken = set(profile.catalog.paths) - set(rejected)
    if rejected and not taken:
        failures = [_refused(each) for each in failures]
    return Outcome(how, tuple(failures))


def _unknown(rule: CatalogRule, what: str, linear: Linear, asked: Asked) -> str:
    """Return why an entry cannot be decided, for people."""
    if what in ("Np", "Kp"):
        size = linear.n if what == "Np" else linear.k
        return f"{what[0]} = {size} is not split evenly by {asked.tp} ranks"
    return f"{_WANTED.get(what, what)} is not known, and the entry {rule.id} needs it"


def applies(rule: CatalogRule, place: Place, values: Mapping[str, Any]) -> bool:
    """Tell whether an entry is about a Linear in a place.

    Raises:
        Unknown: That depends on something that is not known.
    """
    when = rule.applies
    if when.variants and place.variant not in when.variants:
        return False
    if not _in_range(when.since, when.until, place.version):
        return False
    for wanted, name in ((when.act_order, "act_order"), (when.symmetric, "sym")):
        if wanted is None:
            continue
        if values.get(name) is None:
            raise Unknown(name)
        if values[name] is not wanted:
            return False
    if when.split and values.get("tp", 1) == 1:
        return False
    condition: Expression | None = rule.when
    return condition is None or condition.holds(values)


def _in_range(since: str, until: str, version: str) -> bool:
    """Tell whether a version lies in a range; one that is not known may."""
    if not since and not until:
        return True
    numbers = version_numbers(version)
    if since and since != UNKNOWN and numbers and numbers < version_numbers(since):
        return False
    return not (until and until != UNKNOWN and numbers and numbers >= version_numbers(until))


def version_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version, `()` where there are none."""
    found = re.match(r"v?(\d{1,9}(?:\.\d{1,9}){0,5})", text)
    return tuple(map(int, found[1].split("."))) if found else ()


def _failure(rule: CatalogRule, values: Mapping[str, Any], caps: Mapping[str, Cap]) -> Failure:
    limits: list[Cap] = [(rule.confidence.certainty, "")]
    cap = caps.get(rule.aspect) if rule.aspect else caps.get("")
    if cap is not None:
        limits.append(cap)
    if rule.applies.open:
        limits.append((Certainty.LIKELY, f"versions: {rule.applies.words}"))
    certainty = max((each for each, _ in limits), key=_SURENESS.index)
    doubts = tuple(dict.fromkeys(why for _, why in limits if why))
    return Failure(
        rule, rule.effect.code, _graded(rule.effect.severity, certainty), certainty, doubts, values
    )


def _graded(severity: Severity, certainty: Certainty) -> Severity:
    """Return how bad a failure is: a hint alone fails nobody's build."""
    return min(severity, Severity.WARNING) if certainty is Certainty.HINT else severity


def _refused(failure: Failure) -> Failure:
    """Return what a kernel's refusal is when no other kernel takes the layer."""
    if failure.rule.effect is not Effect.KERNEL_REJECTED:
        return failure
    severity = _graded(Severity.ERROR, failure.certainty)
    return Failure(
        failure.rule, "Q701", severity, failure.certainty, failure.doubts, failure.values
    )
