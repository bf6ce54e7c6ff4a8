"""Q107."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qassay.core.finding import Certainty, Finding, Severity
from qassay.rules.base import ModelFacts, ModelRule
from qassay.rules.layers import about, grouped, named, read_layers

if TYPE_CHECKING:
    from qassay.core.stats import LayerMoments

_FEWEST_GROUPS = 64
_AT_LEAST = 0.5
_MORE_THAN = 0.2
_ERRORS = 8.0
_WORDS = {
    "codes_reordered": ("codes", "were packed in the other order of lanes"),
    "zeros_reordered": ("zero points", "were packed in the other order of lanes"),
    "codes_swapped": ("codes", "have the two halves of each byte swapped"),
    "zeros_swapped": ("zero points", "have the two halves of each byte swapped"),
}


class PackOrderSuspect(ModelRule, code="Q107", name="pack-order-suspect"):
    """The zero points fit the codes only if one of the two is read in another order.

    ## What it does
    AWQ deals eight output channels to a word in the order 0 2 4 6 1 3 5 7; GPTQ and others use
    the natural one. A group whose codes lie high has a high zero point: over the groups of a
    layer the two go together. This is measured as read, and as if codes or zero points had been
    packed in the other order, or with the halves of each byte swapped. Another reading is
    reported if its correlation is at least 0.5, and above the one as read by 0.2 and by eight
    standard errors. Symmetric layers have zero points that are all alike and tell nothing; nor is
    there anything to see if codes and zero points were mixed up in the same way.

    ## Why it is bad
    Output channels get the zero points, and scales, of their neighbours: the weights look like
    weights, and the model answers nonsense.

    ## How to fix it
    Pack the layer again in the order of its format, codes and zero points alike.

    ## Example
    `the codes of 'model.layers.0.mlp.down_proj' and 6 other layers were packed in the other order
    of lanes, it seems: their zero points go with them at a correlation of 0.95 then, and of 0.26
    as they are read`
    """

    severity = Severity.WARNING
    certainty = Certainty.LIKELY
    help = "pack codes and zero points again in the order that the format asks for"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each order."""
        found = [
            (layer, stats.layer, better)
            for layer, stats in read_layers(model)
            if stats.layer is not None and (better := _better(stats.layer)) is not None
        ]
        for items in grouped(found, lambda item: (item[2], item[0].label)):
            layers, (_, moments, better) = [item[0] for item in items], items[0]
            part, words = _WORDS[better]
            told = moments.correlation
            yield self.finding(
                f"the {part} of {named(layers)} {words}, it seems: codes and zero points go"
                f" together at a correlation of {told[better]:.2f} then, and of"
                f" {told['as_read']:.2f} as they are read",
                **about(
                    layers,
                    reading=better,
                    correlation=told[better],
                    as_read=told["as_read"],
                    groups=moments.groups,
                ),
            )


def _better(moments: LayerMoments) -> str | None:
    """Return the reading that fits far better than the one as read."""
    told = moments.correlation
    as_read = told.get("as_read")
    if as_read is None or moments.groups < _FEWEST_GROUPS:
        return None
    best = max((name for name in _WORDS if name in told), key=told.__getitem__, default=None)
    if best is None:
        return None
    # Fisher's transformation makes the error of a correlation the same everywhere.
    distance = math.atanh(min(told[best], 0.999)) - math.atanh(max(as_read, -0.999))
    apart = distance * math.sqrt((moments.groups - 3) / 2) > _ERRORS
    clear = told[best] >= _AT_LEAST and told[best] - as_read > _MORE_THAN
    return best if clear and apart else None
