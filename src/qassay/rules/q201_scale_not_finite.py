"""Q201."""

from __future__ import annotations

import math
from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule
from qassay.rules.layers import activation_scales


class ScaleNotFinite(TensorRule, code="Q201", name="scale-not-finite"):
    """A block's scale is NaN or infinite, so every weight of the block is.

    ## What it does
    Looks at every stored scale, minimum and offset (`d`, `dmin`, `m`, `e`; `scales`,
    `weight_scale`, `weight_global_scale`, ...) for bit patterns that are NaN or infinity, and in
    MXFP4 for exponents that overflow float32 under the block's codes. In NVFP4 these are the
    bytes 0x7F and 0xFF, which ggml decodes to 0 and 480 without a word.

    Scales of activations (`input_scale`, `input_global_scale`) beside a layer are looked at, too.

    ## Why it is bad
    One such block turns a whole output channel into NaN for every input, and the next layer's
    normalisation spreads it over all channels.

    ## How to fix it
    Quantize the tensor again from a source that is finite. Check the source first: an infinity
    comes from a weight too large for the scale's type, a NaN from a NaN in the source or from
    0/0 in the quantizer.

    ## Example
    `blk.3.ffn_down.weight` row 7 block 1801 field d: NaN (0x7e00), expected a finite number.
    """

    severity = Severity.ERROR
    help = "quantize this tensor again from a finite source; do not use the file"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each scale field (and expert) with such blocks."""
        for field, expert, tally in tensor.stats.offences(Offence.SCALE_NOT_FINITE):
            first = tally.locations[0].value
            shown = f"{first:g}".replace("nan", "NaN") if isinstance(first, float) else first
            total = tensor.scales_of(field)
            share = tensor.share(tally.count, field)
            verb = "has" if tally.count == 1 else "have"
            yield self.finding(
                f"{share} {verb} a {tensor.scale(field)} that is NaN"
                f" or infinite (the first is {shown}); expected a finite number",
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                field=field,
                tally=tally,
                data={tensor.noun: total, "not_finite": tally.count},
            )
        for part, what, expert, value in activation_scales(tensor):
            if not math.isfinite(value) and tensor.layer is not None:
                shown = f"{value:g}".replace("nan", "NaN")
                yield self.finding(
                    f"{part}, a scale of {what}, is {shown}; expected a finite number",
                    path=tensor.stored.path,
                    tensor=tensor.stored.name,
                    expert=expert,
                    field=part,
                    data={"value": shown},
                )
