"""What rules about a device's outputs have in common: each words the causes that carry its code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from qassay.core.finding import Certainty, Finding, Severity
from qassay.core.text import safe
from qassay.rules.base import Rule, share_of

if TYPE_CHECKING:
    from qassay.comparison.attribution.facts import Diagnosis, Outcome
    from qassay.comparison.attribution.verdict import Explanation


class DiagnosisRule(Rule):
    """A rule that looks at the outputs of a device."""

    def check(self, diagnosis: Diagnosis) -> Iterator[Finding]:
        """Yield one finding for each cause with this rule's code."""
        return worded(self, diagnosis)


_ANOTHER_TYPE = frozenset({"scales-exact:s", "scales-f16:s", "scales-bf16:s"})
"""No fault by themselves where no chip is named that rounds scales to bf16."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that is wrong with an output.

    Attributes:
        code: Of the rule that reports it.
        text: What, with numbers.
        certainty: How sure.
        data: Numbers.
        severity: Other than the rule's.
        help: What to do, other than the rule says.
        count: How many outputs or channels.
    """

    code: str
    text: str
    certainty: Certainty = Certainty.PROVEN
    data: dict[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    help: str = ""
    count: int | None = None


def worded(rule: Rule, diagnosis: Diagnosis) -> Iterator[Finding]:
    """Yield the findings of one rule; a rule about two models words its faults on a device, too."""
    several = len(diagnosis.outcomes) > 1
    for outcome in diagnosis.outcomes:
        for cause in causes(outcome):
            if cause.code == rule.code:
                finer = not diagnosis.on and cause.data.get("fault") in _ANOTHER_TYPE
                yield rule.finding(
                    f"{safe(outcome.name, 60)}: {cause.text}" if several else cause.text,
                    path=diagnosis.path,
                    tensor=diagnosis.layer,
                    field=outcome.name,
                    count=cause.count or 1,
                    severity=Severity.INFO if finer else cause.severity,
                    certainty=cause.certainty,
                    data=cause.data,
                    help=cause.help,
                )


def causes(outcome: Outcome) -> Iterator[Cause]:
    """Yield everything that is wrong with one output."""
    yield from _not_finite(outcome)
    told = outcome.told
    verdict = told.verdict.value
    if told.tail and verdict == "unexplained":
        # Of a tail behind numbers that nothing explains, nothing is known either.
        yield Cause(
            "Q607",
            f"rows of {told.tail} output channels, and the first of them are not what the weights"
            " give: not cropped, or the output of another layer",
            Certainty.HINT,
            {"channels": told.tail},
        )
    elif told.tail:
        yield Cause(
            "Q607",
            f"rows of {told.tail} output channels were not cropped; {told.tail_text}",
            told.certainty if verdict == "fault" else Certainty.PROVEN,
            {"channels": told.tail},
        )
    if verdict == "fault":
        for one in told.explanations:
            yield from _named(outcome, one, Certainty.PROVEN)
    elif verdict in ("one-of", "likely"):
        yield _several(outcome)
    elif verdict == "part":
        share = told.share or 0.0
        yield Cause(
            "Q616",
            f"differs from what the weights give; a fault like this one explains {share:.0%} of the"
            f" difference, not all: {told.best}",
            told.certainty,
            {"share": share, "like": told.best, **_fit(outcome)},
        )
    elif verdict == "unexplained" and not (told.non_finite.born and not told.channels):
        yield _unexplained(outcome)


def _not_finite(outcome: Outcome) -> Iterator[Cause]:
    odd = outcome.told.non_finite
    elements = outcome.elements
    where, place = "", {}
    if odd.where is not None:
        place = {"row": odd.where[0], "channel": odd.where[1]}
        where = f", the first in row {odd.where[0]}, channel {odd.where[1]}"
    if odd.hidden:
        tail = "; they are what NaN and infinity read as zero give" if odd.zeroed else ""
        yield Cause(
            "Q608",
            f"{share_of(odd.hidden, elements, 'outputs')} are finite where they should be NaN or"
            f" infinite{where}{tail}",
            data={
                "hidden": odd.hidden,
                "expected": odd.expected,
                "read_as_zero": odd.zeroed,
                **place,
            },
            help="let NaN through: no maximum, clamp or conversion to integers that drops it",
            count=odd.hidden,
        )
    if odd.born and odd.overflow:
        yield Cause(
            "Q803",
            f"{share_of(odd.born, elements, 'outputs')} overflow as in an f16 accumulator: each"
            f" adds up beyond 65504{where}",
            data={"overflowed": odd.born, **place},
            # an output in f16 has that range, whatever adds up; a bf16 one has not
            severity=None if outcome.told.data.get("finer") else Severity.ERROR,
            count=odd.born,
        )
    elif odd.born and not outcome.told.tail:
        yield Cause(
            "Q801",
            f"{share_of(odd.born, elements, 'outputs')} are not finite where they should be{where}",
            data={"born": odd.born, **place},
            count=odd.born,
        )


def _named(outcome: Outcome, one: Explanation, certainty: Certainty) -> Iterator[Cause]:
    """Yield one cause for each fault of an explanation."""
    told = outcome.told
    beside = "" if len(one.edits) < 2 else f" (one of {len(one.edits)} faults that act together)"
    equal = (
        f": {share_of(one.fit.equal, one.fit.elements, 'outputs')} are equal bit for bit to what"
        " that gives"
    )
    for edit in one.edits:
        also = [text for text in one.spellings if text != edit.text][:4]
        spelled = f"; the same device: {'; '.join(also)}" if also else ""
        variants = "; these inputs do not part it from: " + "; ".join(one.variants[:3])
        yield Cause(
            edit.code,
            f"{edit.text}{beside}{equal}{spelled}{variants if one.variants else ''}",
            certainty,
            {
                "fault": edit.id,
                "arithmetic": [model.value for model in told.models],
                "equal": one.fit.equal,
                "elements": one.fit.elements,
                "spellings": list(one.spellings),
                "variants": list(one.variants),
                **dict(edit.data or {}),
            },
            help=remedy(edit.id),
            count=max(1, told.channels),
        )


def _several(outcome: Outcome) -> Cause:
    told = outcome.told
    first = told.explanations[0]
    if told.verdict.value == "likely":
        listed = "; or ".join(one.text for one in told.explanations)
        text = f"{listed}: that explains the outputs up to rounding, of an arithmetic not known"
    else:
        listed = "; or ".join(one.text for one in told.explanations[:4])
        text = (
            f"{listed}: each of these {len(told.explanations)} gives these outputs bit for bit;"
            " the inputs of `qassay probe` would part them"
        )
    return Cause(
        first.edits[0].code,
        text,
        Certainty.LIKELY,
        {
            "faults": [list(one.ids) for one in told.explanations],
            "arithmetic": [model.value for model in told.models],
        },
        help=remedy(first.edits[0].id),
        count=max(1, told.channels),
    )


def _unexplained(outcome: Outcome) -> Cause:
    told = outcome.told
    singles, pairs = told.tried
    worst = outcome.device.channels[0] if outcome.device.channels else None
    most = "" if worst is None else f", most in channel {worst[0]}"
    return Cause(
        "Q616",
        f"differs from what the weights give in {told.channels} output channels{most}, and none of"
        f" {singles:,} faults and {pairs:,} pairs of them explains it",
        Certainty.PROVEN,
        {
            "channels": told.channels,
            "tried": [singles, pairs],
            "worst_channel": None if worst is None else worst[0],
            **_fit(outcome),
        },
        count=max(1, told.channels),
    )


def _fit(outcome: Outcome) -> dict[str, Any]:
    clean = outcome.told.clean
    if clean is None:
        return {}
    return {"equal": clean.equal, "elements": clean.elements}


_REMEDIES = (
    ("rows-deal", "deal channels back: run `qassay layout` over what the device was given and"
     " compare it with the order that the chip wants"),
    ("rows-undeal", "deal channels to the lanes once: run `qassay layout` over what the device was"
     " given"),
    ("rows-awq", "apply AWQ's order once, to codes and to zero points alike"),
    ("columns-pairs", "pack low nibbles first, even features in the low nibble"),
    ("columns-awq", "apply AWQ's order once, to codes and to zero points alike"),
    ("columns", "give features in the order of the weight's columns, in the weight or in what is"
     " multiplied by it: undo once what moved them"),
    ("dead", "look at whether these channels are computed and copied back at all, and at their"
     " scales"),
    ("groups", "index scales and zero points by row, then group: [N, K/g]"),
    ("group-size", "give the device the group size that the scales have"),
    ("zeros", "read zero points by one convention: GPTQ v1 stores them less one"),
    ("codes", "read codes as unsigned, and subtract the zero point"),
    ("layer", "pack the weights of this layer under its own name"),
)  # fmt: skip


def remedy(edit: str) -> str:
    """Return what to do about a fault, "" for what its rule says."""
    return next((text for start, text in _REMEDIES if edit.startswith(start)), "")


def title(outcome: Outcome, on: str = "") -> str:
    """Return the verdict on one output in a sentence.

    Args:
        outcome: The output.
        on: The chip that was named, "" for none.
    """
    told = outcome.told
    odd = told.non_finite
    words = {
        "explained": "explained bit for bit by a documented arithmetic: not a fault",
        "one-of": "one of several faults; these inputs cannot tell which",
        "rounding": "differs from what should come out by rounding alone",
        "part": "a fault explains a part of the difference",
        "unexplained": "not explained",
    }
    verdict = told.verdict.value
    if verdict == "fault" and not told.explanations:
        sure = "a fault" if told.certainty is Certainty.PROVEN else "likely a fault"
        said = f"{sure}: rows of {told.tail} output channels were not cropped"
    elif verdict == "fault":
        said = _fault(told.explanations[0], on)
    elif verdict == "likely":
        listed = "; or ".join(one.text for one in told.explanations)
        said = f"likely a fault: {listed}; the device's arithmetic is not known"
    else:
        said = words[verdict]
    if odd.hidden or (odd.born and (odd.overflow or not told.tail)):
        lost = "NaN or infinity is hidden" if odd.hidden else "outputs are NaN or infinite"
        said = f"a fault: {lost}; all other outputs: {said}"
    return f"{safe(outcome.name, 60)}: {said}"


def _fault(one: Explanation, on: str) -> str:
    finer = [edit.text for edit in one.edits if not on and edit.id in _ANOTHER_TYPE]
    wrong = [edit.text for edit in one.edits if edit.text not in finer]
    if not wrong:
        return f"no fault by itself: {'; and '.join(finer)}; nothing else is wrong"
    beside = f" ({'; '.join(finer)}: no fault by itself)" if finer else ""
    return f"a fault: {'; and '.join(wrong)}{beside}"
