"""What the document and the tables say of a weight that is kept in several tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qassay.core.text import safe
from qassay.report.page import Column, Table
from qassay.report.words import shape

if TYPE_CHECKING:  # a model without layers does not load them
    from qassay.encodings.layers import Layer, LayerClaim

_COLUMNS = ("[N, K]", "bits", "group", "symmetric", "act-order", "dtypes", "bits/weight")
_CLAIMED = ("method", "format", "quantized", "kind", "bits", "group_size", "block", "symmetric",
            "act_order", "scale_dtype", "activations", "source", "because")  # fmt: skip


def layer_entry(layer: Layer) -> dict[str, Any]:
    """Return the JSON form of a layer, as far as headers and configuration tell."""
    return {
        "module": layer.module,
        "bits": layer.bits,
        "group": layer.group,
        "group_rows": layer.group_rows,
        "symmetric": layer.symmetric,
        "bits_per_weight": layer.bits_per_weight,
        "parts": {
            part: {
                "name": stored.name,
                "path": stored.path,
                "type": stored.type.name,
                "shape": list(stored.shape),
            }
            for part, stored in layer.parts.items()
        },
    }


def described(layer: Layer) -> dict[str, Any]:
    """Return the JSON form of a layer in `inspect`: what tensors and configuration each say."""
    return {
        "encoding": layer.label,
        "shape": list(layer.shape),
        "act_order": act_order(layer),
        **layer_entry(layer),
        "claim": _claim(layer.claim),
        "evidence": list(layer.evidence),
    }


def _claim(claim: LayerClaim | None) -> dict[str, Any] | None:
    if claim is None or not claim.method:
        return None
    said = {name: getattr(claim, name) for name in _CLAIMED}
    return {name: value for name, value in said.items() if value not in (None, "")}


def act_order(layer: Layer) -> bool | None:
    """Tell whether an index assigns columns to groups; None where that takes a look into it."""
    if layer.claim is not None and layer.claim.act_order is not None:
        return layer.claim.act_order
    indexed = any(part in layer.parts for part in ("g_idx", "weight_g_idx"))
    return None if indexed else False


def table(layers: Iterable[Layer]) -> Table:
    """Return the table of layers that `inspect` prints."""
    rows = tuple(
        (
            safe(layer.module),
            layer.label,
            shape(layer.shape),
            str(layer.bits),
            _group(layer),
            _word(_symmetric(layer)),
            _word(act_order(layer)),
            _dtypes(layer.parts),
            f"{layer.bits_per_weight:.2f}",
        )
        for layer in layers
    )
    numbers = {"[N, K]", "bits", "group", "bits/weight"}
    columns = (
        Column("layer"),
        Column("encoding"),
        *(Column(word, right=word in numbers) for word in _COLUMNS),
    )
    return Table("Layers", columns, rows)


def _group(layer: Layer) -> str:
    """Return the weights that share a scale, the way people say it."""
    if layer.group_rows >= layer.rows and layer.group >= layer.columns:
        return "tensor"
    if layer.group_rows > 1:
        return f"{layer.group_rows} x {layer.group}"
    return "row" if layer.group >= layer.columns else str(layer.group)


def _symmetric(layer: Layer) -> bool | None:
    """Return what the headers say, and where they are silent, the configuration."""
    if layer.symmetric is None and layer.claim is not None:
        return layer.claim.symmetric
    return layer.symmetric


def _word(value: bool | None) -> str:
    return "?" if value is None else "yes" if value else "no"


def _dtypes(parts: Mapping[str, Any]) -> str:
    seen: Sequence[str] = list(dict.fromkeys(stored.type.name for stored in parts.values()))
    return ", ".join(seen)
