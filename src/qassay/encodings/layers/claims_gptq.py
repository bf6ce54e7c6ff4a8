r"""Configurations of GPTQ and AWQ.

::

    {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": true, "desc_act": false,
     "checkpoint_format": "gptq" | "gptq_v2", "lm_head": false,
     "dynamic": {"-:.*mlp\\.gate.*": {}, "+:.*\\.18\\..*": {"bits": 8}},
     "modules_in_block_to_quantize": [["self_attn.q_proj"], ...]}
    {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": true, "version": "gemm",
     "modules_to_not_convert": ["visual"]}

Sources: AutoGPTQ and GPTQModel `QuantizeConfig`, AutoAWQ `AwqConfig`; `dynamic` as in vLLM
`gptq_utils.get_dynamic_override`: rules are tried in order, the first that matches from the
beginning of the name counts, `-:` leaves a module alone, `+:` or nothing gives other values.
Both methods quantize the linear layers of the numbered decoder layers, and the head if told so.
"""

from __future__ import annotations

from dataclasses import replace

from qassay.core.text import safe
from qassay.encodings.layers.claims import LayerClaim, Reading
from qassay.encodings.layers.claims_files import Context
from qassay.encodings.layers.claims_names import Entries, in_layer, kind_of
from qassay.encodings.layers.claims_values import View


def integer_facts(view: View, claim: LayerClaim) -> LayerClaim:
    """Return a claim with what `bits`, `group_size`, `sym` and `desc_act` say, where they do."""
    bits = view.integer("w_bit", "bits", high=8)
    size = view.integer("q_group_size", "group_size", also=(-1,))
    symmetric = view.flag("sym")
    ordered = view.flag("desc_act")
    return replace(
        claim,
        bits=claim.bits if bits is None else bits,
        group_size=claim.group_size if size is None else size,
        symmetric=claim.symmetric if symmetric is None else symmetric,
        act_order=claim.act_order if ordered is None else ordered,
    )


def read_gptq(view: View, context: Context) -> Reading:
    """Return what a GPTQ configuration says."""
    layout, other = view.word("checkpoint_format"), view.word("format")
    if layout and other and layout != other:
        view.notes.add(
            f"checkpoint_format is '{safe(layout, 40)}' and format is '{safe(other, 40)}'",
            view.at("checkpoint_format"),
            expected="one packing",
            found=other,
        )
    layout = layout or other or ("marlin" if view.flag("is_marlin_format") else "")
    view.word("pack_dtype")
    base = LayerClaim(method=context.method, format=layout, source=view.source)
    default = integer_facts(view, replace(base, kind="int", quantized=True))
    return Reading(default, _Gptq(view, base, default))


def _bare(base: LayerClaim, quantized: bool | None, source: str, because: str = "") -> LayerClaim:
    return replace(base, quantized=quantized, source=source, because=because)


class _Gptq:
    """What a GPTQ configuration says of a module."""

    def __init__(self, view: View, base: LayerClaim, default: LayerClaim) -> None:
        self._view, self._base, self._default = view, base, default
        self._head = view.flag("lm_head")
        self._rules: dict[str, tuple[LayerClaim | None, str]] = {}
        dynamic = view.view("dynamic")
        for rule, inner in () if dynamic is None else dynamic.views():
            pattern = rule[2:] if rule[:2] in ("+:", "-:") else rule
            change = None if rule.startswith("-:") else integer_facts(inner, default)
            self._rules.setdefault(f"re:{pattern}", (change, rule))
        self._matched = Entries(self._rules, "exact", view.notes, view.at("dynamic"))
        self._listed = view.first("modules_in_block_to_quantize")
        self._inside = self._entries("modules_in_block_to_quantize")
        self._left_key = view.first("modules_to_not_convert", "ignored_layers") or ""
        self._left = self._entries(self._left_key)

    def _entries(self, key: str) -> Entries:
        view = self._view
        words = view.words(key) if key else ()
        return Entries(words, "tree", view.notes, view.at(key))

    def __call__(self, module: str) -> LayerClaim:
        kind = kind_of(module)
        named = self._base.source
        seen, entry = self._matched.first(module)
        if seen is not False:
            change, rule = self._rules[entry]
            left = seen is None or change is None
            if left or kind not in ("norm", "embedding", "conv"):
                if left or change is None:
                    return _bare(self._base, False if seen else None, f"{named}.dynamic", rule)
                head = kind == "head" and not self._head
                quantized = None if head or not in_layer(module) else True
                return replace(change, source=f"{named}.dynamic", because=rule, quantized=quantized)
        seen, because = self._left.find(module)
        if seen or (seen is None and kind == "linear"):
            return _bare(self._base, False if seen else None, f"{named}.{self._left_key}", because)
        if kind == "head":
            if self._head:
                return replace(self._default, source=f"{named}.lm_head", because="lm_head")
            because = "" if self._head is None else "lm_head"
            return _bare(self._base, self._head, f"{named}.lm_head", because)
        if kind != "linear" or not in_layer(module):
            return self._base
        if self._listed and self._inside:
            key = f"{named}.modules_in_block_to_quantize"
            seen, because = self._inside.find(module)
            if not seen:
                return _bare(self._base, seen, key, because or "modules_in_block_to_quantize")
            return replace(self._default, source=key, because=because)
        return self._default


def read_awq(view: View, context: Context) -> Reading:
    """Return what an AWQ configuration says."""
    layout = (view.word("version") or view.word("format") or "").lower()
    base = LayerClaim(method=context.method, format=layout, source=view.source)
    default = integer_facts(view, replace(base, kind="int", quantized=True))
    zero_point = view.flag("zero_point")
    if zero_point is not None:
        if default.symmetric is zero_point:
            view.notes.add(
                f"sym and zero_point are both {str(zero_point).lower()}",
                view.at("zero_point"),
                expected="one the opposite of the other",
                found=zero_point,
            )
        default = replace(default, symmetric=not zero_point)
    key = view.first("modules_to_not_convert", "ignored_layers") or ""
    words = view.words(key) if key else []
    left = Entries(words, "part", view.notes, view.at(key))

    def of(module: str) -> LayerClaim:
        kind = kind_of(module)
        seen, because = left.find(module)
        if seen or (seen is None and kind == "linear"):
            return _bare(base, False if seen else None, f"{base.source}.{key}", because)
        return default if kind == "linear" and in_layer(module) else base

    return Reading(default, of)
