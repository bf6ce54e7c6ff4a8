"""What would fix a Linear that does not fit, tried out on the same catalog, and what it costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from qassay.core.finding import Severity
from qassay.runtimes.catalog.grammar import filled
from qassay.runtimes.fit import Fit, Judgement, Outcome, outcome_of, version_numbers
from qassay.runtimes.fit_profile import Asked, Place
from qassay.runtimes.shapes.linear import Linear, Shapes, patterns

GROUPS = (32, 64, 128, 256)
_FURTHEST = 4096
"""How far beyond a size its padding is looked for."""
MOST_TRIED = 8_000
"""How many Linears are judged to find remedies for one model."""


class _TooMany(Exception):  # noqa: N818 - an end, not a fault
    """As much was tried as is tried for one model."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """One way out.

    Attributes:
        kind: `group-size`, `pad`, `split`, `keep-16-bit`, `elsewhere`, `advice`,
            `not-tried`.
        helps: Whether it does; one that does not is told as well, so that nobody tries it.
        text: One sentence.
        data: The numbers.
    """

    kind: str
    helps: bool
    text: str
    data: dict[str, Any] = field(default_factory=dict)


def packed_bytes(n: int, k: int, group: int, bits: int) -> int:
    """Return the bytes of codes, 16-bit scales and 8-bit zero points of `[N, K]`.

    At 4 bits that is `4 + 24 / g` bits a weight.
    """
    groups = 1 if group <= 0 else -(-k // group)
    return n * (-(-k * bits // 8) + 3 * groups)


def remedies(fit: Fit, judgement: Judgement) -> Iterator[Remedy]:
    """Yield what would fix the Linears of a judgement, and what would not.

    A way out counts only if it is one for every Linear of the judgement.
    """
    if judgement.failure.severity < Severity.WARNING:
        return
    rule = judgement.failure.rule
    every = list({linear.alike: linear for linear in judgement.linears}.values())
    yield from _advice(judgement)
    try:
        if rule.dimension in ("N", "K", "g"):
            yield _group_size(fit, judgement, every)
        if rule.pads:
            yield from _pad(fit, judgement, every)
        if rule.splits:
            yield from _split(fit, judgement)
        if rule.dimension in ("N", "K"):
            yield from _keep(fit, judgement, every)
        yield from _elsewhere(fit, every)
    except _TooMany:
        text = "other ways out were not tried: the model fails in more ways than are tried out"
        yield Remedy("not-tried", False, text)


def _passes(fit: Fit, linear: Linear, asked: Asked, shapes: Shapes | None = None) -> bool:
    """Tell whether a Linear would run as asked, nothing silently made of it.

    Raises:
        _TooMany: Enough was tried.
    """
    outcome = _tried(fit, linear, asked, shapes)
    return not outcome.unknown and (outcome.worst or Severity.INFO) < Severity.WARNING


def _tried(fit: Fit, linear: Linear, asked: Asked, shapes: Shapes | None = None) -> Outcome:
    if fit.tried >= MOST_TRIED:
        raise _TooMany
    fit.tried += 1
    return outcome_of(linear, shapes or fit.shapes, fit.profile, asked)


def _advice(judgement: Judgement) -> Iterator[Remedy]:
    for text in judgement.failure.rule.fix:
        yield Remedy("advice", True, filled(text, judgement.failure.values))


def _group_size(fit: Fit, judgement: Judgement, every: list[Linear]) -> Remedy:
    rule, quantized = judgement.failure.rule, bool(every[0].quantized)
    now = judgement.failure.values.get("g")
    good = []
    for size in GROUPS if rule.group_helps else ():
        asked = replace(fit.asked, group_size=size)
        changed = (replace(one, group=size) if quantized else one for one in every)
        if size != now and all(_passes(fit, one, asked) for one in changed):
            good.append(size)
    data = {"group_sizes": good}
    if not good:
        why = "no group size helps"
        if rule.dimension == "N":
            why += ": the limit is on N, and a group size changes K/g only"
        return Remedy("group-size", False, why, data)
    shown = " or ".join(map(str, good))
    again = ", quantized anew" if quantized else ""
    return Remedy("group-size", True, f"group size {shown}{again}", data)


def _padded(fits: Callable[[int], bool], size: int) -> int | None:
    """Return the least size from `size` on that fits."""
    return next((each for each in range(size, size + _FURTHEST) if fits(each)), None)


def _size_of(linear: Linear, asked: Asked) -> tuple[int, int]:
    """Return group size and bits that a Linear has or gets."""
    group = linear.group if linear.quantized and linear.group is not None else asked.group_size
    bits = linear.bits if linear.quantized and linear.bits is not None else asked.bits
    return group, bits


def _pad(fit: Fit, judgement: Judgement, every: list[Linear]) -> Iterator[Remedy]:
    axis = judgement.failure.rule.pads
    before = every[0].n if axis == "N" else every[0].k

    def made(linear: Linear, size: int) -> Linear:
        return replace(linear, n=size) if axis == "N" else replace(linear, k=size)

    to = _padded(
        lambda size: all(_passes(fit, made(one, size), fit.asked) for one in every), before
    )
    if to is None:
        return
    weights = nbytes = 0
    for linear in judgement.linears:
        group, bits = _size_of(linear, fit.asked)
        copies, longer = linear.experts or 1, made(linear, to)
        weights += longer.weights - linear.weights
        nbytes += copies * (
            packed_bytes(longer.n, longer.k, group, bits)
            - packed_bytes(linear.n, linear.k, group, bits)
        )
    share = (to - before) / before
    yield Remedy(
        "pad",
        True,
        f"pad {axis} from {before} to {to} (+{share:.0%} of these layers, {_more(nbytes)}):"
        " qassay pad",
        {"axis": axis, "from": before, "to": to, "share": share, "weights": weights,
         "bytes": nbytes},
    )  # fmt: skip


def _split(fit: Fit, judgement: Judgement) -> Iterator[Remedy]:
    """Yield the part that fits and the rest apart."""
    lanes, n = judgement.failure.values.get("P"), judgement.linears[0].n
    if not isinstance(lanes, int) or lanes < 1:
        return
    kept = n - n % (lanes * fit.asked.tp)  # every rank gets whole rounds of lanes
    data = {"kept": kept, "rest": n - kept}
    if kept:
        text = f"split N into {kept} with codes and {n - kept} at 16 bits, and concatenate"
        rest = replace(judgement.linears[0], n=n - kept, quantized=False, because="kept")
        checkpoint = replace(fit.shapes, method=fit.shapes.method or "auto-round")
        if not _passes(fit, rest, fit.asked, checkpoint):
            text += f" (the rest compiled apart: {fit.asked.place} would quantize it again)"
        yield Remedy("split", True, text, data)
    else:
        yield Remedy(
            "split", False, f"a split leaves nothing: N is below {lanes * fit.asked.tp}", data
        )


def _keep(fit: Fit, judgement: Judgement, every: list[Linear]) -> Iterator[Remedy]:
    """Yield keeping the layers at 16 bits, in a checkpoint that says so."""
    kept = [replace(one, quantized=False, because="kept") for one in every]
    checkpoint = replace(fit.shapes, method=fit.shapes.method or "auto-round")
    names = patterns(judgement.linears)
    extra = 0
    for linear in judgement.linears:
        group, bits = _size_of(linear, fit.asked)
        packed = packed_bytes(linear.n, linear.k, group, bits)
        extra += (linear.experts or 1) * (2 * linear.n * linear.k - packed)
    data = {"ignore": names, "bytes": extra}
    if all(_passes(fit, one, fit.asked, checkpoint) for one in kept):
        where = "" if fit.shapes.quantized else "a checkpoint quantized beforehand that "
        verb = "keep" if fit.shapes.quantized else "keeps"
        yield Remedy(
            "keep-16-bit",
            True,
            f"{where}{verb} them at 16 bits ({_more(extra)}): {', '.join(names[:4])}"
            + (f" and {len(names) - 4} more" if len(names) > 4 else ""),
            data,
        )
    else:
        text = f"keeping them at 16 bits in the checkpoint does not help: {fit.asked.place}"
        text += " quantizes them again"
        here = fit.asked.place
        newer = [
            place
            for place in fit.profile.places()
            if place.variant == here.variant
            and version_numbers(place.version) > version_numbers(here.version)
            and all(_passes(fit, one, replace(fit.asked, place=place), checkpoint) for one in kept)
        ]
        if newer:
            text += f", which {' or '.join(place.version for place in newer)} does not"
            data["with"] = [str(place) for place in newer]
        yield Remedy("keep-16-bit", False, text, data)


def _elsewhere(fit: Fit, every: list[Linear]) -> Iterator[Remedy]:
    here = fit.asked.place
    takes: list[Place] = []
    lives: list[Place] = []
    for place in fit.profile.places():
        if place == here:
            continue
        asked = replace(fit.asked, place=place)
        if all(_passes(fit, one, asked) for one in every):
            takes.append(place)
            continue
        outcomes = [_tried(fit, one, asked) for one in every]
        failed = any(each.unknown or each.worst is Severity.ERROR for each in outcomes)
        newer = version_numbers(place.version) > version_numbers(here.version)
        if not failed and place.variant == here.variant and newer:
            lives.append(place)
    if takes:
        newest = max((each.version for each in takes), key=version_numbers)
        best = [place for place in takes if place.version == newest]
        same = [place for place in takes if place.variant == here.variant]
        shown = ", ".join(map(str, same or best))
        data = {"places": [str(place) for place in takes]}
        verb = "take" if ", " in shown else "takes"
        yield Remedy("elsewhere", True, f"{shown} {verb} them as they are", data)
    if lives:
        shown = ", ".join(map(str, lives))
        text = f"{shown} does not stop, and silently runs them at 16 bits"
        yield Remedy("elsewhere", True, text, {"places": [str(place) for place in lives]})


def _more(number: int) -> str:
    """Return how much more, or less, some bytes are."""
    return f"{_bytes(abs(number))} {'more' if number >= 0 else 'less'}"


def _bytes(number: int) -> str:
    """Return a number of bytes as people read it."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(number) >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"
