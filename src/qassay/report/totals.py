"""What the document says of all tensors of an encoding together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from qassay.core.stats import Histogram, Offence, ScaleStats, ValueStats
from qassay.encodings.base import BlockEncoding
from qassay.kernels.summary import summarize, total
from qassay.rules.base import TensorFacts


@dataclass(slots=True)
class Total:
    """All checked tensors of one encoding.

    Attributes:
        tensors: How many.
        weights: Their weights together.
        nbytes: Their bytes together.
        dead_blocks: Blocks whose weights are all zero; None for a plain encoding.
        dead_rows: Rows whose weights are all zero.
        scales: Each scale field over all of them.
        values: For a plain float encoding.
        codes: Of all blocks, as indices from the lowest code on; None if only some were counted.
        lowest_code: The lowest code of the encoding.
        possible_codes: How many codes the encoding has.
    """

    tensors: int = 0
    weights: int = 0
    nbytes: int = 0
    dead_blocks: int | None = None
    dead_rows: int = 0
    scales: dict[str, ScaleStats] = field(default_factory=dict)
    values: ValueStats | None = None
    codes: Histogram | None = None
    lowest_code: int = 0
    possible_codes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        entry: dict[str, Any] = {
            "tensors": self.tensors,
            "weights": self.weights,
            "bytes": self.nbytes,
            "dead_rows": self.dead_rows,
        }
        if self.dead_blocks is not None:
            entry["dead_blocks"] = self.dead_blocks
            entry["scales"] = {name: scale.to_dict() for name, scale in self.scales.items()}
        if self.values is not None:
            entry["values"] = self.values.to_dict()
        return entry


def totals(tensors: Iterable[TensorFacts]) -> dict[str, Total]:
    """Return the totals by encoding (with its bits, of layers), in alphabetical order."""
    groups: dict[str, list[TensorFacts]] = {}
    for facts in tensors:
        groups.setdefault(facts.label, []).append(facts)
    return {name: _total(groups[name]) for name in sorted(groups)}


def _total(group: list[TensorFacts]) -> Total:
    encoding = group[0].encoding
    result = Total(
        tensors=len(group),
        weights=sum(facts.weights for facts in group),
        nbytes=sum(facts.nbytes for facts in group),
        dead_rows=sum(facts.stats.total(Offence.DEAD_ROW) for facts in group),
    )
    if issubclass(encoding, BlockEncoding):
        result.dead_blocks = sum(facts.stats.total(Offence.DEAD_BLOCK) for facts in group)
        for name, scale in encoding.scale_fields.items():
            kept = [
                facts.stats.histograms[name] for facts in group if name in facts.stats.histograms
            ]
            result.scales[name] = summarize(total(kept), scale)
        low, high = encoding.codes.range(encoding.code_bits())
        _count_codes(result, low, high - low + 1, group)
    elif group[0].layer is not None:
        result.dead_blocks = sum(facts.stats.total(Offence.DEAD_BLOCK) for facts in group)
        _add_layers(result, group)
    elif any(facts.stats.values is not None for facts in group):
        result.values = ValueStats()
        for facts in group:
            if facts.stats.values is not None:
                result.values.merge(facts.stats.values)
    return result


def _add_layers(result: Total, group: list[TensorFacts]) -> None:
    """Add what layers have: parts that hold scales, whose dtypes may differ between them."""
    # A check without layers does not pay for this import.
    from qassay.kernels.layer_scales import summary_of  # noqa: PLC0415

    names = dict.fromkeys(name for facts in group for name in facts.stats.scales)
    for name in names:
        having = [facts for facts in group if name in facts.stats.scales]
        result.scales[name] = summary_of(
            name, [(facts.layer, facts.stats) for facts in having if facts.layer is not None]
        )
    moments = [facts.stats.layer for facts in group]
    first = moments[0]
    if first is not None and all(
        each is not None and each.lowest_code == first.lowest_code for each in moments
    ):
        _count_codes(result, first.lowest_code, first.possible_codes, group)


def _count_codes(result: Total, low: int, possible: int, group: list[TensorFacts]) -> None:
    result.lowest_code, result.possible_codes = low, possible
    counted = [facts.stats.codes for facts in group if facts.stats.codes is not None]
    if counted and all(codes.complete for codes in counted):
        result.codes = total([codes.histogram for codes in counted])
