"""Q101."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qassay.core.finding import Finding, Severity
from qassay.rules.base import ModelFacts, ModelRule
from qassay.rules.layers import about, claimed_layers, grouped, key_of, named

if TYPE_CHECKING:
    from qassay.encodings.layers import Layer, LayerClaim


class GroupSizeMismatch(ModelRule, code="Q101", name="group-size-mismatch"):
    """The configuration states another group size than the scales have.

    ## What it does
    Compares `group_size` (-1: a scale for each row, 0: one for the tensor) and
    `weight_block_size` of the configuration with the number of scales that each layer has. Layers
    that differ in the same way are one finding, which names the first; `data.layers` lists up
    to 100.

    ## Why it is bad
    A runtime that believes the configuration looks for another number of scales: it refuses the
    layer, or takes most scales from a wrong place, so that weights are off by the ratio of two
    scales.

    ## How to fix it
    Correct the configuration: the shapes are what was written. If the shapes are not what was
    meant, quantize again.

    ## Example
    `quantization_config.group_size is 64, and the scales of 'model.layers.0.mlp.down_proj' and 6
    other layers are for 128 weights of a row each`
    """

    severity = Severity.WARNING
    help = "correct the group size in the configuration: the scales have the other one"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each way to differ."""
        found = [
            (layer, claim, text)
            for layer, claim in claimed_layers(model)
            if (text := _claimed(layer, claim))
        ]
        for items in grouped(found, lambda item: (item[2], measured(item[0]), item[1].source)):
            layers, (first, claim, text) = [item[0] for item in items], items[0]
            name = "weight_block_size" if claim.block else "group_size"
            verb = "is" if len(layers) == 1 else "are"
            yield self.finding(
                f"{key_of(claim, name)} is {text}, and the scales of {named(layers)} {verb} for"
                f" {measured(first)} each",
                **about(
                    layers,
                    claimed=list(claim.block) if claim.block else claim.group_size,
                    group_size=first.group,
                    group_rows=first.group_rows,
                    groups=first.groups,
                ),
            )


def measured(layer: Layer) -> str:
    """Return in words what each scale of a layer is for."""
    if layer.groups == 1 and layer.group_rows >= layer.rows:
        return "a whole matrix"
    if layer.group_rows > 1:
        return f"{layer.group_rows} by {layer.group} weights"
    return "a whole row" if layer.groups == 1 else f"{layer.group} weights of a row"


def _claimed(layer: Layer, claim: LayerClaim) -> str:
    """Return the claim in words where it gives another number of scales, else ""."""
    down, along = -(-layer.rows // layer.group_rows), layer.groups
    if claim.block:
        height, width = claim.block
        same = (-(-layer.rows // height), -(-layer.columns // width)) == (down, along)
        return "" if same else f"[{height}, {width}]"
    size = claim.group_size
    if size is None:
        return ""
    if size > 0:
        same = -(-layer.columns // size) == along and (layer.group_rows == 1 or layer.rows == 1)
    else:
        same = along == 1 and down == (layer.rows if size < 0 else 1)
    return "" if same else str(size)
