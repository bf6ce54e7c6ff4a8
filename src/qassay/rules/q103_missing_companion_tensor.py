"""Q103."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from qassay.core.finding import Finding, Severity
from qassay.core.text import safe
from qassay.rules.base import ContainerRule, ModelFacts
from qassay.rules.layers import LISTED, about, claimed_layers, grouped, key_of, layers_of, named

if TYPE_CHECKING:
    from qassay.core.container import StoredTensor
    from qassay.encodings.layers import Layer

_FLOAT8 = frozenset({"F8_E4M3", "F8_E5M2"})
_ACTIVATIONS = ("input_scale", "input_global_scale", "activation_scale", "input_scale_inv",
                "activation_scale_inv", "input_scale_ub")  # fmt: skip
_MAY_HAVE_ZEROS = frozenset({"compressed.pack", "compressed.int"})
_EXPERT = re.compile(r"^(.*\.experts\.)(\d{1,9})(\..*)$")
_KEYS_AND_VALUES = re.compile(
    r"^(.*)\.(?:k_proj|v_proj|qkv_proj)\.(?:weight|weight_packed|qweight)$"
)
_CACHE = ("k_scale", "v_scale", "kv_scale", "output_scale")


class MissingCompanionTensor(ContainerRule, code="Q103", name="missing-companion-tensor"):
    """A weight lacks a tensor that it cannot be decoded, or run, without.

    ## What it does
    Reports parts of a weight that are missing, or whose shape or dtype does not fit the others:
    scales, zero points, an index, a shape, codes. Weights of 8-bit floats without any scale are
    reported where other layers of the model have scales. So are zero points that
    the configuration speaks of (`symmetric` false), and scales of activations that are
    missing: where the configuration says that they are static, or where one expert lacks what
    its neighbours have. If the configuration says that the KV cache is quantized with static
    scales, and some attention layers or all have none, that is a warning (an info where the
    configuration does not say that they are static). A part in another shard is found there.

    ## Why it is bad
    A loader stops, or leaves the part as it was allocated: weights without their scale are wrong
    by that scale, a scale of activations that stays 0 gives 1 / 0.

    ## How to fix it
    Look for the tensor in the source of the conversion, and convert again. If an expert was never
    calibrated, give it more calibration data, or the largest scale of its neighbours.

    ## Example
    `model.layers.0.mlp.down_proj.qweight has no scales beside it; expected [4, 256]; found
    nothing`
    """

    severity = Severity.ERROR
    help = "convert the model again from a source that has the tensor"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield what was found while putting weights together, then what only layers tell."""
        told = set()
        for finding in super().check(model):
            told.add(finding.tensor)
            yield finding
        yield from self._bare_floats(model, told)
        yield from self._zero_points(model)
        yield from self._static(model)
        yield from self._experts(model)
        yield from self._cache(model)

    def _bare_floats(self, model: ModelFacts, told: set[str | None]) -> Iterator[Finding]:
        """Yield 8-bit floats that have lost their scale, in a model whose others have one."""
        others = [layer for layer in layers_of(model) if layer.codes.type.label in _FLOAT8]
        if not others or model.assembly is None:
            return
        bare = [
            stored
            for stored in model.assembly.loose
            if stored.type.label in _FLOAT8
            and len(stored.shape) in (2, 3)
            and stored.name.endswith(".weight")
            and stored.name not in told
        ]
        for stored in bare:
            module = stored.name.removesuffix(".weight")
            yield self.finding(
                f"'{safe(stored.name)}' is {stored.type.name} and has no scale, as"
                f" {len(others):,} other layers of the model have; expected a scale beside it",
                path=stored.path,
                tensor=stored.name,
                data={"layer": module, "part": "weight_scale"},
            )

    def _zero_points(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield layers without the zero points that the configuration speaks of."""
        lacking = [
            (layer, claim)
            for layer, claim in claimed_layers(model)
            if claim.symmetric is False and layer.symmetric and layer.encoding.id in _MAY_HAVE_ZEROS
        ]
        for items in grouped(lacking, lambda item: (item[0].label, item[1].source)):
            layers, (_, claim) = [item[0] for item in items], items[0]
            verb = "has" if len(layers) == 1 else "have"
            yield self.finding(
                f"{named(layers)} {verb} no weight_zero_point, and {key_of(claim, 'symmetric')} is"
                " false; without it the middle of the codes is taken for zero",
                **about(layers, part="weight_zero_point"),
            )

    def _static(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield layers without the scale of activations that the configuration speaks of."""
        lacking = [
            (layer, claim, part)
            for layer, claim in claimed_layers(model)
            if claim.activations == "static" and (part := _wanted(layer, model)) is not None
        ]
        for items in grouped(lacking, lambda item: (item[2], item[0].label, item[1].source)):
            layers, (_, claim, part) = [item[0] for item in items], items[0]
            verb = "has" if len(layers) == 1 else "have"
            said = key_of(claim, "activations") if claim.source else "the configuration"
            yield self.finding(
                f"{named(layers)} {verb} no {part}, and {said.removesuffix('.activations')} says"
                " that activations are quantized with a stored scale",
                **about(layers, part=part),
            )

    def _experts(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield experts without a scale of activations that their neighbours have."""
        experts = [
            (layer, match) for layer in layers_of(model) if (match := _EXPERT.match(layer.module))
        ]
        for items in grouped(experts, lambda item: (item[1][1], item[1][3], item[0].encoding.id)):
            for part in _ACTIVATIONS:
                without = [
                    layer
                    for layer, _ in items
                    if part not in layer.parts
                    and not (layer.claim is not None and layer.claim.activations == "static")
                ]
                holders = sum(part in layer.parts for layer, _ in items)
                if not holders or not without:
                    continue
                verb = "has" if len(without) == 1 else "have"
                yield self.finding(
                    f"{named(without)} {verb} no {part}, which {holders:,} of {len(items):,}"
                    " experts beside have",
                    **about(without, part=part),
                )

    def _cache(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield attention layers without scales of a KV cache that is said to be quantized."""
        claims = None if model.assembly is None else model.assembly.claims
        scheme = None if claims is None else claims.kv_cache
        if claims is None or not scheme or scheme.get("dynamic") is True:
            return
        blocks: dict[str, StoredTensor] = {}
        having: set[str] = set()
        for stored in model.container.tensors:
            match = _KEYS_AND_VALUES.match(stored.name)
            if match is not None:
                blocks.setdefault(match[1], stored)
            if stored.name.endswith(_CACHE):
                having.update(_parents(stored.name))
        lacking = [(name, stored) for name, stored in blocks.items() if name not in having]
        if not lacking:
            return
        some = len(lacking) < len(blocks)
        stated = some or scheme.get("dynamic") is False
        name, stored = lacking[0]
        data: dict[str, Any] = {"layers": [each for each, _ in lacking[:LISTED]], "part": "k_scale"}
        yield self.finding(
            f"{len(lacking):,} of {len(blocks):,} attention layers have no k_scale and v_scale (the"
            f" first is '{safe(name)}'), and {safe(claims.source)} says that the KV cache is"
            " quantized; readers take 1 for them",
            path=stored.path,
            tensor=stored.name,
            count=len(lacking),
            severity=Severity.WARNING if stated else Severity.INFO,
            data={"layer": name, **data},
            help="calibrate the scales of the KV cache, or leave its scheme out",
        )


def _parents(name: str) -> Iterator[str]:
    """Yield the modules around a tensor, three of them: `x.attn`, `x`."""
    for _ in range(3):
        name = name.rpartition(".")[0]
        if name:
            yield name


def _wanted(layer: Layer, model: ModelFacts) -> str | None:
    """Return the scale of activations that a layer lacks, None where it has one or needs none."""
    able = [part.name for part in layer.encoding.parts if part.name in _ACTIVATIONS]
    module = None if model.assembly is None else model.assembly.modules.get(layer.module)
    held = layer.parts if module is None else module.tensors
    # `act_scale` of early AutoFP8, and whatever else is about the input.
    if not able or any(name.startswith(("input", "act")) for name in held):
        return None
    if layer.encoding.id == "nvfp4.compressed":
        return "input_global_scale"
    return "input_scale"
