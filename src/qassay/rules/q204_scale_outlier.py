"""Q204."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from qassay.core.finding import Certainty, Finding, Severity
from qassay.core.stats import Offence
from qassay.encodings.base import BlockEncoding
from qassay.encodings.fields import ScaleField
from qassay.rules.base import TensorFacts, TensorRule

FACTOR = 256.0
LEAST_SCALES = 64


def _field(tensor: TensorFacts, name: str) -> ScaleField:
    if tensor.layer is None:
        assert issubclass(tensor.encoding, BlockEncoding)  # noqa: S101 - nothing else has scales
        return tensor.encoding.scale_fields[name]
    # A check without layers does not pay for this import.
    from qassay.kernels.layer_scales import scale_field  # noqa: PLC0415

    found = scale_field(name, str(tensor.layer.parts[name].type.label))
    assert found is not None  # noqa: S101 - it has been read
    return found


class ScaleOutlier(TensorRule, code="Q204", name="scale-outlier"):
    """A block's scale is far larger than the tensor's others.

    ## What it does
    Compares the largest magnitude of each scale field with the median of its non-zero magnitudes,
    and reports a largest of 256 times the median or more, in tensors with at least 64 non-zero
    scales. Measured in real files, the largest is 20.5 times the median at most (Gemma 3 270M,
    `blk.1.attn_q.weight`, Q5_0) and 19.1 for minima (SmolLM2 135M, Q4_1); 256 is what the flip of
    one high exponent bit of an f16 multiplies by.

    ## Why it is bad
    The weights of that block outweigh the rest of their row. Either a bit of the scale was
    flipped, or the source has an outlier there that deserves a type of its own.

    ## How to fix it
    Compare the block with the source. If the source has the outlier, too, keep the tensor in a
    wider type; if not, quantize it again.

    ## Example
    `blk.2.ffn_down.weight` row 5 block 90 field d: the largest scale d, 12.5, is 6400 times the
    median 0.00195
    """

    severity = Severity.INFO
    certainty = Certainty.HINT
    help = "compare this block with the source: a flipped bit, or an outlier worth a wider type"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each scale field whose largest value stands out."""
        stats = tensor.stats
        for field, expert, tally in stats.offences(Offence.LARGEST_SCALE):
            scales = stats.scales[field or ""]
            live = scales.blocks - scales.zero - scales.nonfinite
            if live < LEAST_SCALES or not scales.median or scales.max is None:
                continue
            limit = FACTOR * scales.median
            if scales.max < limit:
                continue
            histogram = stats.histograms[field or ""]
            with np.errstate(invalid="ignore"):
                sizes = np.abs(_field(tensor, field or "").magnitudes.astype(np.float64))
                count = histogram.count((sizes >= limit) & np.isfinite(sizes))
            times = scales.max / scales.median
            yield self.finding(
                f"the largest {tensor.scale(field)}, {scales.max:.4g}, is {times:.4g} times the"
                f" median {scales.median:.4g}; expected less than {FACTOR:g} times"
                + (f" ({count} {tensor.noun} lie above that)" if count > 1 else ""),
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                field=field,
                tally=tally,
                count=count,
                data={
                    "largest": scales.max,
                    "median": scales.median,
                    "times": times,
                    tensor.noun: scales.blocks,
                },
            )
