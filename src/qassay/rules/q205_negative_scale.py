"""Q205."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule
from qassay.rules.layers import activation_scales

WITH_SIGNS = 0.1
"""From this share on, the signs of a layer's scales are its quantizer's choice."""


class NegativeScale(TensorRule, code="Q205", name="negative-scale"):
    """A block's scale is negative in a type whose quantizers write none.

    ## What it does
    Counts negative scales in fields that are a maximum or a range by construction: `d` of Q8_0,
    Q4_1, Q5_1, Q2_K, Q4_K and Q5_K, and `dmin`; in NVFP4 sign bits, which ggml ignores and other
    readers need not. In Q4_0, Q5_0, Q3_K, Q6_K and IQ4 the sign of `d`
    follows the largest weight, so half of the scales are negative there; that is not reported,
    nor is a negative minimum `m`, nor -0 in a type whose scales have a sign.

    Where codes are integers and scales lie in a tensor of their own (GPTQ, AWQ,
    compressed-tensors), some quantizers choose signs, too: AutoRound's symmetric layers have half
    of them negative. There only layers are reported in which less than a tenth are.

    A negative scale of activations or of the KV cache (`input_scale`, `k_scale`) is reported.

    ## Why it is bad
    All weights of the block have the wrong sign, if the sign bit was flipped; decoders do not
    notice.

    ## How to fix it
    Compare the block with the source, and quantize the tensor again if it differs.

    ## Example
    `blk.0.attn_v.weight` row 2 block 9 field d: 1 of 4096 blocks has a negative scale d (the first
    is -0.0031); expected none below 0
    """

    severity = Severity.WARNING
    help = "compare these blocks with the source; if signs differ, quantize the tensor again"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each scale field (and expert) with such blocks."""
        for field, expert, tally in tensor.stats.offences(Offence.NEGATIVE_SCALE):
            total = tensor.scales_of(field)
            if tensor.of_integers and tally.count >= WITH_SIGNS * total:
                continue
            first = tally.locations[0].value
            shown = f"{first:.4g}" if isinstance(first, float) else first
            share = tensor.share(tally.count, field)
            verb = "has" if tally.count == 1 else "have"
            yield self.finding(
                f"{share} {verb} a negative {tensor.scale(field)}"
                f" (the first is {shown}); expected none below 0",
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                field=field,
                tally=tally,
                severity=Severity.ERROR if tensor.is_overall(field) else None,
                data={tensor.noun: total, "negative": tally.count},
            )
        for part, what, expert, value in activation_scales(tensor):
            if value < 0:
                yield self.finding(
                    f"{part}, a scale of {what}, is {value:.4g}; expected a number above 0",
                    path=tensor.stored.path,
                    tensor=tensor.stored.name,
                    expert=expert,
                    field=part,
                    data={"value": value},
                    help="calibrate again, or take the tensor from an intact copy",
                )
