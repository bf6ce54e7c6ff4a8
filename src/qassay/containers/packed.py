"""Which tensors are parts of a weight that is quantized over several tensors.

A checkpoint of GPTQ, AWQ, compressed-tensors, bitsandbytes, MLX and the like keeps one weight in
several tensors: packed codes, scales, zero points, indexes. Read one by one they are integers
that may hold anything; so as long as no encoding puts them together again, they are marked here
and never count as checked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from qassay.core.container import StoredTensor

REASON = (
    "part of a weight that is quantized over several tensors ({members}), a form whose codes,"
    " scales and zero points this version does not judge"
)

# Parts that exist only beside a quantized weight. Sources: AutoGPTQ and GPTQModel (qweight,
# qzeros, g_idx), compressed-tensors (weight_packed, ...), HQQ (W_q), torchao (_weight_qdata).
_TELLING = frozenset(
    {"qweight", "qzeros", "qscales", "g_idx", "weight_packed", "weight_zero_point", "W_q",
     "_weight_qdata", "weight_shape"}
)  # fmt: skip
# Parts that make an integer or 8-bit tensor of the same module its codes.
_SCALES = frozenset(
    {"scales", "scale", "weight_scale", "weight_scale_inv", "weight_scale_2", "absmax", "SCB",
     "weight_global_scale", "weight_scales", "_weight_scale", "_scale", "weight_block_scale"}
)  # fmt: skip
_PAIRED = ("_blocks", "_scales")
# Fused experts: `experts.gate_up_proj` and, beside it, `experts.gate_up_proj_scale`.
_BESIDE = ("_scale", "_scale_inv", "_weight_scale", "_weight_scale_inv")
_NARROW = ("I8", "U8", "I16", "U16", "I32", "U32", "I64", "U64", "F8_E4M3", "F8_E5M2", "F4")
_NARROW_SCALES = ("F8_E8M0",)


def mark_packed(tensors: Iterable[StoredTensor]) -> list[StoredTensor]:
    """Return the tensors, those that hold codes of such a weight with `part_of` set."""
    listed = list(tensors)
    modules: dict[str, set[str]] = {}
    for tensor in listed:
        module, part = _split(tensor.name)
        modules.setdefault(module, set()).add(part)
    names = {tensor.name for tensor in listed}
    return [_marked(tensor, modules, names) for tensor in listed]


def _split(name: str) -> tuple[str, str]:
    """Return module and part: `a.weight.absmax` and `a.weight` are both parts of `a`."""
    for suffix in _PAIRED:
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    module, _, part = name.rpartition(".")
    head, dot, _ = module.partition(".weight")
    if dot:
        module = head
    return module, part


def _marked(tensor: StoredTensor, modules: dict[str, set[str]], names: set[str]) -> StoredTensor:
    if tensor.type.family != "safetensors" or tensor.type.name not in (*_NARROW, *_NARROW_SCALES):
        return tensor
    module, _ = _split(tensor.name)
    parts = modules[module]
    if not (parts & _TELLING or parts & _SCALES or set(_PAIRED) <= parts):
        beside = [suffix for suffix in _BESIDE if tensor.name + suffix in names]
        if not beside:
            return tensor
        parts = {tensor.name.rpartition(".")[2] + suffix for suffix in ("", *beside)}
    members = ", ".join(sorted(part.removeprefix("_") for part in parts)[:8])
    return replace(tensor, part_of=REASON.format(members=members))
