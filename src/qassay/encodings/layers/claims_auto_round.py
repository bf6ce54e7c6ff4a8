"""Configurations of AutoRound.

::

    {"quant_method": "auto-round", "bits": 4, "group_size": 128 | [128, 128], "sym": true,
     "data_type": "int" | "fp" | "mx_fp" | "nv_fp", "packing_format": "auto_round:auto_gptq",
     "block_name_to_quantize": "model.layers", "act_bits": 16, "act_dynamic": true,
     "extra_config": {"model.layers.0.mlp.gate": {"bits": 16}, ".*k_proj": {"bits": 8}}}

Sources: auto-round `inference/convert_model.get_layer_config` (blocks, overrides by name and by
pattern), vLLM `quantization/auto_round.py`. 16 and more bits mean: not quantized.
"""

from __future__ import annotations

from dataclasses import replace

from qassay.encodings.layers.claims import LayerClaim, Reading
from qassay.encodings.layers.claims_files import Context
from qassay.encodings.layers.claims_names import Entries, core, in_layer, kind_of
from qassay.encodings.layers.claims_values import View

_FLOAT_BITS = 16


def read(view: View, context: Context) -> Reading:
    """Return what an AutoRound configuration says."""
    layout = view.word("packing_format") or view.word("backend") or ""
    base = LayerClaim(method=context.method, format=layout, source=view.source)
    default = _facts(view, replace(base, quantized=True))
    _check(view, default)
    return Reading(default, _AutoRound(view, base, default))


def _facts(view: View, claim: LayerClaim) -> LayerClaim:
    """Return a claim with what one set of values says, where it does."""
    bits = view.integer("bits", high=32)
    data_type = view.word("data_type")
    block = view.pair("group_size") if isinstance(view.raw.get("group_size"), list) else None
    size = None if block else _size(view)
    symmetric = view.flag("sym")
    values: dict[str, object] = {}
    if data_type is not None:
        values["kind"] = "int" if data_type.startswith("int") else "float"
        values["scale_dtype"] = "e8m0" if data_type.startswith("mx") else None
    if bits is not None:
        values["bits"] = bits
        values["quantized"] = bits < _FLOAT_BITS
    if block is not None:
        values.update(block=block, group_size=None)
    elif size is not None:
        values.update(block=None, group_size=size)
    if symmetric is not None:
        values["symmetric"] = symmetric
    activations = _activations(view)
    if activations is not None:
        values["activations"] = activations
    return replace(claim, **values)  # type: ignore[arg-type]


def _size(view: View) -> int | None:
    # 0 means one scale a tensor, -1 one a row.
    if isinstance(view.raw.get("group_size"), list):
        return None
    return view.integer("group_size", also=(-1, 0))


def _activations(view: View) -> str | None:
    bits = view.integer("act_bits", high=32)
    dynamic = view.flag("act_dynamic")
    if bits is None:
        return None
    if bits >= _FLOAT_BITS:
        return "none"
    return None if dynamic is None else "dynamic" if dynamic else "static"


def _check(view: View, claim: LayerClaim) -> None:
    data_type = view.raw.get("data_type")
    wanted = 0
    if isinstance(data_type, str):
        wanted = 32 if data_type.startswith("mx") else 16 if data_type.startswith("nv_fp") else 0
    if wanted and claim.group_size is not None and claim.group_size != wanted:
        view.notes.add(
            f"data_type '{data_type}' goes with group_size {claim.group_size}",
            view.at("group_size"),
            expected=wanted,
            found=claim.group_size,
        )
    block, other = claim.block, view.pair("weight_block_size")
    if block and other and block != other:
        view.notes.add(
            f"group_size is {list(block)} and weight_block_size {list(other)}",
            view.at("weight_block_size"),
            expected=str(list(block)),
            found=list(other),
        )


class _AutoRound:
    """What an AutoRound configuration says of a module."""

    def __init__(self, view: View, base: LayerClaim, default: LayerClaim) -> None:
        self._base, self._default = base, default
        notes = view.notes
        self._key = view.first("block_name_to_quantize", "to_quant_block_names") or ""
        words = view.words(self._key) if self._key else []
        blocks = [name.strip() for word in words for name in word.split(",") if name.strip()]
        self._blocks = Entries(blocks, "tree", notes, view.at(self._key))
        self._left_key = view.first("modules_to_not_convert") or ""
        left = view.words(self._left_key) if self._left_key else []
        self._left = Entries(left, "tree", notes, view.at(self._left_key))
        self._named: dict[str, tuple[LayerClaim, str]] = {}
        self._patterns: dict[str, tuple[LayerClaim, str]] = {}
        extra = view.view("extra_config")
        for name, inner in () if extra is None else extra.views():
            claim = _facts(inner, default)
            self._named.setdefault(name, (claim, name))
            self._named.setdefault(core(name), (claim, name))
            if not name.replace(".", "").replace("_", "").isalnum():
                self._patterns.setdefault(f"re:{name}", (claim, name))
        at = view.at("extra_config")
        self._matched = Entries(self._patterns, "exact", notes, at, search=True)

    def _override(self, module: str) -> tuple[LayerClaim | None, str]:
        """Return what `extra_config` says of a module; a claim of nothing where it is not read."""
        found = self._named.get(module) or self._named.get(core(module))
        if found:
            return found
        seen, entry = self._matched.first(module)
        if seen is False:
            return None, ""
        claim, name = self._patterns[entry]
        return (claim if seen else self._base), name

    def __call__(self, module: str) -> LayerClaim:
        base = self._base
        claim, because = self._override(module)
        if claim is not None:
            source = f"{base.source}.extra_config"
            if claim.quantized is False:
                claim = replace(base, quantized=False)
            return replace(claim, source=source, because=because)
        kind = kind_of(module)
        seen, because = self._left.find(module)
        if seen or (seen is None and kind == "linear"):
            return replace(
                base,
                quantized=False if seen else None,
                source=f"{base.source}.{self._left_key}",
                because=because,
            )
        if kind not in ("linear", "head", "aside"):
            return base
        if self._blocks:
            source = f"{base.source}.{self._key}"
            seen, because = self._blocks.find(module)
            if not seen:
                return replace(base, quantized=seen, source=source, because=because or self._key)
            return self._default if kind == "linear" else base
        return self._default if kind == "linear" and in_layer(module) else base
