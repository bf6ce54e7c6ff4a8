"""Configurations of NVIDIA modelopt, in both of their forms.

::

    hf_quant_config.json: {"producer": {...}, "quantization": {"quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head", "mtp*"]}}
    config.json: {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "float", ...}}},
        "kv_cache_scheme": {"type": "float", "num_bits": 8}}
    "MIXED_PRECISION" with "quantized_layers": {"model.layers.0.mlp.experts":
        {"quant_algo": "NVFP4", "group_size": 16}}

Sources: modelopt `export/quant_utils.py` and `export/convert_hf_config.py`, vLLM
`quantization/modelopt.py` (wildcards, older files with plain parts of names).
"""

from __future__ import annotations

from dataclasses import replace

from qassay.encodings.layers.claims import LayerClaim, Reading
from qassay.encodings.layers.claims_compressed import (
    check_float_format,
    kv_algo,
    kv_cache,
    weights_claim,
)
from qassay.encodings.layers.claims_files import Context
from qassay.encodings.layers.claims_names import Entries, in_layer, kind_of
from qassay.encodings.layers.claims_values import View

# What an algorithm means: kind, bits, group size, activations.
_ALGOS: dict[str, tuple[str, int, int | None, str]] = {
    "FP8": ("float", 8, 0, "static"),
    "FP8_PER_CHANNEL_PER_TOKEN": ("float", 8, -1, "dynamic"),
    "FP8_PB_WO": ("float", 8, None, "none"),
    "FP8_PB_REAL": ("float", 8, None, "dynamic"),
    "NVFP4": ("float", 4, 16, "static"),
    "NVFP4_AWQ": ("float", 4, 16, "static"),
    "NVFP4_SVDQUANT": ("float", 4, 16, "static"),
    "W4A16_NVFP4": ("float", 4, 16, "none"),
    "W4A8_NVFP4_FP8": ("float", 4, None, "static"),
    "W4A8_MXFP4_FP8": ("float", 4, 32, "static"),
    "MXFP4": ("float", 4, 32, "dynamic"),
    "MXFP8": ("float", 8, 32, "dynamic"),
    "W4A16_AWQ": ("int", 4, None, "none"),
    "W4A8_AWQ": ("int", 4, None, "static"),
    "W8A16": ("int", 8, -1, "none"),
    "W8A8_SQ_PER_CHANNEL": ("int", 8, -1, "static"),
}
_E4M3 = frozenset({"NVFP4", "NVFP4_AWQ", "NVFP4_SVDQUANT", "W4A16_NVFP4", "W4A8_NVFP4_FP8"})
_MIXED = "MIXED_PRECISION"


def read(view: View, context: Context) -> Reading:
    """Return what a modelopt configuration says."""
    algo = view.word("quant_algo") or ""
    base = LayerClaim(method=context.method, format=algo, source=view.source)
    default = _algo_claim(view, replace(base, quantized=True), algo)
    groups = view.view("config_groups")
    inner = [group for _, group in groups.views()] if groups is not None else []
    if len(inner) == 1 and algo.upper() != _MIXED:
        default = _with_group(view, default, inner[0])
    of = _Modelopt(view, base, default)
    return Reading(default, of, kv_algo(view) or kv_cache(view))


def _algo_claim(view: View, claim: LayerClaim, algo: str) -> LayerClaim:
    """Return what an algorithm's name says of a layer; of an unknown one, only that it is used."""
    known = _ALGOS.get(algo.upper())
    claim = replace(claim, format=algo)
    size = view.integer("group_size", "block_size", also=(-1, 0))
    if known is None:
        return replace(claim, group_size=size or None)
    kind, bits, fixed, activations = known
    if fixed is not None and size not in (None, fixed) and fixed > 0:
        view.notes.add(
            f"{view.at('group_size')} is {size}, but {algo} has {fixed}",
            view.at("group_size"),
            expected=fixed,
            found=size,
        )
    # modelopt writes group_size 0 or leaves it out where an algorithm has no groups.
    stated = size if size and (fixed is None or fixed > 0) else fixed
    blocks = algo.upper().startswith("FP8_PB")
    return replace(
        claim,
        kind=kind,
        bits=bits,
        group_size=None if blocks else stated,
        block=(128, 128) if blocks else None,
        symmetric=True,
        scale_dtype="float8_e4m3fn" if algo.upper() in _E4M3 else None,
        activations=activations,
    )


def _with_group(view: View, claim: LayerClaim, group: View) -> LayerClaim:
    """Compare an algorithm with the one group of weights that stands beside it, or take that."""
    stated = weights_claim(group, replace(claim, format=""))
    known = claim.bits is not None
    for key, one, two in (("num_bits", claim.bits, stated.bits), ("type", claim.kind, stated.kind)):
        if known and two is not None and one != two:
            view.notes.add(
                f"quant_algo is {claim.format}, but weights.{key} is {two}",
                group.at("weights"),
                expected=one,
                found=two,
            )
    weights = group.view("weights")
    if weights is not None:
        layout = claim.format.upper().removeprefix("W4A16_").lower()
        check_float_format(weights, replace(stated, bits=None, kind=None), layout)
    if not known:
        return replace(stated, format=claim.format, source=claim.source, quantized=True)
    size = claim.group_size if claim.group_size is not None else stated.group_size
    return replace(claim, group_size=size, block=claim.block or stated.block)


class _Modelopt:
    """What a modelopt configuration says of a module."""

    def __init__(self, view: View, base: LayerClaim, default: LayerClaim) -> None:
        self._base, self._default = base, default
        self._key = view.first("exclude_modules", "ignore") or ""
        words = view.words(self._key) if self._key else []
        notes = view.notes
        self._left = Entries(words, "glob", notes, view.at(self._key))
        self._layers: dict[str, LayerClaim] = {}
        layers = view.view("quantized_layers")
        for name, inner in () if layers is None else layers.views():
            algo = inner.word("quant_algo") or ""
            own = replace(base, quantized=True, source=view.at("quantized_layers"))
            self._layers[name] = _algo_claim(inner, own, algo)
        at = view.at("quantized_layers")
        self._listed = Entries(self._layers, "tree", notes, at)
        self._mixed = layers is not None or base.format.upper() == _MIXED

    def __call__(self, module: str) -> LayerClaim:
        base, kind = self._base, kind_of(module)
        seen, because = self._left.find(module)
        if seen or (seen is None and kind == "linear"):
            quantized = False if seen else None
            source = f"{base.source}.{self._key}" if base.source else self._key
            return replace(base, quantized=quantized, source=source, because=because)
        found, entry = self._listed.find(module)
        if found and kind not in ("norm", "conv"):
            return replace(self._layers[entry], because=entry)
        if kind != "linear" or not in_layer(module) or not base.format:
            return base
        if self._mixed:
            listed = bool(self._layers) and found is False
            source = f"{base.source}.quantized_layers"
            return replace(base, quantized=False if listed else None, source=source)
        return self._default
