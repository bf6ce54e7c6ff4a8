"""The check that was published for candle's Q8_0, taken literally, in its own words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from qassay.core.finding import MAX_LOCATIONS, Certainty, Finding, Location, Severity
from qassay.encodings.base import Encoding, Floats
from qassay.guards.floats import Array
from qassay.runtimes.preflight import F16_MAX, preflight, published_message

_NAMES = {
    "Q501": "scale-overflow",
    "Q502": "block-underflows-to-zero",
    "Q503": "coarse-scale",
    "Q504": "nan-would-vanish",
}
_PIECE = 1 << 18
"""Weights looked at together, whole blocks."""


@dataclass(slots=True)
class _Found:
    """Blocks that the check refuses for one reason.

    Attributes:
        count: How many.
        places, messages: The first of them.
    """

    count: int = 0
    places: list[Location] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)


def look_literally(array: Array, to: type[Encoding], name: str) -> list[Finding]:
    """Return what the published check says of an array, one finding for each kind of reason."""
    found = {code: _Found() for code in _NAMES}
    for first, blocks in _pieces(array, to.block):
        _add(found, first, blocks, array, to)
    findings = [
        Finding(
            code=code,
            name=_NAMES[code],
            severity=Severity.ERROR,
            certainty=Certainty.PROVEN,
            message=each.messages[0],
            tensor=name or None,
            field=to.id,
            count=each.count,
            locations=tuple(each.places),
            data={"target": to.id, "messages": each.messages},
        )
        for code, each in found.items()
        if each.count
    ]
    return sorted(findings, key=lambda finding: finding.locations[0].block or 0)


def _pieces(array: Array, block: int) -> Iterator[tuple[int, Floats]]:
    """Yield the number of the first block, and blocks, until there are no more."""
    for start in range(0, array.size, _PIECE):
        weights = array.floats(start, min(_PIECE, array.size - start))
        yield start // block, weights.reshape(-1, block)


def _add(
    found: dict[str, _Found], first: int, blocks: Floats, array: Array, to: type[Encoding]
) -> None:
    facts = preflight(blocks, to)
    refused = facts.refused_by_published_check
    if not refused.any():
        return
    reasons = [facts.not_finite, np.abs(facts.exact) > F16_MAX, facts.stored == 0]
    codes = np.select(reasons, [504, 501, 502], 503)
    row = array.shape[-1] if array.shape else 1
    for code, each in found.items():
        chosen = np.flatnonzero(refused & (codes == int(code[1:])))
        each.count += chosen.size
        for block in chosen[: MAX_LOCATIONS - len(each.places)]:
            element = max(int(facts.first[block]), 0)
            flat = (first + int(block)) * to.block + element
            value = blocks[block, element] if code == "Q504" else facts.amax[block]
            each.places.append(
                Location(flat // row, flat % row, first + int(block), value=float(value))
            )
            message = published_message(facts, blocks, int(block)) or ""
            # The published words count blocks from the beginning of what they are given.
            each.messages.append(message.replace(f"block {block}:", f"block {first + block}:", 1))
