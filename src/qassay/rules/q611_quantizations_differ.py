"""Q611."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qassay.core.finding import Finding, Severity
from qassay.core.text import safe
from qassay.rules.base import ComparisonRule, share_of
from qassay.rules.comparing import first_place

if TYPE_CHECKING:
    from qassay.comparison.facts import Comparison, Difference, Pair

_WORDS = {
    "codes": "codes",
    "zeros": "zero points",
    "scales": "scales",
    "minimums": "minimums",
    "groups": "columns in another group",
    "whole": "scales of the whole tensor",
    "values": "values",
}


class QuantizationsDiffer(ComparisonRule, code="Q611", name="quantizations-differ"):
    """Two tensors of one name hold different weights, and no known transformation explains it.

    ## What it does
    `qassay compare` reports weights that are neither equal in canonical form nor equal up to a
    transformation that holds on every row: how many codes, zero points and scales differ, by how
    many steps, in how many rows, and where first. Float tensors are compared value by value.

    ## Why it is bad
    The two files do not hold the same quantization. That may be right (another method, another
    calibration); it is wrong where one is meant to be a repack of the other.

    ## How to fix it
    If one was converted from the other, repeat the conversion and look at the first difference. If
    they were quantized apart, compare each with the float model instead.

    ## Example
    `model.layers.0.mlp.up_proj.weight_packed`: is not the quantization of
    'model.layers.0.mlp.up_proj.weight' of the first model: 91,204 of 131,072 codes differ (80,100
    by 1 step, 9,004 by 2, 2,100 by more), 1,024 of 1,024 scales
    """

    severity = Severity.ERROR
    help = "if one was converted from the other, repeat that; else compare each with its source"
    since = "0.1"

    def check(self, comparison: Comparison) -> Iterator[Finding]:
        """Yield one finding for each such pair."""
        for pair in comparison.pairs:
            if pair.relation != "different" or pair.other or pair.faults:
                continue
            found = pair.difference
            yield self.finding(
                f"is not the same as '{safe(pair.name)}' of the first model: {_said(pair)}",
                path=pair.path,
                tensor=pair.tensor,
                count=1 if found is None else max(1, found.weights.different),
                locations=first_place(pair),
                data=_data(pair, found),
            )


def _data(pair: Pair, found: Difference | None) -> dict[str, Any]:
    data: dict[str, Any] = {"encodings": list(pair.encodings)}
    if found is not None:
        for name, count in found.parts.items():
            data[f"{name}_different"] = count.different
        data["largest_steps"] = found.largest
    return data


def _said(pair: Pair) -> str:
    found = pair.difference
    if found is None:
        return "; ".join(safe(note) for note in pair.notes)
    said = []
    for name, count in found.parts.items():
        if count.different:
            text = f"{share_of(count.different, count.of, _WORDS[name])} differ"
            said.append(text + _steps(count.steps) if name in ("codes", "zeros") else text)
    of_values = "values" in found.parts
    if not said or not found.comparable:
        said.append(f"{share_of(found.weights.different, found.weights.of, 'weights')} differ")
    if found.rows.of and found.rows.different:
        said.append(f"in {share_of(found.rows.different, found.rows.of, 'rows')}")
    if found.largest:
        unit = "" if of_values else " steps"
        said.append(f"decoded weights differ by up to {found.largest:.4g}{unit}")
    if found.one_sided:
        said.append(f"{found.one_sided:,} are finite on one side only")
    if found.note:
        said.append(found.note)
    return ", ".join(said)


def _steps(steps: list[int]) -> str:
    one, two, more = steps
    return f" ({one:,} by 1 step, {two:,} by 2, {more:,} by more)"
