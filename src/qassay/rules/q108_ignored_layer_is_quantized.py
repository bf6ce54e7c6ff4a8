"""Q108."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.text import safe
from qassay.rules.base import ModelFacts, ModelRule
from qassay.rules.layers import about, grouped, layers_of, named


class IgnoredLayerIsQuantized(ModelRule, code="Q108", name="ignored-layer-is-quantized"):
    """The configuration says that a layer was left alone, and the file holds it quantized.

    ## What it does
    Compares the lists of layers that are not quantized (`ignore`, `modules_to_not_convert`,
    `exclude_modules`, `dynamic`, `extra_config`, `lm_head`) with the tensors. An entry also means
    the parts of a matrix that runtimes join (`qkv_proj`, `gate_up_proj`, ...). Layers that one
    entry means are one finding; `data.layers` lists up to 100.

    ## Why it is bad
    A runtime that believes the list makes a float layer, finds no `weight` for it, and stops, or
    runs with what memory held.

    ## How to fix it
    Correct the list, or quantize again with it. Exporters that translate names between formats
    are a common cause: compare the names in the list with those in the file.

    ## Example
    `'lm_head' is quantized (awq.int4), and quantization_config.modules_to_not_convert says that
    it was left alone (entry 'lm_head')`
    """

    severity = Severity.WARNING
    help = "correct the list of layers that are left alone, or quantize again with it"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each entry."""
        found = [
            (layer, layer.claim)
            for layer in layers_of(model)
            if layer.claim is not None and layer.claim.quantized is False
        ]
        for items in grouped(
            found, lambda item: (item[1].source, item[1].because, item[0].encoding.id)
        ):
            layers, (first, claim) = [item[0] for item in items], items[0]
            verb, were = ("is", "it was") if len(layers) == 1 else ("are", "they were")
            entry = f" (entry '{safe(claim.because)}')" if claim.because else ""
            yield self.finding(
                f"{named(layers)} {verb} quantized ({first.label}), and"
                f" {safe(claim.source) or 'the configuration'} says that {were} left alone{entry}",
                **about(layers, entry=claim.because),
            )
