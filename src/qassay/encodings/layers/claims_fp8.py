"""Configurations of FP8 checkpoints (DeepSeek, Qwen, transformers) and of gpt-oss MXFP4.

::

    {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
     "activation_scheme": "dynamic", "scale_fmt": "ue8m0", "modules_to_not_convert": ["lm_head"]}
    {"quant_method": "fbgemm_fp8", "modules_to_not_convert": [...]}
    {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", ...]}

Sources: transformers `utils/quantization_config.py` (FineGrainedFP8Config, FbgemmFp8Config,
Mxfp4Config), vLLM `quantization/fp8.py`, DeepSeek-V3 `inference/fp8_cast_bf16.py`. FP8 without a
block has one scale a tensor, fbgemm one a row. MXFP4 quantizes the experts only.
"""

from __future__ import annotations

from dataclasses import replace

from qassay.encodings.layers.claims import LayerClaim, Reading
from qassay.encodings.layers.claims_files import Context
from qassay.encodings.layers.claims_names import Entries, in_layer, kind_of
from qassay.encodings.layers.claims_values import View


def read_fp8(view: View, context: Context) -> Reading:
    """Return what an `fp8` or `fbgemm_fp8` configuration says."""
    rows = context.method.strip().lower() == "fbgemm_fp8"
    block = view.pair("weight_block_size")
    scheme = "dynamic" if rows else view.word("activation_scheme")
    if scheme is not None and scheme not in ("static", "dynamic"):
        view.odd("activation_scheme", "'static' or 'dynamic'")
        scheme = None
    base = LayerClaim(method=context.method, format=view.word("fmt") or "", source=view.source)
    default = replace(
        base,
        quantized=True,
        kind="float",
        bits=8,
        block=block,
        group_size=-1 if rows else None,
        symmetric=True,
        scale_dtype=view.word("scale_fmt"),
        activations=scheme,
    )
    return Reading(default, _Listed(view, base, default, experts=False))


def read_mxfp4(view: View, context: Context) -> Reading:
    """Return what an `mxfp4` configuration says."""
    base = LayerClaim(method=context.method, source=view.source)
    default = replace(
        base,
        quantized=True,
        kind="float",
        bits=4,
        group_size=32,
        symmetric=True,
        scale_dtype="e8m0",
        activations="none",
    )
    size = view.integer("group_size")
    if size not in (None, 32):
        view.notes.add(
            f"MXFP4 goes with {view.at('group_size')} {size}",
            view.at("group_size"),
            expected=32,
            found=size,
        )
    return Reading(default, _Listed(view, base, default, experts=True))


class _Listed:
    """What a method says whose configuration only lists what is left alone."""

    def __init__(
        self,
        view: View,
        base: LayerClaim,
        default: LayerClaim,
        *,
        experts: bool,
    ) -> None:
        self._base, self._default, self._experts = base, default, experts
        self._key = view.first("modules_to_not_convert", "ignored_layers") or ""
        words = view.words(self._key) if self._key else []
        self._left = Entries(words, "tree", view.notes, view.at(self._key))

    def __call__(self, module: str) -> LayerClaim:
        kind = kind_of(module)
        seen, because = self._left.find(module)
        if seen or (seen is None and kind == "linear"):
            source = f"{self._base.source}.{self._key}"
            quantized = False if seen else None
            return replace(self._base, quantized=quantized, source=source, because=because)
        if kind != "linear" or not in_layer(module):
            return self._base
        if self._experts and "experts" not in module.split("."):
            return self._base
        return self._default
