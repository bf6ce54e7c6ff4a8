"""Q109."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from qassay.core.finding import Certainty, Finding, Severity
from qassay.core.text import safe
from qassay.rules.base import ModelFacts, ModelRule
from qassay.rules.layers import about, grouped, read_layers

if TYPE_CHECKING:
    from qassay.core.stats import TensorStats
    from qassay.encodings.layers import Layer

_JOINED = {
    part: whole
    for whole, parts in {
        "qkv_proj": ("q_proj", "k_proj", "v_proj"),
        "gate_up_proj": ("gate_proj", "up_proj"),
        "w13": ("w1", "w3"),
        "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
        "in_proj_ba": ("in_proj_b", "in_proj_a"),
        "fused_qkv_a_proj": ("q_a_proj", "kv_a_proj_with_mqa"),
    }.items()
    for part in parts
}
_OVERALL = ("weight_global_scale", "weight_scale_2", "input_global_scale", "input_scale")
_SHARED_BY_MAX = ("weight_scale", "weight_scale_inv")

_Item = tuple["Layer", "TensorStats", str, str]


class FusedPartnersDisagree(ModelRule, code="Q109", name="fused-partners-disagree"):
    """Layers that runtimes join into one have different scales where the joined one has one.

    ## What it does
    Runtimes join matrices that share their input: q, k and v, gate and up, w1 and w3. Compares
    their scales of the whole tensor: in NVFP4 the global scale and the scale of the activations,
    which is a warning; in FP8 the scale of each tensor and of its activations, which is an info:
    runtimes quantize the joined matrix again with the largest. Indexes that assign columns to
    groups (act-order) are compared, too: they follow from the inputs, which are the same.

    ## Why it is bad
    The joined layer keeps one of the scales, mostly the largest. In NVFP4 the scales of the groups
    were made for the other one: the partners are wrong by the ratio of the two, or lose
    precision where a runtime corrects for it.

    ## How to fix it
    Quantize again with scales that are shared by the partners; llm-compressor and modelopt do
    that.

    ## Example
    `q_proj, k_proj and v_proj of 'model.layers.0.self_attn' have weight_global_scale 29440, 29440
    and 11008; runtimes that join them to qkv_proj keep one`
    """

    severity = Severity.WARNING
    certainty = Certainty.LIKELY
    help = "quantize again with one scale for layers that runtimes join"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each group of partners and scale."""
        found: list[_Item] = []
        for layer, stats in read_layers(model):
            parent, _, last = layer.module.rpartition(".")
            if last in _JOINED:
                found.append((layer, stats, parent, _JOINED[last]))
        for items in grouped(found, lambda item: (item[2], item[3], item[0].encoding.id)):
            if len(items) < 2:
                continue
            layers = [item[0] for item in items]
            for part in (*_OVERALL, *_SHARED_BY_MAX):
                values = [_scale(layer, stats, part) for layer, stats, _, _ in items]
                known = [value for value in values if value is not None]
                if len(known) < 2 or len(set(known)) < 2:
                    continue
                yield self._finding(layers, part, values, items[0][2], items[0][3])
            yield from self._indexes(items)

    def _indexes(self, items: list[_Item]) -> Iterator[Finding]:
        """Yield partners whose act-order differs."""
        indexed = [
            (layer, stats.layer.index_digest)
            for layer, stats, _, _ in items
            if stats.layer is not None and stats.layer.in_order is False
        ]
        if len({digest for _, digest in indexed}) < 2:
            return
        layers = [layer for layer, _ in indexed]
        names = [layer.module.rpartition(".")[2] for layer in layers]
        part = "g_idx" if "g_idx" in layers[0].parts else "weight_g_idx"
        yield self.finding(
            f"{_listed(names)} of '{safe(items[0][2])}' assign the same inputs to groups in"
            f" different orders ({part}); runtimes that join them to {items[0][3]} keep one",
            help="take the index from an intact copy, or quantize the partners together",
            **about(layers, part, joined=items[0][3]),
        )

    def _finding(
        self,
        layers: list[Layer],
        part: str,
        values: list[float | None],
        parent: str,
        joined: str,
    ) -> Finding:
        names = [layer.module.rpartition(".")[2] for layer in layers]
        shown = [f"{value:.6g}" if value is not None else "none" for value in values]
        of_fp8 = layers[0].encoding.id == "fp8"
        return self.finding(
            f"{_listed(names)} of '{safe(parent)}' have {part} {_listed(shown)}; runtimes that"
            f" join them to {joined} keep one",
            severity=Severity.INFO if of_fp8 else None,
            **about(layers, part, joined=joined, values=values),
        )


def _listed(words: list[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1]))


def _scale(layer: Layer, stats: TensorStats, part: str) -> float | None:
    """Return a scale of a whole tensor, None where there is none, or one for each expert."""
    stored = layer.parts.get(part)
    if stored is None or stored.size != 1:
        return None
    if part in _SHARED_BY_MAX:
        known = stats.scales.get(part)
        return None if known is None or layer.encoding.id != "fp8" else known.max
    values = stats.scalars.get(part)
    return values[0] if values and not math.isnan(values[0]) else None
