"""Q102."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qassay.core.finding import Certainty, Finding, Severity
from qassay.rules.base import ModelFacts, ModelRule, share_of
from qassay.rules.layers import about, grouped, key_of, named, read_layers

if TYPE_CHECKING:
    from qassay.core.stats import Histogram, LayerMoments
    from qassay.encodings.layers import Layer

_NEAR = 0.25
"""How near to a whole step a mean has to be; those of sound layers are within a few hundredths."""
_ALONE = 0.75
"""Share of groups that have to be off like the mean: else the weights of some have a sign."""
_AT_EDGE = 0.75
"""Where so many zero points are the first or last code, most groups are of one sign."""
_FEWEST_GROUPS = 256
_FEWEST_WEIGHTS = 1 << 14
_FEW_OF = 4
_MOST_BITS = 4
"""With more bits a step is too small against the spread of weights to be told by their mean."""


@dataclass(frozen=True, slots=True)
class _Case:
    """What is wrong with the zero points of a layer.

    Attributes:
        kind: Layers with the same kind are one finding.
        text: What is stored, and what that shows.
        shift: Steps that every decoded weight is too high; None where they differ.
        certainty: How sure that is.
        help: What to do about it, "" for the rule's own.
    """

    kind: str
    text: str
    shift: int | None
    certainty: Certainty
    help: str = ""


class ZeroPointConvention(ModelRule, code="Q102", name="zero-point-convention"):
    """Zero points are off by one, or are not the constant that "symmetric" means.

    ## What it does
    GPTQ files of version 1 store each zero point minus one, those of version 2 store it as it is,
    and only the configuration tells which (`checkpoint_format`). Three things are compared with
    what it says. Zero points that are all alike must be the middle of the codes, 2^(bits - 1),
    once read: 8 for 4 bits, stored as 0x77777777 in version 1 and as 0x88888888 in version 2.
    Where `sym` is true every zero point must be that. Zero points that vary (2 to 4 bits) are
    judged by the weights: their mean, in steps and over all groups, is near 0 in a sound layer,
    and near +1 or -1 if the zero points are off by one. That is said of layers with at least 256
    groups only, and only if mean and median of the groups are within a quarter of a whole step;
    not where groups differ much, nor where most zero points are the first or last code, since
    such groups have weights of one sign. Where less than a quarter of the layers are off, it is
    a hint, since weights may have a mean of their own.

    ## Why it is bad
    Every weight is off by exactly one step of its group. The model answers in "!!!!" or in
    words that make no sense, and nothing in the file is out of range.

    ## How to fix it
    If the label is wrong, set `checkpoint_format` to what the file is (`gptq` or `gptq_v2`).
    Otherwise add one to the stored zero points, or take one off, and check again.

    ## Example
    `the zero points of 'model.layers.0.mlp.down_proj' and 6 other layers are stored as 8, the
    constant of gptq_v2, and the configuration says gptq: they are read as 9, and every weight is
    1 step of its group too low`
    """

    severity = Severity.WARNING
    certainty = Certainty.LIKELY
    help = "find out whether label or zero points are wrong, and shift or relabel them"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each way to be off."""
        varying = [
            (layer, moments)
            for layer, stats in read_layers(model)
            if (moments := stats.layer) is not None and moments.zeros is not None
        ]
        found = [
            (layer, moments, case)
            for layer, moments in varying
            if (case := _case(layer, moments)) is not None
        ]
        for items in grouped(found, lambda item: (item[2].kind, item[0].label)):
            layers, (layer, moments, case) = [item[0] for item in items], items[0]
            effect = ""
            if case.shift:
                direction = "high" if case.shift > 0 else "low"
                effect = f"; every weight is 1 step of its group too {direction}"
            # A few layers among many may have weights whose mean is a step: it is rare, not odd.
            few = case.kind.startswith("biased") and _FEW_OF * len(layers) < len(varying)
            yield self.finding(
                f"the zero points of {named(layers)} {case.text}{effect}",
                certainty=Certainty.HINT if few else case.certainty,
                help=case.help,
                **about(
                    layers,
                    _part(layer),
                    shift=case.shift,
                    mean_code=moments.mean_code,
                    mean_zero=moments.mean_zero,
                    bias=moments.bias,
                ),
            )


def _part(layer: Layer) -> str | None:
    names = [name for name in layer.parts if layer.encoding.part(name).role.value == "zero"]
    return names[0] if names else None


def _case(layer: Layer, moments: LayerMoments) -> _Case | None:
    zeros = moments.zeros
    if zeros is None or moments.mean_zero is None or moments.bias is None:
        return None
    shift = _shift(layer, moments)
    if zeros.patterns.size == 1:
        stored = int(zeros.patterns[0])
        found = _constant(layer, stored, zeros, shift)
        # The constant of a symmetric layer, as it is read: weights with a mean do not change that.
        if found is not None or _decoded(layer, stored) == _middle(layer):
            return found
    elif layer.claim is not None and layer.claim.symmetric:
        return _varying(layer, zeros)
    return _biased(layer, moments, shift)


def _middle(layer: Layer) -> int:
    """Return the zero point of a symmetric layer, as it is decoded."""
    return 0 if layer.encoding.id == "compressed.int" else 1 << (layer.bits - 1)


def _decoded(layer: Layer, stored: int) -> int:
    if layer.encoding.id == "compressed.int":  # signed codes and zero points
        return stored - 256 if stored > 127 else stored
    return (stored + int(layer.options.get("zero_offset", 0))) & ((1 << layer.bits) - 1)


def _shift(layer: Layer, moments: LayerMoments) -> int | None:
    """Return by how many steps the mean of the weights lies off: -1, 0, 1; None: no telling."""
    enough = (
        moments.groups >= _FEWEST_GROUPS
        and moments.groups * layer.columns // layer.groups >= _FEWEST_WEIGHTS
    )
    bias = moments.bias
    if bias is None or not enough or layer.bits > _MOST_BITS:
        return None
    nearest = round(bias)
    return nearest if abs(nearest) <= 1 and abs(bias - nearest) < _NEAR else None


def _constant(layer: Layer, stored: int, zeros: Histogram, shift: int | None) -> _Case | None:
    """Judge zero points that are all alike."""
    middle, read = _middle(layer), _decoded(layer, stored)
    claim = layer.claim
    symmetric = claim is not None and claim.symmetric is True
    off = middle - read
    # Of two bits, skewed weights may all have the zero point beside the middle.
    by_chance = layer.bits < 3 or abs(off) != 1 or zeros.total < 64
    if off == 0 or (not symmetric and by_chance):
        return None
    # The codes lie around the zero point as it is read: whatever it is, it is the right one.
    if shift == 0 and not symmetric:
        return None
    sure = shift in (None, off) and (symmetric or shift is not None)
    certainty = Certainty.PROVEN if sure else Certainty.LIKELY
    label = _label(layer)
    if label and off == (-1 if label == "gptq" else 1):
        other = "gptq_v2" if label == "gptq" else "gptq"
        said = key_of(claim, "checkpoint_format") if claim is not None else "nothing"
        text = (
            f"are stored as {stored}, the constant of {other}, and read as {read}, as"
            f" {label if label != 'gptq' else 'gptq (version 1)'} asks ({said})"
        )
        return _Case(f"constant {other}", text, off, certainty, _relabel(other))
    text = f"are all {read} as they are read; symmetric codes of {layer.bits} bits have {middle}"
    return _Case(f"constant {stored}", text, off if abs(off) == 1 else None, certainty)


def _varying(layer: Layer, zeros: Histogram) -> _Case:
    """Judge zero points that are not alike, of a layer that is said to be symmetric."""
    middle = _middle(layer)
    wrong = sum(
        count
        for stored, count in zip(zeros.patterns.tolist(), zeros.counts.tolist(), strict=True)
        if _decoded(layer, stored) != middle
    )
    share = share_of(wrong, zeros.total, "of them").removesuffix(" of them")
    text = (
        f"are not the constant that sym = true means: {share} are not {middle}"
        " as they are read, and kernels for symmetric weights do not look at them"
    )
    return _Case("varying", text, None, Certainty.PROVEN, "set sym to false, or quantize again")


def _biased(layer: Layer, moments: LayerMoments, shift: int | None) -> _Case | None:
    """Judge zero points that vary by the mean of the weights."""
    if not shift or moments.bias is None or _one_sided(layer, moments, shift):
        return None
    label = _label(layer)
    other = {"gptq": "gptq_v2", "gptq_v2": "gptq"}.get(label, "")
    # Version 1 adds one: zero points that were stored as they are come out one too high.
    relabelled = bool(other) and shift == (-1 if label == "gptq" else 1)
    way = "low" if shift > 0 else "high"
    text = (
        f"are 1 too {way}: the weights of the first have a mean of {moments.bias:+.2f} steps"
        f" over {moments.groups:,} groups, expected one near 0"
    )
    if relabelled:
        text += f" (which they have as {other})"
    return _Case(
        f"biased {shift}", text, shift, Certainty.LIKELY, _relabel(other) if relabelled else ""
    )


def _one_sided(layer: Layer, moments: LayerMoments, shift: int) -> bool:
    """Tell whether a mean that is not 0 may well be that of the weights themselves.

    Zero points that are off by one move all groups alike, so that the median moves as the mean
    does. Groups of one sign are each off by their own number of steps; and a group that is above
    zero as a whole has the first code for a zero point, one below zero the last.
    """
    usual, zeros = moments.usual_bias, moments.zeros
    if usual is None or abs(usual - shift) >= _NEAR or moments.near_bias < _ALONE or zeros is None:
        return True
    edge = 0 if shift > 0 else (1 << layer.bits) - 1
    at_edge = sum(
        count
        for stored, count in zip(zeros.patterns.tolist(), zeros.counts.tolist(), strict=True)
        if _decoded(layer, stored) == edge
    )
    return bool(at_edge > _AT_EDGE * zeros.total)


def _label(layer: Layer) -> str:
    """Return `gptq` or `gptq_v2`, which of the two a layer is read as; "" for other families."""
    if layer.encoding.id != "gptq":
        return ""
    return "gptq" if layer.options.get("zero_offset") else "gptq_v2"


def _relabel(other: str) -> str:
    return f"set checkpoint_format to {other}, if that is what wrote the file"
