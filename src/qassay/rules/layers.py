"""What the rules about weights in several tensors share: going through them, findings of many."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from qassay.core.text import safe
from qassay.rules.base import ModelFacts, TensorFacts

if TYPE_CHECKING:
    from qassay.core.stats import TensorStats
    from qassay.encodings.layers import Layer, LayerClaim

_OF_CACHE = ("k_scale", "v_scale", "kv_scale")
LISTED = 100
"""Names that a finding lists."""

T = TypeVar("T")


def layers_of(model: ModelFacts) -> list[Layer]:
    """Return the weights that are kept in several tensors."""
    return [] if model.assembly is None else model.assembly.layers


def read_layers(model: ModelFacts) -> Iterator[tuple[Layer, TensorStats]]:
    """Yield those that were read, with what they hold."""
    for tensor in model.tensors:
        if tensor.layer is not None:
            yield tensor.layer, tensor.stats


def claimed_layers(model: ModelFacts) -> Iterator[tuple[Layer, LayerClaim]]:
    """Yield the layers of which the configuration says that, and how, they are quantized."""
    for layer in layers_of(model):
        if layer.claim is not None and layer.claim.quantized:
            yield layer, layer.claim


def activation_scales(tensor: TensorFacts) -> Iterator[tuple[str, str, int | None, float]]:
    """Yield the scales of activations and of the KV cache that a tensor, or a layer, has.

    Yields:
        Part, what it scales, expert, value; of a part with many values the first 16.
    """
    layer = tensor.layer
    for part, values in tensor.stats.scalars.items():
        if layer is not None and layer.encoding.part(part).role.value != "activation":
            continue
        if "scale" not in part or part.startswith("pre_quant"):
            continue
        what = "the KV cache" if part in _OF_CACHE else "activations"
        by_expert = layer is not None and layer.experts == layer.parts[part].size
        for expert, value in enumerate(values):
            yield part, what, expert if by_expert else None, value


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """Return items that have the same key together, in order of the first of each."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def about(layers: list[Layer], field: str | None = None, **data: Any) -> dict[str, Any]:
    """Return the arguments of a finding about some layers, of which the first gives the place."""
    first = layers[0]
    stored = first.codes if field is None else first.parts.get(field, first.codes)
    return {
        "path": stored.path,
        "tensor": first.codes.name,
        "field": field,
        "count": len(layers),
        "data": {
            "layer": first.module,
            "encoding": first.label,
            "layers": [layer.module for layer in layers[:LISTED]],
            **data,
        },
    }


def named(layers: list[Layer]) -> str:
    """Return a layer's name for a message, and how many others it stands for."""
    return f"'{safe(layers[0].module)}'{others(len(layers))}"


def others(count: int) -> str:
    """Return ` and 6 other layers`, "" where there is no other."""
    more = count - 1
    return f" and {more:,} other layer{'s' if more > 1 else ''}" if more else ""


def key_of(claim: LayerClaim, name: str) -> str:
    """Return a key of the configuration with where it stands."""
    return f"{safe(claim.source)}.{name}" if claim.source else name
