"""What rules about runtimes have in common: one finding for Linears that fail for one reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from qassay.core.finding import Finding
from qassay.core.text import safe
from qassay.rules.base import ModelFacts, ModelRule
from qassay.runtimes.catalog.grammar import filled
from qassay.runtimes.fit import Fit, Judgement
from qassay.runtimes.fit_remedies import Remedy, remedies
from qassay.runtimes.shapes.linear import patterns

KEY = "fit"
"""Where a container's `extra` keeps what a runtime does with the model."""

_NAMED = 3


class FitRule(ModelRule):
    """A rule that words the judgements that carry its code."""

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each reason."""
        found = model.container.extra.get(KEY)
        if not isinstance(found, Fit):
            return
        for judgement in found.judgements:
            if judgement.failure.code == self.code:
                yield self._one(found, judgement)

    def _one(self, found: Fit, judgement: Judgement) -> Finding:
        failure = judgement.failure
        ways = list(remedies(found, judgement))
        return self.finding(
            message_of(judgement),
            path=found.path,
            field=f"{found.profile.catalog.runtime}.{failure.rule.id}",
            count=judgement.count,
            severity=failure.severity,
            certainty=failure.certainty,
            data=data_of(found, judgement, ways),
            help=help_of(ways) or self.help,
        )


def message_of(judgement: Judgement) -> str:
    """Return which Linears, why, and what the toolchain does about it."""
    failure, rule = judgement.failure, judgement.failure.rule
    values = _shared_out(failure.values)
    does = filled(rule.does, values)
    if rule.error:
        does += f": '{rule.error}'"
    parts = [f"{_subject(judgement)}: {filled(rule.says, values)}; {does}"]
    if judgement.how == "again" and rule.dimension != "model":
        parts.append("the checkpoint keeps them at 16 bits, which this version does not look at")
    parts += failure.doubts
    return "; ".join(parts)


def _shared_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts in words: a size that ranks share is written out, as conditions are on a share.

    `N = 192` on two ranks becomes `N = 192 / 2 = 96`.
    """
    shown = dict(values)
    for whole, part in (("N", "Np"), ("K", "Kp")):
        if values.get(part) is not None and values[part] != values.get(whole):
            shown[whole] = f"{values[whole]} / {values['tp']} = {values[part]}"
    return shown


def _subject(judgement: Judgement) -> str:
    names = patterns(judgement.linears)
    shown = ", ".join(safe(_tail(name), 80) for name in names[:_NAMED])
    if len(names) > _NAMED:
        shown += f" and {len(names) - _NAMED} more"
    noun = "Linear" if judgement.count == 1 else "Linears"
    return f"{judgement.count:,} {noun} ({shown})"


def _tail(pattern: str) -> str:
    """Return what follows the number of the layer."""
    return pattern.rpartition("*.")[2] or pattern


def help_of(ways: list[Remedy]) -> str:
    """Return the "Fix:" line: what helps, then what does not."""
    good = [way.text for way in ways if way.helps]
    bad = [way.text for way in ways if not way.helps]
    return "; or ".join(good) + ("" if not bad else "; " if good else "") + "; ".join(bad)


def data_of(found: Fit, judgement: Judgement, ways: list[Remedy]) -> dict[str, Any]:
    """Return the numbers behind the message."""
    failure, rule, asked = judgement.failure, judgement.failure.rule, found.asked
    shapes = Counter((one.n, one.k) for one in judgement.linears)
    facts = {name: failure.values.get(name) for name in sorted(_names(judgement))}
    data: dict[str, Any] = {
        "stage": rule.stage,
        "step": rule.step,
        "rule": f"{found.profile.catalog.runtime}.{rule.id}",
        "effect": rule.effect.value,
        "runtime": asked.place.runtime,
        "variant": asked.place.variant,
        "version": asked.place.version,
        "to": asked.to,
        "weights": judgement.how,
        "condition": rule.condition.text,
        "facts": {name: value for name, value in facts.items() if value is not None},
        "shapes": [{"n": n, "k": k, "layers": count} for (n, k), count in shapes.items()],
        "layers": [one.name for one in judgement.linears],
        "remedies": [
            {"kind": way.kind, "helps": way.helps, "text": way.text, **way.data} for way in ways
        ],
        "sources": list(rule.source),
    }
    if rule.error:
        data["error"] = rule.error
    if failure.doubts:
        data["doubts"] = list(failure.doubts)
    return data


def _names(judgement: Judgement) -> set[str]:
    rule = judgement.failure.rule
    names = set(rule.condition.names) | (set(rule.when.names) if rule.when else set())
    return names | {"g", "bits"}
