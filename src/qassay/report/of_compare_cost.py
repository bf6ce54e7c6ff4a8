"""Tables of what quantizing cost: by encoding, and the tensors that cost most."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qassay.comparison.cost.facts import Cost
from qassay.comparison.facts import Comparison, Pair
from qassay.core.text import safe
from qassay.kernels.cost import Of
from qassay.report.page import Column, Table

_ROWS = 20
_DUE = ("due to codes", "due to scales")
_FLOATS = ("f64", "f32", "f16", "bf16")


def cost_tables(comparison: Comparison) -> Iterator[Table]:
    """Yield one table by encoding and one of the worst tensors; none where nothing was measured."""
    pairs = [pair for pair in comparison.pairs if pair.cost is not None]
    gridded = [pair for pair in pairs if pair.cost is not None and pair.cost.gridded]
    if gridded:
        yield _by_encoding(gridded)
    if pairs:
        yield _worst(pairs)


def _by_encoding(pairs: list[Pair]) -> Table:
    kinds: dict[str, list[Cost]] = {}
    for pair in pairs:
        if pair.cost is not None:
            kinds.setdefault(_encoding(pair), []).append(pair.cost)
    columns = (
        Column("encoding"),
        Column("tensors", right=True),
        Column("SNR dB", right=True),
        Column("times expected", right=True),
        Column("worst tensor", right=True),
        Column("max steps", right=True),
        Column("not finite", right=True),
    )
    rows = []
    for kind, costs in sorted(kinds.items()):
        signal, noise, par = (
            math.fsum(each.total(name) for each in costs) for name in (Of.REF2, Of.ERR2, Of.PAR2)
        )
        snr = 10 * math.log10(signal / noise) if 0 < noise < math.inf and signal > 0 else None
        odd = sum(each.count(name) for each in costs for name in (Of.HIDDEN, Of.BORN, Of.BOTH))
        rows.append(
            (
                kind,
                f"{len(costs):,}",
                "-" if snr is None else f"{snr:.1f}",
                f"{math.sqrt(noise / par):.2f}" if par > 0 else "-",
                f"{max(each.ratio for each in costs):.2f}",
                f"{max(each.steps[0] for each in costs):.2f}",
                f"{odd:,}" if odd else "-",
            )
        )
    note = (
        "times expected: RMSE over what rounding to such a grid costs on these weights;"
        " 1 is honest rounding, from 2.5 on it is a finding"
    )
    return Table("What quantizing cost", columns, tuple(rows), note)


def _worst(pairs: list[Pair]) -> Table:
    order = sorted(pairs, key=lambda pair: -_key(pair.cost))
    titles = ("RMSE", "SNR dB", "cosine", "euclid", "max steps", "times expected", *_DUE)
    columns = (Column("tensor"), Column("encoding"), *(Column(one, right=True) for one in titles))
    rest = len(order) - _ROWS
    note = (
        "times expected is what is due to codes (1: each is the nearest) times what is due to"
        " scales (1: they suit the weights)"
    )
    if rest > 0:
        note += f"; and {rest:,} more, in the JSON report"
    rows = tuple(_row(pair) for pair in order[:_ROWS])
    return Table(
        "Tensors, furthest beyond what is expected first", columns, rows, note, listed=True
    )


def _encoding(pair: Pair) -> str:
    """Return how the side is kept that was measured: not the float one, if that is the second."""
    first, second = pair.encodings
    return first if second in _FLOATS and first not in _FLOATS else second


def _key(cost: Cost | None) -> float:
    if cost is None:
        return 0.0
    return cost.ratio if cost.gridded else 1e6 * (cost.relative or 0.0)


def _row(pair: Pair) -> tuple[str, ...]:
    cost = pair.cost
    assert cost is not None  # noqa: S101 - the caller looked
    head = (safe(pair.name), _encoding(pair))
    cells = (
        f"{cost.rmse:.3g}",
        _number(cost.snr_db, ".1f"),
        _number(cost.cosine, ".6f"),
        f"{cost.euclid:.4f}",
    )
    if not cost.gridded:
        return (*head, *cells, "-", "-", "-", "-")
    ratios = (cost.ratio, cost.code_ratio, cost.scale_ratio)
    return (*head, *cells, f"{cost.steps[0]:.2f}", *(f"{each:.2f}" for each in ratios))


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
