"""What a checkpoint's configuration says of its layers, set against what they hold (for Q106)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qassay.core.finding import Certainty, Severity
from qassay.core.stats import Offence
from qassay.core.text import safe
from qassay.rules.base import ModelFacts
from qassay.rules.layers import (
    LISTED,
    about,
    claimed_layers,
    grouped,
    key_of,
    layers_of,
    named,
    others,
    read_layers,
)

if TYPE_CHECKING:
    from qassay.core.container import StoredTensor
    from qassay.core.stats import TensorStats
    from qassay.encodings.layers import Layer, LayerClaim

_FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
_UNPACKED = frozenset({"dense", "fakequant", "auto_round:fake", "fake"})
_COMPRESSED = frozenset({"compressed.pack", "compressed.int", "fp8", "nvfp4.compressed",
                         "mxfp4.compressed", "mxfp8.compressed"})  # fmt: skip
_HOLDS = {
    "gptq": frozenset({"gptq"}),
    "gptq_marlin": frozenset({"gptq"}),
    "awq": frozenset({"awq", "awq.gemv"}),
    "awq_marlin": frozenset({"awq"}),
    "compressed-tensors": _COMPRESSED,
    "sparseml": _COMPRESSED,
    "fp8": frozenset({"fp8", "mxfp8.compressed"}),
    "fbgemm_fp8": frozenset({"fp8"}),
    "mxfp4": frozenset({"mxfp4.gpt_oss", "mxfp4.compressed"}),
}
"""Which encodings a method writes; modelopt and AutoRound write most of them."""
_OTHER_METHODS = frozenset({
    "aqlm", "bitnet", "bitsandbytes", "bitblas", "deepspeedfp", "eetq", "experts_int8", "exl2",
    "exl3", "gguf", "higgs", "hqq", "inc", "ipex", "marlin", "mlx", "petit_nvfp4", "quanto",
    "quark", "quip", "rtn", "spqr", "torchao", "tpu_int8", "vptq",
})  # fmt: skip
"""Methods that exist and whose words are not understood."""
_USUAL = frozenset({
    "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "gate_proj", "up_proj", "down_proj",
    "gate_up_proj", "w1", "w2", "w3", "fc1", "fc2", "out_proj", "query_key_value",
    "dense_h_to_4h", "dense_4h_to_h", "c_attn", "c_fc", "c_proj",
})  # fmt: skip
"""Matrices of decoder layers that every quantizer takes."""
_LARGEST = 1e3
_SMALLEST = 1e-6
"""Between these lies the largest weight of a Linear; a scale taken the wrong way is 1e6 off."""
_TWICE = 1.75
_NORMAL = 2.0**-6
"""The smallest normal number of E4M3."""


@dataclass(frozen=True, slots=True)
class Label:
    """A label that does not say what is there.

    Attributes:
        text: The finding's message.
        about: Its place, count and data.
        severity: None for the rule's own.
        certainty: How sure it is.
        help: What to do, "" for the rule's own.
    """

    text: str
    about: dict[str, Any]
    severity: Severity | None = None
    certainty: Certainty = Certainty.PROVEN
    help: str = ""


def of_layers(model: ModelFacts) -> Iterator[Label]:
    """Yield every label that layers belie."""
    if model.assembly is None:
        return
    yield from _method(model)
    yield from _facts(model)
    yield from _size(model)
    yield from _left_float(model)
    for layer, stats in read_layers(model):
        yield from _global_scale(layer, stats)
    yield from _powers_of_two(model)
    yield from _order(model)
    yield from _cache(model)


def _method(model: ModelFacts) -> Iterator[Label]:
    """Yield a method that is not known, over layers that can be read all the same."""
    layers = layers_of(model)
    claims = model.assembly.claims if model.assembly is not None else None
    if claims is None or claims.known or not claims.method or not layers:
        return
    labels = sorted({layer.label for layer in layers})
    known = claims.method.strip().lower() in _OTHER_METHODS
    yield Label(
        f"{safe(claims.source)} names the method '{safe(claims.method, 60)}', whose words are"
        f" not understood; the tensors were read as {', '.join(labels)}",
        about(layers, method=claims.method, encodings=labels),
        severity=Severity.INFO if known else None,
        help="compare the configuration with the tensors by hand, or correct the method's name",
    )


def _facts(model: ModelFacts) -> Iterator[Label]:
    """Yield methods, widths and kinds of code that layers do not have."""
    found = [
        (layer, claim, fact)
        for layer, claim in claimed_layers(model)
        for fact in _contradicted(layer, claim)
    ]
    for items in grouped(found, lambda item: (item[2], item[1].source)):
        layers, (_, claim, (key, claimed, held)) = [item[0] for item in items], items[0]
        verb = "holds" if len(layers) == 1 else "hold"
        yield Label(
            f"{key_of(claim, key)} is {claimed}, and {named(layers)} {verb} {held}",
            about(layers, key=key, claimed=claimed, found=held),
        )


def _contradicted(layer: Layer, claim: LayerClaim) -> Iterator[tuple[str, str, str]]:
    """Yield key, claim and content of each fact that a layer belies."""
    holds = _HOLDS.get(claim.method.strip().lower())
    if holds is not None and layer.encoding.id not in holds:
        yield "quant_method", f"'{safe(claim.method, 60)}'", layer.label
        return
    kind = "int" if layer.encoding.id in ("gptq", "awq", "awq.gemv") else ""
    kind = kind or ("int" if layer.encoding.id.startswith("compressed.") else "float")
    if claim.kind is not None and claim.kind != kind:
        yield "type", claim.kind, f"{kind} codes ({layer.label})"
    if "fnuz" in claim.format.lower() and layer.codes.type.label == "F8_E4M3":
        yield "fmt", f"'{safe(claim.format, 40)}'", "F8_E4M3, whose bytes stand for twice as much"
    if claim.bits is not None and claim.bits != layer.bits:
        yield "bits", str(claim.bits), f"codes of {layer.bits} bits ({layer.label})"


def _size(model: ModelFacts) -> Iterator[Label]:
    """Yield layers that take about twice the bits that they are said to have."""
    found = [
        (layer, claim)
        for layer, claim in claimed_layers(model)
        if claim.bits is not None
        and claim.bits == layer.bits
        and layer.weights >= 1 << 12
        and layer.bits_per_weight >= _TWICE * claim.bits
    ]
    for items in grouped(found, lambda item: (item[0].label, item[1].bits)):
        layers, (first, claim) = [item[0] for item in items], items[0]
        verb = "takes" if len(layers) == 1 else "take"
        yield Label(
            f"{key_of(claim, 'bits')} is {claim.bits}, and {named(layers)} {verb}"
            f" {first.bits_per_weight:.2f} bits a weight in the file",
            about(layers, bits=claim.bits, bits_per_weight=round(first.bits_per_weight, 3)),
            help="expect a file of this size, or pack the codes",
        )


def _left_float(model: ModelFacts) -> Iterator[Label]:
    """Yield layers that are said to be quantized and are plain floats."""
    assembly = model.assembly
    if assembly is None or not assembly.claims.known:
        return
    found: list[tuple[str, StoredTensor, LayerClaim, bool]] = []
    quantized_names = {_pattern(layer.module) for layer in layers_of(model)}
    for stored in assembly.loose:
        name, _, part = stored.name.rpartition(".")
        if part != "weight" or stored.type.label not in _FLOATS or len(stored.shape) not in (2, 3):
            continue
        claim = assembly.claims.of(name)
        if claim.quantized and claim.format.lower() not in _UNPACKED:
            told = bool(claim.because) or _pattern(name) in quantized_names
            found.append((name, stored, claim, told or name.rpartition(".")[2] in _USUAL))
    for items in grouped(found, lambda item: (item[2].source, item[3])):
        name, stored, claim, sure = items[0]
        verb = "is" if len(items) == 1 else "are"
        quantized = len(layers_of(model))
        beside = f" beside {quantized:,} that are" if quantized else ""
        yield Label(
            f"'{safe(name)}'{others(len(items))} {verb} {stored.type.name}, not quantized{beside},"
            f" and {safe(claim.source) or 'the configuration'} says that all of them are",
            {
                "path": stored.path,
                "tensor": stored.name,
                "count": len(items),
                "data": {
                    "layer": name,
                    "layers": [each[0] for each in items[:LISTED]],
                    "quantized": quantized,
                },
            },
            severity=None if sure else Severity.INFO,
            certainty=Certainty.PROVEN if sure else Certainty.HINT,
            help="quantize these layers, or list them as left alone",
        )


def _pattern(module: str) -> str:
    """Return a module's name with its numbers left open."""
    return ".".join("#" if part.isdecimal() else part for part in module.split("."))


def _global_scale(layer: Layer, stats: TensorStats) -> Iterator[Label]:
    """Yield scales of a whole NVFP4 tensor that were stored the wrong way round, or never made."""
    part = {"nvfp4.compressed": "weight_global_scale", "nvfp4.modelopt": "weight_scale_2"}.get(
        layer.encoding.id
    )
    scales = stats.scales.get("weight_scale")
    if part is None or scales is None or not scales.max:
        return
    divides = part == "weight_global_scale"
    for expert, value in enumerate(stats.scalars.get(part, ())):
        if not math.isfinite(value) or value <= 0:
            continue
        largest = 6 * scales.max
        read, other = largest / value, largest * value
        if not divides:
            read, other = other, read
        if not _SMALLEST <= read <= _LARGEST and _SMALLEST <= other <= _LARGEST:
            yield _inverted(layer, part, value, (read, other), expert, divides=divides)
            return
        if not _SMALLEST**2 <= read <= _LARGEST**2:
            yield _impossible(layer, part, value, read, expert)
            return
        if value == 1.0 and divides:
            yield _made_up(layer, part, scales.max)
            return


def _inverted(
    layer: Layer,
    part: str,
    value: float,
    weights: tuple[float, float],
    expert: int,
    *,
    divides: bool,
) -> Label:
    read, other = weights
    does, would = ("divides", "multiplied") if divides else ("multiplies", "divided")
    return Label(
        f"{part} of '{safe(layer.module)}' is {value:.6g}, which {does} here: the largest weight"
        f" is up to {read:.3g}; it would be {other:.3g} if it {would}. A divisor was stored as a"
        " multiplier, or the reverse",
        about([layer], part, value=value, largest=read, inverted=other, expert=expert),
        severity=Severity.ERROR,
        certainty=Certainty.LIKELY,
        help=f"store 1 / {part} instead",
    )


def _impossible(layer: Layer, part: str, value: float, read: float, expert: int) -> Label:
    return Label(
        f"{part} of '{safe(layer.module)}' is {value:.6g}: the largest weight is up to {read:.3g},"
        " which no trained layer has",
        about([layer], part, value=value, largest=read, expert=expert),
        certainty=Certainty.LIKELY,
        help="take the scale from an intact copy, or quantize this layer again",
    )


def _made_up(layer: Layer, part: str, largest: float) -> Label:
    small = largest < _NORMAL
    more = (
        "; the scales of all groups are subnormal numbers of E4M3 for that, which have 1 to 3"
        " bits left"
        if small
        else ""
    )
    return Label(
        f"{part} of '{safe(layer.module)}' is exactly 1, which compressed-tensors writes for a"
        f" tensor whose largest weight is NaN or 0{more}",
        about([layer], part, value=1.0, largest_scale=largest),
        severity=None if small else Severity.INFO,
        certainty=Certainty.LIKELY,
        help="look at the source of this layer, and quantize it again",
    )


def _powers_of_two(model: ModelFacts) -> Iterator[Label]:
    """Yield scales that are said to be powers of two and are not."""
    found = []
    for layer, stats in read_layers(model):
        claim = layer.claim
        word = ((claim.scale_dtype if claim is not None else None) or "").lower()
        if claim is None or not ("ue8m0" in word or "e8m0" in word):
            continue
        for name, histogram in stats.histograms.items():
            kind = str(layer.parts[name].type.label)
            mask = {"F32": 0x7F, "BF16": 0x7F, "F16": 0x3FF}.get(kind)
            if mask is None:
                continue
            odd = int(histogram.counts[(histogram.patterns & mask) != 0].sum())
            if odd:
                found.append((layer, claim, name, odd, histogram.total))
    for items in grouped(found, lambda item: (item[1].source, item[2])):
        layers, (_, claim, name, odd, total) = [item[0] for item in items], items[0]
        yield Label(
            f"{key_of(claim, 'scale_fmt')} is {safe(claim.scale_dtype or '', 40)}, and"
            f" {odd:,} of {total:,} {name} of {named(layers)} are no powers of two",
            about(layers, name, not_powers=odd, scales=total),
            help="correct the configuration: runtimes that keep the exponent alone lose the rest",
        )


def _order(model: ModelFacts) -> Iterator[Label]:
    """Yield layers whose index is not in order, or does not fill its groups."""
    found = []
    for layer, stats in read_layers(model):
        moments, claim = stats.layer, layer.claim
        if moments is None or moments.in_order is not False:
            continue
        denied = claim is not None and bool(claim.quantized) and claim.act_order is False
        uneven = moments.uneven and not stats.total(Offence.GROUP_OUT_OF_RANGE)
        if denied or uneven:
            found.append((layer, key_of(claim, "desc_act") if denied and claim else "", moments))
    for items in grouped(found, lambda item: (item[0].encoding.id, item[1])):
        layers, (first, denied_by, moments) = [item[0] for item in items], items[0]
        part = "g_idx" if "g_idx" in first.parts else "weight_g_idx"
        if denied_by:
            text = (
                f"{denied_by} is false, and {part} of {named(layers)} does not assign columns to"
                " groups in order: runtimes that believe it ignore the index"
            )
        else:
            text = (
                f"{part} of {named(layers)} gives {moments.uneven:,} of {first.groups:,} groups"
                f" another number of columns than {first.group}"
            )
        yield Label(
            text,
            about(layers, part, uneven=moments.uneven, groups=first.groups),
            help="say desc_act true, or take the index from an intact copy",
        )


def _cache(model: ModelFacts) -> Iterator[Label]:
    """Yield scales of the KV cache that are all exactly 1, though it is said to be quantized."""
    claims = model.assembly.claims if model.assembly is not None else None
    if claims is None or not claims.kv_cache:
        return
    ones = [
        tensor.stored
        for tensor in model.tensors
        if tensor.layer is None
        and tensor.stored.name.endswith((".k_scale", ".v_scale"))
        and tensor.stats.values is not None
        and tensor.stats.values.max == tensor.stats.values.min_nonzero == 1.0
        and not tensor.stats.values.zero
    ]
    if not ones:
        return
    first = ones[0]
    yield Label(
        f"{len(ones):,} scale{'s' if len(ones) > 1 else ''} of the KV cache"
        f" {'are' if len(ones) > 1 else 'is'} exactly 1 (the first is '{safe(first.name)}'), the"
        " default of one that was never calibrated",
        {
            "path": first.path,
            "tensor": first.name,
            "count": len(ones),
            "data": {"names": [stored.name for stored in ones[:LISTED]]},
        },
        severity=Severity.INFO,
        certainty=Certainty.HINT,
        help="calibrate the KV cache, if its accuracy matters",
    )
