"""Q302."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule, share_of


class SaturatedCodes(TensorRule, code="Q302", name="saturated-codes"):
    """All codes of a block lie at the ends of their range.

    ## What it does
    Counts blocks in which every code is the smallest or the largest there is. One extreme code a
    block is what every quantizer writes; a block of nothing else is rare.

    ## Why it is bad
    The block keeps signs and loses sizes. It comes from weights that are all of one magnitude
    (constant rows, binarized weights), from a scale that was too small so that everything was
    clipped, or from bytes 0x00 or 0xff written over the codes.

    ## How to fix it
    Compare the block with the source. If its weights differ in size, quantize the tensor again.

    ## Example
    `blk.4.ffn_gate.weight` row 9 block 581: 1 of 40960 blocks has only codes at the ends of their
    range
    """

    severity = Severity.INFO
    help = "compare these blocks with the source; if their weights differ in size, quantize again"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each expert with such blocks."""
        units = tensor.stats.units
        for _, expert, tally in tensor.stats.offences(Offence.SATURATED_BLOCK):
            share = share_of(tally.count, units, tensor.noun)
            verb = "has" if tally.count == 1 else "have"
            yield self.finding(
                f"{share} {verb} only codes at the ends of their range; expected codes in between",
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                tally=tally,
                data={tensor.noun: units, "saturated": tally.count, "share": tally.count / units},
            )
