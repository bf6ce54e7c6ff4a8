"""Q305."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qassay.core.finding import Certainty, Finding, Severity
from qassay.core.stats import Offence, TensorStats
from qassay.encodings.base import BlockEncoding
from qassay.rules.base import TensorFacts, TensorRule

LIVE_PER_CODE = 64
LEAST_LIVE = 4096


def _dead(stats: TensorStats, counted: int) -> int:
    """Return how many of the first blocks can be dead, at most."""
    dead = [tally for _, _, tally in stats.offences(Offence.DEAD_BLOCK)]
    first = min((tally.places[0][0] for tally in dead), default=counted)
    return max(0, min(sum(tally.count for tally in dead), counted - first))


def _span(tensor: TensorFacts) -> tuple[int, int, list[int]] | None:
    """Return the lowest code, how many there are, and those that stand for zero.

    None where codes are no integers of their own: of a table of floats, any part may be used.
    """
    moments, encoding = tensor.stats.layer, tensor.encoding
    if moments is not None:
        whole = moments.mean_code is not None
        return (moments.lowest_code, moments.possible_codes, []) if whole else None
    if not issubclass(encoding, BlockEncoding):
        return None
    bits = encoding.code_bits()
    low, high = encoding.codes.range(bits)
    return low, high - low + 1, [*encoding.codes.zeros(bits), *encoding.codes.blank]


class UnusedCodeRange(TensorRule, code="Q305", name="unused-code-range"):
    """A tensor uses at most half of the codes that its type has.

    ## What it does
    Counts the different codes of the tensor (of its first 1024 blocks, or of all of them with
    full statistics) and reports when no more than half of the type's codes occur, in tensors with
    at least 4096 codes that do not stand for zero, and 64 for each code of the type; dead blocks
    (Q301) are left aside. In every block-quantized tensor of the real files that were measured,
    more than three quarters occur.

    ## Why it is bad
    The tensor takes more bits than it uses: a 4-bit tensor stored as 8-bit, or a quantizer whose
    scale is at least twice too large, so that the error is twice what the type allows.

    ## How to fix it
    Quantize the tensor again from float weights, or to a type of fewer bits.

    ## Example
    `blk.0.ffn_up.weight`: 15 of 256 codes occur, from -7 to 7
    """

    severity = Severity.INFO
    help = "quantize this tensor again from float weights, or to a type of fewer bits"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield a finding if at most half of the codes occur."""
        codes, span = tensor.stats.codes, _span(tensor)
        if codes is None or span is None:
            return
        low, possible, blank = span
        stored = codes.histogram.patterns + low
        live = int(codes.histogram.counts[~np.isin(stored, blank)].sum())
        # Whatever stands in a dead block, under a scale of zero, is no choice of a quantizer.
        live = min(live, (codes.blocks - _dead(tensor.stats, codes.blocks)) * tensor.unit)
        if live < max(LEAST_LIVE, LIVE_PER_CODE * possible) or 2 * stored.size > possible:
            return
        first, last = int(stored[0]), int(stored[-1])
        some = f"{codes.blocks}" if tensor.layer is not None else f"the first {codes.blocks}"
        seen = "all" if codes.complete else some
        yield self.finding(
            f"{stored.size} of {possible} codes occur, from {first} to {last} ({seen} {tensor.noun}"
            f" counted); expected more than {possible // 2}",
            path=tensor.stored.path,
            tensor=tensor.stored.name,
            certainty=Certainty.PROVEN if codes.complete else Certainty.LIKELY,
            data={
                "codes": int(stored.size),
                "possible": possible,
                "smallest": first,
                "largest": last,
                f"{tensor.noun}_counted": codes.blocks,
                "complete": codes.complete,
            },
        )
