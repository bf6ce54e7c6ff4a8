"""Q104."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.text import safe
from qassay.rules.base import ContainerRule, ModelFacts

_OF_CODES = {
    "qzeros": ("qweight",),
    "g_idx": ("qweight",),
    "weight_scale": ("weight", "weight_packed"),
    "weight_scale_inv": ("weight",),
    "weight_scale_2": ("weight",),
    "weight_global_scale": ("weight_packed", "weight"),
    "weight_zero_point": ("weight", "weight_packed"),
    "weight_shape": ("weight_packed",),
    "weight_g_idx": ("weight", "weight_packed"),
}
"""Companions whose names belong to few families, and the codes that they go with."""
_TELLING = frozenset({"qzeros", "g_idx"})


class OrphanCompanionTensor(ContainerRule, code="Q104", name="orphan-companion-tensor"):
    """A scale, zero point or index stands beside no weight that has a use for it.

    ## What it does
    Reports companion tensors (`qzeros`, `g_idx`, `weight_scale`, `weight_zero_point`, ...) that
    the weight beside them does not take, or that have no codes beside them at all.

    ## Why it is bad
    Either the codes were lost or renamed, or two quantizations were merged into one file. A
    loader drops the tensor without a word, or stops at its name.

    ## How to fix it
    Look for the codes under another name, and convert the model again. If the weight was left
    unquantized on purpose, remove the companions.

    ## Example
    `model.layers.0.mlp.down_proj.weight_scale has no codes beside it; expected
    model.layers.0.mlp.down_proj.weight`
    """

    severity = Severity.WARNING
    help = "convert the model again, or remove the tensor if nothing needs it"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield what was found while putting weights together, then companions without codes."""
        yield from super().check(model)
        if model.assembly is None:
            return
        # Names that some floats have, too, count in a model that is quantized.
        quantized = bool(model.assembly.layers or model.assembly.claims.method)
        told = {defect.data.get("layer") for defect in model.assembly.defects}
        for module in model.assembly.modules.values():
            if module.name in told:
                continue
            for name, codes in _OF_CODES.items():
                stored = module.tensors.get(name)
                if stored is None or any(code in module.tensors for code in codes):
                    continue
                if not quantized and name not in _TELLING:
                    continue
                yield self.finding(
                    f"'{safe(stored.name)}' has no codes beside it; expected"
                    f" {' or '.join(f'{safe(module.name)}.{code}' for code in codes)}",
                    path=stored.path,
                    tensor=stored.name,
                    data={"layer": module.name, "part": name},
                )
