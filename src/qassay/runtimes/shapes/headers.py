"""The Linears of a model from the headers of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from qassay.core.container import Container, Skipped, StoredTensor
from qassay.encodings.layers import Assembly, Layer, assemble
from qassay.encodings.registry import for_stored_type
from qassay.runtimes.shapes.config import dtype_of, groups_in
from qassay.runtimes.shapes.linear import LARGEST_AXIS, Linear, Shapes
from qassay.runtimes.shapes.roles import fused_name, is_no_linear, part_of

_COMPANION = re.compile(r"(^|_)(scales?|scale_inv|zeros?|zero_points?|absmax|amax)$")
"""Names of what stands beside codes; of a form that is not read, they are no Linears either."""
_FLOATS = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}


def shapes_of_container(container: Container) -> Shapes:
    """Return the Linears of an open model; no tensor is read."""
    assembly = assemble(container)
    config = container.extra.get("config")
    config = config if isinstance(config, Mapping) else {}
    shapes = Shapes(
        "headers",
        unread=list(container.skipped),
        model_type=str(config.get("model_type", "")),
        method=assembly.claims.method,
        config_groups=groups_in(assembly.claims.raw),
        container=container.format,
        bytes_read=header_bytes(container),
    )
    layers = {id(layer.codes): layer for layer in assembly.layers}
    loose = {id(tensor): tensor for tensor in _alone(container, assembly)}
    for tensor, alone in _in_order(container, layers, loose, assembly):
        if isinstance(alone, Layer):
            shapes.linears.append(_of_layer(alone, told=_tells_order(assembly)))
            contradiction = _contradiction(alone)
            if contradiction:
                shapes.unread.append(Skipped(alone.module, contradiction))
        else:
            _add(shapes, tensor, alone, assembly, config)
    sizes = {one.group for one in shapes.linears if one.quantized}
    shapes.group_size = sizes.pop() if len(sizes) == 1 else None
    shapes.dtype = dtype_of(config) or _common_dtype(container)
    return shapes


def header_bytes(container: Container) -> int:
    """Return how many bytes of the files had to be read to know their tensors."""
    parts = container.extra.get("parts")
    if isinstance(parts, Mapping):
        return sum(header_bytes(part) for part in parts.values())
    if container.format == "safetensors":
        return 8 + int(container.extra.get("header_bytes") or 0)
    return int(container.extra.get("header_bytes") or 0)


def _alone(container: Container, assembly: Assembly) -> Iterator[StoredTensor]:
    """Yield the tensors that are no parts of a layer."""
    parts = {id(part) for layer in assembly.layers for part in layer.parts.values()}
    yield from (tensor for tensor in container.tensors if id(tensor) not in parts)


def _in_order(
    container: Container,
    layers: Mapping[int, Layer],
    loose: Mapping[int, StoredTensor],
    assembly: Assembly,
) -> Iterator[tuple[StoredTensor, Layer | StoredTensor]]:
    """Yield layers and other tensors in file order; `loose` says why one is not understood."""
    judged = iter(assembly.loose)
    for tensor in container.tensors:
        if id(tensor) in layers:
            yield tensor, layers[id(tensor)]
        elif id(tensor) in loose:
            yield tensor, next(judged)


def _of_layer(layer: Layer, *, told: bool) -> Linear:
    part, claim = part_of(layer.module), layer.claim
    group = -1 if layer.group == layer.columns and _whole_row(layer) else layer.group
    act_order: bool | None = None if claim is None else claim.act_order
    if act_order is None and (told or "g_idx" not in layer.parts):
        act_order = False  # not stated: columns are in order
    return Linear(
        layer.module,
        layer.rows,
        layer.columns,
        part.role,
        part.parallel,
        fused_name(layer.module, part),
        bias=None,
        experts=layer.experts,
        quantized=True,
        bits=layer.bits,
        group=group,
        symmetric=layer.symmetric,
        act_order=act_order,
        zero_offset=layer.options.get("zero_offset"),
        method=(claim.method if claim else "") or layer.encoding.id.partition(".")[0],
        format=claim.format if claim else "",
        kind="int" if ".int" in layer.label else "float",
    )


def _tells_order(assembly: Assembly) -> bool:
    """Tell whether a configuration that is silent about act-order means that there is none."""
    stated = assembly.claims.raw.get("desc_act")
    return bool(assembly.claims.method) and (stated is None or isinstance(stated, bool))


def _contradiction(layer: Layer) -> str:
    """Return how the configuration contradicts the tensors; converters go by the one or other."""
    claim = layer.claim
    if claim is None or claim.quantized is False:
        return ""
    if claim.bits is not None and layer.bits != claim.bits:
        return f"the configuration says {claim.bits} bits, and its tensors hold {layer.bits}"
    stated = claim.group_size
    if stated is not None and 0 < stated < layer.columns and layer.group not in (None, stated):
        return f"the configuration says groups of {stated}, and its tensors hold {layer.group}"
    return ""


def _whole_row(layer: Layer) -> bool:
    """Tell whether one scale a row was asked for, where a group is as long as one."""
    stated = None if layer.claim is None else layer.claim.group_size
    return stated is None or stated <= 0


def _add(
    shapes: Shapes,
    tensor: StoredTensor,
    alone: StoredTensor,
    assembly: Assembly,
    config: Mapping[str, Any],
) -> None:
    """Add a tensor that is no part of a layer, if it is a Linear's weight."""
    module, dot, suffix = tensor.name.rpartition(".")
    if not dot or suffix != "weight":
        module = tensor.name
    stacked = len(tensor.shape) == 3 and ("experts." in tensor.name or "_exps" in tensor.name)
    broken = not tensor.readable and not alone.part_of  # then its shape says nothing
    if (
        suffix == "bias"
        or _COMPANION.search(suffix)
        or (len(tensor.shape) != 2 and not stacked and not broken)
        or is_no_linear(module)
    ):
        if alone.part_of:
            shapes.unread.append(Skipped(tensor.name, alone.part_of))
        return
    encoding = for_stored_type(tensor.type)
    if alone.part_of or encoding is None or not tensor.readable or encoding.kind == "integer":
        why = alone.part_of or (
            "its shape or place in the file is not sound"
            if encoding is not None
            else f"encoding {tensor.type.name} is not read by this version"
        )
        if encoding is None or encoding.kind != "integer" or alone.part_of:
            shapes.unread.append(Skipped(tensor.name, why))
        return
    if min(tensor.shape) < 1 or max(tensor.shape) > LARGEST_AXIS:
        shapes.unread.append(Skipped(tensor.name, f"no Linear has a shape {list(tensor.shape)}"))
        return
    part, claim = part_of(module), assembly.claims.of(module)
    n, k, experts = _axes(tensor, stacked=stacked, hidden=_hidden(config))
    shapes.linears.append(
        Linear(
            module,
            n,
            k,
            part.role,
            part.parallel,
            fused_name(module, part),
            bias=None,
            experts=experts,
            quantized=False,
            method=claim.method,
            format=claim.format,
            because=claim.because,
        )
    )


def _hidden(config: Mapping[str, Any]) -> int | None:
    for holder in (config.get("text_config"), config):
        size = holder.get("hidden_size") if isinstance(holder, Mapping) else None
        if type(size) is int:
            return size
    return None


def _axes(
    tensor: StoredTensor, *, stacked: bool, hidden: int | None
) -> tuple[int, int, int | None]:
    """Return N, K and the number of experts.

    Stacked experts are `[E, N, K]`, in checkpoints of Qwen3-VL-MoE `[E, K, N]`: the axis that is
    the hidden size decides, K of gate and up, N of down.
    """
    if not stacked:
        return tensor.shape[0], tensor.shape[1], None
    experts, n, k = tensor.shape
    inward = "down" not in tensor.name
    if hidden is not None and n != k and (n == hidden if inward else k == hidden):
        n, k = k, n
    return n, k, experts


def _common_dtype(container: Container) -> str:
    """Return the type of most 16-bit floats, "" without any."""
    counts: dict[str, int] = {}
    for tensor in container.tensors:
        word = _FLOATS.get(str(tensor.type.name))
        if word and len(tensor.shape) > 1:
            counts[word] = counts.get(word, 0) + 1
    return max(counts, key=lambda word: counts[word]) if counts else ""
