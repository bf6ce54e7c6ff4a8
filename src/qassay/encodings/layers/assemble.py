"""From the tensors of a container to the weights that they make up.

Nothing here reads a tensor's bytes: names, dtypes, shapes and the configuration decide. Where two
families fit, or none, that is said (Q105, not checked) and nothing is decoded.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from qassay.core.container import Container, Defect, StoredTensor
from qassay.core.text import safe
from qassay.encodings.layers.base import Fit, Layer, Module
from qassay.encodings.layers.claims import Claims, LayerClaim, claims_of
from qassay.encodings.registry import all_layers

_PAIRED = ("_blocks", "_scales", "_bias")
_PLAIN_PARTS = frozenset({"weight", "bias"})
_NARROW = frozenset({"F8_E4M3", "F8_E5M2", "I8", "U8"})
_PACKED = frozenset({"I8", "U8", "I16", "U16", "I32", "U32"})
_SCALING = re.compile("scale|scb|zero|min|max|quant|shape|norm|global|table", re.IGNORECASE)
_TABLES = frozenset({"bias", "mask", "attn_mask", "causal_mask", "position_ids", "token_type_ids",
                     "relative_position_index"})  # fmt: skip
_FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E8M0"})


@dataclass(slots=True)
class Assembly:
    """What the tensors of a container make up.

    Attributes:
        layers: In file order of the tensors that hold their codes.
        loose: Every other tensor; `part_of` says why one cannot be judged by itself.
        defects: What is wrong with parts (Q103 to Q105).
        claims: What the configuration says.
        modules: Every module by name.
    """

    layers: list[Layer] = field(default_factory=list)
    loose: list[StoredTensor] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    claims: Claims = field(default_factory=Claims)
    modules: Mapping[str, Module] = field(default_factory=dict)


@cache
def load_families() -> None:
    """Import every module of this folder, so that its families register."""
    package = importlib.import_module("qassay.encodings.layers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def split_name(name: str) -> tuple[str, str]:
    """Return module and part of a tensor's name; `x.gate_proj_blocks` is `_blocks` of its own."""
    for suffix in _PAIRED:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    module, _, part = name.rpartition(".")
    return module, part


def modules_of(tensors: Iterable[StoredTensor]) -> dict[str, Module]:
    """Return the tensors by module and part; of names that repeat, the first counts."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for tensor in tensors:
        module, part = split_name(tensor.name)
        found.setdefault(module, {}).setdefault(part, tensor)
    return {name: Module(name, parts) for name, parts in found.items()}


def assemble(container: Container) -> Assembly:
    """Return the layers of a container. The result is kept: a second call costs nothing."""
    known = container.extra.get("assembly")
    if not isinstance(known, Assembly):
        known = container.extra["assembly"] = _assemble(container)
    return known


def _assemble(container: Container) -> Assembly:
    claims = claims_of(container)
    tensors = [t for t in container.tensors if t.type.family == "safetensors"]
    result = Assembly(claims=claims, modules=modules_of(tensors), defects=list(claims.defects))
    if not tensors:
        result.loose = list(container.tensors)
        return result
    load_families()
    families = all_layers()
    names = {part.name for family in families for part in family.parts}
    taken: set[int] = set()
    reasons: dict[int, str] = {}
    for module in result.modules.values():
        if not _is_candidate(module, names):
            continue
        claim = claims.of(module.name)
        fits = [fit for family in families if (fit := family.fit(module, claim)) is not None]
        if not fits and _is_cast(module, names):
            continue
        chosen, reason = _choose(module, fits, claim, result.defects)
        if chosen is None:
            reasons.update({id(t): reason for t in module.tensors.values() if _part(t) in names})
            continue
        result.defects += chosen.defects
        if chosen.layer is None:
            why = "; ".join(defect.message for defect in chosen.defects) or chosen.reason or reason
            reasons.update({id(t): why for t in module.tensors.values() if _part(t) in names})
            continue
        result.layers.append(chosen.layer)
        taken.update(id(part) for part in chosen.layer.parts.values())
        result.defects += _orphans(module, chosen.layer, names)
    for tensor in container.tensors:
        if id(tensor) not in taken:
            why = reasons.get(id(tensor), tensor.part_of) or _unexplained(tensor, result)
            result.loose.append(replace(tensor, part_of=why) if why != tensor.part_of else tensor)
    order = {id(tensor): at for at, tensor in enumerate(container.tensors)}
    result.layers.sort(key=lambda layer: order[id(layer.codes)])
    return result


def _is_cast(module: Module, names: set[str]) -> bool:
    """Tell whether 8 bits a weight are a plain cast: nothing beside them may be a scale."""
    beside = module.tensors.keys() - _PLAIN_PARTS
    weight = module.tensors.get("weight")
    floats = weight is not None and str(weight.type.label).startswith("F8_")
    return not beside or (
        floats and not any(part in names or _SCALING.search(part) for part in beside)
    )


def may_be_codes(tensor: StoredTensor) -> bool:
    """Tell whether a tensor is a matrix of small integers, and none that models have as such."""
    named = tensor.name.rpartition(".")[2] not in _TABLES
    return tensor.type.label in _PACKED and len(tensor.shape) >= 2 and named and tensor.size > 1


def _unexplained(tensor: StoredTensor, assembly: Assembly) -> str:
    """Return why integers of no known family cannot be judged by themselves, "" if they can.

    A matrix of small integers is the codes of a weight, as far as anyone knows, if the
    configuration says that the model is quantized, or floats stand beside it that may scale it.
    """
    if not may_be_codes(tensor):
        return ""
    method = assembly.claims.method
    if method:
        return (
            f"integers that may be the codes of a weight: the configuration says '{safe(method)}',"
            " and no family that is read fits them"
        )
    module, part = split_name(tensor.name)
    beside = sorted(
        name
        for name, other in assembly.modules[module].tensors.items()
        if name not in (part, "bias") and other.type.label in _FLOATS and other.size > 1
    )
    if not module or not beside:
        return ""
    return (
        f"integers that may be the codes of a weight, with floats beside them"
        f" ({', '.join(map(safe, beside[:8]))}), a form not read"
    )


def _part(tensor: StoredTensor) -> str:
    return split_name(tensor.name)[1]


def _is_candidate(module: Module, names: set[str]) -> bool:
    """Tell quickly whether anything in a module hints at a weight in several tensors."""
    if any(part in names and part not in _PLAIN_PARTS for part in module.tensors):
        return True
    weight = module.tensors.get("weight")
    return weight is not None and weight.type.label in _NARROW


def _choose(
    module: Module, fits: list[Fit], claim: LayerClaim, defects: list[Defect]
) -> tuple[Fit | None, str]:
    """Return the one family that fits, or None and why there is none."""
    whole = [fit for fit in fits if fit.layer is not None and not fit.defects]
    claimed = [fit for fit in whole if fit.encoding.claimed(claim)]
    if len(whole) > 1 and len(claimed) == 1:
        whole = claimed
    if len(whole) == 1:
        return whole[0], ""
    if whole:
        names = ", ".join(fit.encoding.id for fit in whole)
        first = next(iter(module.tensors.values()))
        reason = f"its tensors can be read as {names}, and the configuration does not decide"
        defects.append(
            Defect(
                code="Q105",
                message=f"the tensors of {module.name} fit several encodings: {names}",
                path=first.path,
                tensor=first.name,
                data={"layer": module.name, "encodings": [fit.encoding.id for fit in whole]},
            )
        )
        return None, reason
    broken = sorted(fits, key=lambda fit: (fit.encoding.claimed(claim), fit.score), reverse=True)
    if broken:
        return broken[0], ""
    members = ", ".join(sorted(module.tensors)[:8])
    return None, f"part of a weight that is kept in several tensors ({members}), a form not read"


def _orphans(module: Module, layer: Layer, names: set[str]) -> list[Defect]:
    """Return a defect for each companion that the layer has no use for."""
    return [
        Defect(
            code="Q104",
            message=f"{tensor.name} stands beside a weight of {layer.label}, which has no use"
            " for it",
            path=tensor.path,
            tensor=tensor.name,
            data={"layer": module.name, "encoding": layer.encoding.id},
        )
        for part, tensor in module.tensors.items()
        if part in names and part not in layer.parts and part not in _PLAIN_PARTS
    ]
