"""Configurations of compressed-tensors (llm-compressor).

::

    {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
     "config_groups": {"group_0": {"targets": ["Linear"], "format": null,
         "weights": {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group",
                     "group_size": 128, "block_structure": null, "actorder": null},
         "input_activations": null}},
     "kv_cache_scheme": null}

A target is a module's name, `re:` and a regular expression, or a class; `Linear` is the class that
matters here. Names come before expressions, expressions before classes. Source: compressed-tensors
`quantization/quant_config.py`, `quant_args.py`, `utils/match.py` (`match_targets`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from qassay.encodings.layers.claims import LayerClaim, Reading
from qassay.encodings.layers.claims_files import Context
from qassay.encodings.layers.claims_names import Entries, in_layer, kind_of
from qassay.encodings.layers.claims_values import View

_LINEAR = frozenset({"Linear", "LinearBase", "Conv1D"})
_UNPACKED = frozenset({"dense", "fakequant"})
_FLOAT_FORMATS = {"nvfp4": (4, 16), "mxfp4": (4, 32), "mxfp8": (8, 32)}


@dataclass(frozen=True, slots=True)
class _Group:
    """One of the `config_groups`."""

    names: Entries
    expressions: Entries
    linear: bool
    claim: LayerClaim


def read(view: View, context: Context) -> Reading:
    """Return what a compressed-tensors configuration says."""
    overall = view.word("format") or ""
    base = LayerClaim(method=context.method, format=overall, source=view.source)
    groups: list[_Group] = []
    listed = view.view("config_groups")
    for name, value in () if listed is None else listed.raw.items():
        made = _group(listed, name, value, base) if listed is not None else None
        if made is not None:
            groups.append(made)
    ignore = view.words("ignore")
    left = Entries(ignore, "exact", view.notes, view.at("ignore"))
    of = _Compressed(base, groups, left, context, all_left=not _LINEAR.isdisjoint(ignore))
    default = groups[0].claim if len(groups) == 1 else base
    return Reading(default, of, kv_cache(view))


def kv_cache(view: View) -> dict[str, Any] | None:
    """Return what `kv_cache_scheme` says, its plain values only."""
    if isinstance(view.raw.get("kv_cache_scheme"), str):  # older exports of modelopt
        return _kv_word(view.word("kv_cache_scheme"))
    scheme = view.view("kv_cache_scheme")
    if scheme is None or not scheme.raw:
        return None
    values = {
        "num_bits": scheme.integer("num_bits", high=16),
        "type": scheme.word("type"),
        "strategy": scheme.word("strategy"),
        "symmetric": scheme.flag("symmetric"),
        "dynamic": scheme.flag("dynamic"),
    }
    return {key: value for key, value in values.items() if value is not None}


def _kv_word(word: str | None) -> dict[str, Any] | None:
    known = {"FP8": ("float", 8), "NVFP4": ("float", 4), "INT8": ("int", 8)}
    if not word or word.upper() == "NONE":
        return None
    kind, bits = known.get(word.upper(), (None, None))
    more = {} if kind is None else {"type": kind, "num_bits": bits}
    return {"quant_algo": word, **more}


def kv_algo(view: View) -> dict[str, Any] | None:
    """Return what `kv_cache_quant_algo` says of the KV cache (modelopt)."""
    return _kv_word(view.word("kv_cache_quant_algo"))


def _group(listed: View, name: str, value: object, base: LayerClaim) -> _Group | None:
    if isinstance(value, list):  # a scheme by its name, with the targets alone
        targets = listed.words(name)
        claim = replace(base, quantized=True, source=listed.at(name))
        return _made(targets, claim, listed, name)
    inner = listed.view(name)
    if inner is None:
        return None
    claim = weights_claim(inner, base)
    return _made(inner.words("targets"), claim, inner, "targets")


def _made(targets: list[str], claim: LayerClaim, view: View, key: str) -> _Group:
    plain = [target for target in targets if not target.startswith("re:")]
    wild = [target for target in targets if target.startswith("re:")]
    linear = not _LINEAR.isdisjoint(plain)
    at = view.at(key)
    return _Group(
        Entries(plain, "exact", view.notes, at),
        Entries(wild, "exact", view.notes, at),
        linear,
        claim,
    )


def weights_claim(group: View, base: LayerClaim) -> LayerClaim:
    """Return what one of the `config_groups` says of the weights of its targets."""
    layout = group.word("format") or base.format
    claim = replace(base, format=layout, source=group.source)
    weights = group.view("weights")
    if weights is None:
        return claim  # activations alone
    kind = (weights.word("type") or "").lower() or None
    if kind not in (None, "int", "float"):
        weights.odd("type", "'int' or 'float'")
        kind = None
    size, block = _groups(weights)
    claim = replace(
        claim,
        # Unpacked checkpoints hold plain floats whatever their groups say.
        quantized=None if layout in _UNPACKED else True,
        kind=kind,
        bits=weights.integer("num_bits", high=16),
        group_size=size,
        block=block,
        symmetric=weights.flag("symmetric"),
        act_order=_ordered(weights),
        scale_dtype=weights.word("scale_dtype"),
        activations=_activations(group),
    )
    check_float_format(weights, claim, layout)
    return claim


def _groups(weights: View) -> tuple[int | None, tuple[int, int] | None]:
    """Return group size and block; -1 a scale a row, 0 a scale a tensor."""
    size = weights.integer("group_size", also=(-1,))
    block = weights.pair("block_structure")
    strategy = (weights.word("strategy") or "").lower()
    if strategy == "tensor":
        return 0, None
    if strategy == "channel":
        return -1, None
    if strategy == "block":
        return None, block
    if strategy in ("group", "tensor_group") and size == -1:
        weights.odd("group_size", f"positive, as the strategy '{strategy}' needs it")
        return None, None
    return size, block if not strategy else None


def _ordered(weights: View) -> bool | None:
    # `weight` (alias `static`) orders columns while quantizing only; no index is stored.
    value = weights.raw.get("actorder")
    if isinstance(value, bool):
        return value
    if value is None:
        return False if "actorder" in weights.raw else None
    word = (weights.word("actorder") or "").lower()
    known = {"group": True, "dynamic": True, "weight": False, "static": False}
    return known.get(word)


def _activations(group: View) -> str | None:
    if "input_activations" not in group.raw:
        return None
    inner = group.view("input_activations")
    if inner is None:
        return "none" if group.raw["input_activations"] is None else None
    dynamic = inner.raw.get("dynamic")
    if isinstance(dynamic, str):  # "local": the scale of the tensor is stored
        return "static" if dynamic.lower() == "local" else None
    found = inner.flag("dynamic")
    return None if found is None else "dynamic" if found else "static"


def check_float_format(weights: View, claim: LayerClaim, layout: str) -> None:
    """Note where the values of an NVFP4, MXFP4 or MXFP8 layer contradict its format."""
    family = next((f for f in _FLOAT_FORMATS if layout.lower().startswith(f)), "")
    mx = family.startswith("mx") or weights.raw.get("is_mx") is True
    scale = (claim.scale_dtype or "").lower()
    if mx and scale and not any(word in scale for word in ("uint8", "e8m0")):
        weights.notes.add(
            f"{weights.at('scale_dtype')} is {scale!r}, but MX formats have E8M0 scales",
            weights.at("scale_dtype"),
            expected="torch.uint8",
            found=claim.scale_dtype,
        )
    if not family:
        return
    bits, size = _FLOAT_FORMATS[family]
    facts: tuple[tuple[str, object, str | int], ...] = (
        ("num_bits", claim.bits, bits),
        ("group_size", claim.group_size, size),
        ("type", claim.kind, "float"),
    )
    for key, stated, wanted in facts:
        if stated is not None and stated != wanted:
            weights.notes.add(
                f"{weights.at(key)} is {stated}, but {family.upper()} has {wanted}",
                weights.at(key),
                expected=wanted,
                found=stated,
            )


class _Compressed:
    """What a compressed-tensors configuration says of a module."""

    def __init__(
        self,
        base: LayerClaim,
        groups: list[_Group],
        left: Entries,
        context: Context,
        *,
        all_left: bool,
    ) -> None:
        self._base, self._groups, self._left = base, groups, left
        self._tied, self._all_left = context.tied, all_left

    def __call__(self, module: str) -> LayerClaim:
        base, kind = self._base, kind_of(module)
        linear = kind in ("linear", "head", "aside")
        source = f"{base.source}.ignore"
        seen, because = self._left.find(module)
        if seen or (linear and self._all_left):
            return replace(base, quantized=False, source=source, because=because or "Linear")
        if seen is None and linear:
            return replace(base, source=source, because=because)
        for which in ("names", "expressions"):
            for group in self._groups:
                entries: Entries = getattr(group, which)
                found, entry = entries.find(module)
                if found is None and linear:
                    return replace(base, source=group.claim.source, because=entry)
                if found and kind not in ("norm", "conv"):
                    return replace(group.claim, because=entry)
        if not linear or not self._groups:
            return base
        # Multi-token prediction layers are added to checkpoints after quantizing, as a tied head
        # is no layer; nothing is claimed of them.
        if (kind == "head" and self._tied) or (kind == "aside" and not in_layer(module)):
            return base
        for group in self._groups:
            if group.linear:
                return replace(group.claim, because="Linear") if kind != "aside" else base
        fused = re.search(r"(^|\.)experts(\.(?!\d)|$)", module)
        if fused or kind != "linear" or not in_layer(module):
            return base
        return replace(base, quantized=False, source=f"{base.source}.config_groups")
