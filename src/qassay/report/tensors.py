"""What the document says of each tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qassay.core.container import StoredTensor
from qassay.core.finding import json_number
from qassay.core.stats import CodeStats, Offence
from qassay.report.layers import layer_entry

if TYPE_CHECKING:  # `inspect` names tensors too, and should not load what only `check` needs
    from qassay.encodings.layers import Layer
    from qassay.rules.base import TensorFacts


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor in the document.

    Attributes:
        stored: As its container lists it.
        facts: What was measured; None for a tensor that was not read.
        codes: Whether the document holds how often each code occurs.
        part_of: The module whose weight it is a part of, where another tensor holds the codes.
    """

    stored: StoredTensor
    facts: TensorFacts | None = None
    codes: bool = False
    part_of: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        stored, facts = self.stored, self.facts
        entry: dict[str, Any] = {
            "name": stored.name,
            "path": stored.path,
            "type": stored.type.name,
            "encoding": facts.label if facts else None,
            "shape": list(facts.shape if facts else stored.shape),
            "bytes": stored.nbytes,
            "checked": facts is not None or bool(self.part_of),
        }
        if self.part_of:
            entry["part_of"] = self.part_of
        if facts is None:
            return entry
        stats = facts.stats
        if facts.encoding.kind in ("block", "layer"):
            entry["scales"] = {name: scale.to_dict() for name, scale in stats.scales.items()}
            entry["dead_blocks"] = stats.total(Offence.DEAD_BLOCK)
        entry["dead_rows"] = stats.total(Offence.DEAD_ROW)
        if stats.values is not None:
            entry["values"] = stats.values.to_dict()
        if facts.layer is not None:
            entry["layer"] = _layer(facts, facts.layer)
        if self.codes and stats.codes is not None and stats.codes.complete:
            entry["codes"] = _codes(stats.codes, facts)
        return entry


def _layer(facts: TensorFacts, layer: Layer) -> dict[str, Any]:
    return {
        **layer_entry(layer),
        "scalars": {
            name: [json_number(value) for value in values]
            for name, values in facts.stats.scalars.items()
        },
    }


def _codes(codes: CodeStats, facts: TensorFacts) -> dict[str, Any]:
    from qassay.encodings.base import BlockEncoding  # noqa: PLC0415

    if facts.stats.layer is not None:
        low = facts.stats.layer.lowest_code
    else:
        assert issubclass(facts.encoding, BlockEncoding)  # noqa: S101 - nothing else has codes
        low, _ = facts.encoding.codes.range(facts.encoding.code_bits())
    stored = (codes.histogram.patterns + low).tolist()
    pairs = zip(stored, codes.histogram.counts.tolist(), strict=True)
    return {"blocks": codes.blocks, "counts": {str(code): seen for code, seen in pairs}}
