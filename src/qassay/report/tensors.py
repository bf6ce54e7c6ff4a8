"""What the document says of each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qassay.core.container import StoredTensor
from qassay.core.stats import CodeStats, Offence

if TYPE_CHECKING:  # `inspect` names tensors too, and should not load what only `check` needs
    from qassay.encodings.base import Encoding
    from qassay.rules.base import TensorFacts


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in the document.

    Attributes:
        stored: As its container lists it.
        facts: What was measured; None for a tensor that was not read.
        codes: Whether the document holds how often each code occurs.
    """

    stored: StoredTensor
    facts: TensorFacts | None = None
    codes: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        stored, facts = self.stored, self.facts
        entry: dict[str, Any] = {
            "name": stored.name,
            "path": stored.path,
            "type": stored.type.name,
            "encoding": facts.encoding.id if facts else None,
            "shape": list(stored.shape),
            "bytes": stored.nbytes,
            "checked": facts is not None,
        }
        if facts is None:
            return entry
        stats = facts.stats
        if facts.encoding.kind == "block":
            entry["scales"] = {name: scale.to_dict() for name, scale in stats.scales.items()}
            entry["dead_blocks"] = stats.total(Offence.DEAD_BLOCK)
        entry["dead_rows"] = stats.total(Offence.DEAD_ROW)
        if stats.values is not None:
            entry["values"] = stats.values.to_dict()
        if self.codes and stats.codes is not None and stats.codes.complete:
            entry["codes"] = _codes(stats.codes, facts.encoding)
        return entry


def _codes(codes: CodeStats, encoding: type[Encoding]) -> dict[str, Any]:
    from qassay.encodings.base import BlockEncoding  # noqa: PLC0415

    assert issubclass(encoding, BlockEncoding)  # noqa: S101 - nothing else has codes
    low, _ = encoding.codes.range(encoding.code_bits())
    stored = (codes.histogram.patterns + low).tolist()
    pairs = zip(stored, codes.histogram.counts.tolist(), strict=True)
    return {"blocks": codes.blocks, "counts": {str(code): seen for code, seen in pairs}}
