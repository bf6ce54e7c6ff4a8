"""Q202."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule
from qassay.rules.layers import activation_scales


class ZeroScaleWithLiveCodes(TensorRule, code="Q202", name="zero-scale-with-live-codes"):
    """A block's scale is zero although its codes are not: weights were there and are gone.

    ## What it does
    Counts blocks whose scale field (`d`, `dmin`) is zero while the integers that it multiplies
    differ from what a quantizer writes for a block of zeros.

    A scale of a whole weight that is zero (`weight_global_scale`, `weight_scale_2`) is an error.
    So is a scale of activations or of the KV cache (`input_scale`, `k_scale`): readers divide by
    it.

    ## Why it is bad
    Every weight of the block decodes to zero (or to the block's minimum). The codes show that the
    source had values there: either they were so small that the scale underflowed in f16 (for Q8_0
    below 3.8e-6, for Q6_K below 1e-4), or the scale was overwritten.

    ## How to fix it
    Compare the block with the source. If its weights are tiny, use a type whose scale reaches
    lower (MXFP4, BF16), or leave the tensor in float; otherwise quantize the tensor again.

    ## Example
    `blk.0.attn_k.weight` row 3 block 12 field d: 1 of 2048 blocks has scale d = 0 over codes that
    are not zero
    """

    severity = Severity.WARNING
    help = "compare these blocks with the source; quantize the tensor again, or leave it in float"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each scale field (and expert) with such blocks."""
        for field, expert, tally in tensor.stats.offences(Offence.ZERO_SCALE_LIVE_CODES):
            total = tensor.scales_of(field)
            share = tensor.share(tally.count, field)
            verb = "has" if tally.count == 1 else "have"
            yield self.finding(
                f"{share} {verb} {tensor.scale(field)} = 0 over codes"
                " that are not zero; expected a scale other than 0, or blank codes",
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                field=field,
                tally=tally,
                severity=Severity.ERROR if tensor.is_overall(field) else None,
                data={tensor.noun: total, "zero_scale": tally.count},
            )
        for part, what, expert, value in activation_scales(tensor):
            if value == 0:
                yield self.finding(
                    f"{part}, a scale of {what}, is 0; expected a number above 0",
                    path=tensor.stored.path,
                    tensor=tensor.stored.name,
                    expert=expert,
                    field=part,
                    severity=Severity.ERROR,
                    data={"value": value},
                    help="calibrate again; a part of the model that saw no data needs a default",
                )
