"""Findings out of places, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from qassay.core.finding import MAX_LOCATIONS, Certainty, Finding, Location, Severity

NAMES = {
    "Q501": "scale-overflow",
    "Q502": "block-underflows-to-zero",
    "Q503": "coarse-scale",
    "Q504": "nan-would-vanish",
}
HELP = {
    "Q501": "scale the tensor down, or choose a type with a wider scale (Q6_K, BF16)",
    "Q502": "scale the tensor up, or keep it in BF16 or F32",
    "Q503": "scale the tensor up, or keep it in BF16 or F32",
    "Q504": "find out where it comes from; a quantized file cannot show it any more",
}


@dataclass(slots=True)
class Spot:
    """Places of one kind.

    Attributes:
        code: Of the rule.
        severity: Of the worst place.
        count: Exact number.
        message: What is said of the first place.
        first: Index of the first place in the tensor, for the order of findings.
        locations: The first ones.
        data: Numbers behind the message.
    """

    code: str
    severity: Severity = Severity.ERROR
    count: int = 0
    message: str = ""
    first: int = 0
    locations: list[Location] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def add(self, place: Location, message: str, first: int) -> None:
        """Keep a place that was counted elsewhere; places come in file order."""
        if not self.locations:
            self.message, self.first = message, first
        if len(self.locations) < MAX_LOCATIONS:
            self.locations.append(place)

    @property
    def full(self) -> bool:
        """Whether no further place is kept."""
        return len(self.locations) >= MAX_LOCATIONS

    def finding(self, name: str, *, noun: str = "blocks", literal: bool = False) -> Finding:
        """Return the finding; a literal one says no more than the message of its first place."""
        message = self.message
        if self.count > 1 and not literal:
            noun = "elements" if self.code == "Q504" else noun
            message += f" (the first of {self.count} such {noun})"
        return Finding(
            code=self.code,
            name=NAMES[self.code],
            severity=self.severity,
            certainty=Certainty.PROVEN,
            message=message,
            tensor=name or None,
            count=self.count,
            locations=tuple(self.locations),
            data=self.data,
            help=HELP[self.code],
        )
