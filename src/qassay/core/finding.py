"""A finding: code, severity, certainty, where, what was measured, what to do."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

MAX_LOCATIONS = 16
"""A finding lists this many places; `Finding.count` is exact whatever the number."""


class Severity(enum.IntEnum):
    """How bad it is if it is true."""

    INFO = 1
    WARNING = 2
    ERROR = 3

    @property
    def label(self) -> str:
        """The word printed in reports."""
        return self.name.lower()

    @classmethod
    def parse(cls, word: str) -> Severity:
        """Return the severity named `word`; raises ValueError for any other word."""
        try:
            return cls[word.upper()]
        except KeyError:
            raise ValueError(f"no severity is called {word!r}") from None


class Certainty(enum.Enum):
    """How sure it is that it is true."""

    PROVEN = "proven"
    LIKELY = "likely"
    HINT = "hint"


def json_number(value: float | str | None) -> float | str | None:
    """Return `value` as strict JSON can hold it: NaN and infinities become strings."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value


@dataclass(frozen=True, slots=True)
class Location:
    """One place in a tensor, as far as the parts apply.

    Attributes:
        row: Output channel, counted inside the expert for a tensor `[experts, N, K]`.
        column: Input feature; for a block, that of its first weight.
        block: Index of the block in the whole tensor, in file order; of a weight that is kept in
            several tensors, the group in its row.
        field: The stored field (`d`, `dmin`, `qs`, ...).
        byte_offset: Offset in the file of the field, block or value.
        value: What was read there.
    """

    row: int | None = None
    column: int | None = None
    block: int | None = None
    field: str | None = None
    byte_offset: int | None = None
    value: float | int | str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the parts that apply, JSON-ready."""
        parts = {
            "row": self.row,
            "column": self.column,
            "block": self.block,
            "field": self.field,
            "byte_offset": self.byte_offset,
            "value": json_number(self.value) if isinstance(self.value, float) else self.value,
        }
        return {name: part for name, part in parts.items() if part is not None}


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect of one kind in one tensor (and expert, and field); see `docs/design.md`.

    Attributes:
        code: `Q201`.
        name: `scale-not-finite`.
        severity: How bad.
        certainty: How sure.
        message: One sentence with the measured numbers.
        path: The file, as the report names it.
        tensor: The tensor, None for a finding about the file.
        expert: Index of the expert in a tensor `[experts, N, K]`.
        field: The stored field.
        count: Exact number of offences.
        locations: The first `MAX_LOCATIONS` of them in file order.
        data: The numbers behind the message.
        help: What to do.
        ordinal: Counts findings that are alike in all of code, path, tensor, expert and field.
    """

    code: str
    name: str
    severity: Severity
    certainty: Certainty
    message: str
    path: str = ""
    tensor: str | None = None
    expert: int | None = None
    field: str | None = None
    count: int = 1
    locations: tuple[Location, ...] = ()
    data: dict[str, Any] = dataclasses.field(default_factory=dict)
    help: str = ""
    ordinal: int = 0

    @property
    def location(self) -> Location | None:
        """The first place in file order."""
        return self.locations[0] if self.locations else None

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits that name this finding across reruns, whatever its counts are."""
        from hashlib import sha256  # noqa: PLC0415 - a file without findings does not need it

        file = self.path.replace("\\", "/").rpartition("/")[2]  # however the user named it
        parts = (self.code, file, self.tensor, self.expert, self.field, self.ordinal)
        text = "\0".join(str(part) for part in parts)
        return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def numbered(self, ordinal: int) -> Finding:
        """Return the same finding told apart from those that are alike."""
        return dataclasses.replace(self, ordinal=ordinal)

    def with_severity(self, severity: Severity) -> Finding:
        """Return the same finding graded `severity`."""
        return dataclasses.replace(self, severity=severity)

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as the JSON document holds it."""
        first = self.location
        return {
            "code": self.code,
            "name": self.name,
            "severity": self.severity.label,
            "certainty": self.certainty.value,
            "path": self.path,
            "tensor": self.tensor,
            "expert": self.expert,
            "field": self.field,
            "location": first.to_dict() if first else None,
            "locations": [place.to_dict() for place in self.locations],
            "count": self.count,
            "message": self.message,
            "data": self.data,
            "help": self.help,
            "fingerprint": self.fingerprint,
        }


def numbered(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Tell apart findings that are alike in everything that names them."""
    seen: Counter[tuple[object, ...]] = Counter()
    for finding in findings:
        alike = (finding.code, finding.path, finding.tensor, finding.expert, finding.field)
        yield finding.numbered(seen[alike]) if seen[alike] else finding
        seen[alike] += 1
