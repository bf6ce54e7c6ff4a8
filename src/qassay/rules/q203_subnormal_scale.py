"""Q203."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.rules.base import TensorFacts, TensorRule


def _normal(tensor: TensorFacts, field: str | None) -> tuple[str, str]:
    """Return the least magnitude that a scale's type holds in full, and the type."""
    part = None if tensor.layer is None else tensor.layer.parts.get(field or "")
    word = "F16" if part is None else str(part.type.label)
    return ("6.1e-5" if word == "F16" else "1.18e-38"), word.lower()


class SubnormalScale(TensorRule, code="Q203", name="subnormal-scale"):
    """A block's scale lies below the normal range of f16, so it holds fewer than 11 bits.

    ## What it does
    Counts f16 scales with a magnitude below 2^-14 (6.1e-5), bf16 and f32 scales below 2^-126,
    except in the types whose scales lie
    there as a rule because small integers multiply them further (Q4_K, Q5_K, Q6_K, IQ4_XS).

    ## Why it is bad
    The smaller the scale, the coarser: at 2^-24 it is wrong by up to a half. A runtime that
    flushes subnormal numbers to zero loses the whole block. A few such blocks are normal (rows of
    tokens that were never trained); many mean that the tensor is too small for the type.

    ## How to fix it
    If the tensor matters, leave it in float, or quantize it to a type whose scale reaches lower.

    ## Example
    `token_embd.weight` field d: 211 of 9216 blocks have a subnormal scale (the smallest is 6e-8)
    """

    severity = Severity.INFO
    help = "if this tensor matters, leave it in float or use a type whose scale reaches lower"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each scale field (and expert) with such blocks."""
        for field, expert, tally in tensor.stats.offences(Offence.SUBNORMAL_SCALE):
            scales = tensor.stats.scales.get(field or "")
            least = scales.min_nonzero if scales else None
            limit, width = _normal(tensor, field)
            total = tensor.scales_of(field)
            share = tensor.share(tally.count, field)
            verb = "has" if tally.count == 1 else "have"
            yield self.finding(
                f"{share} {verb} a subnormal {tensor.scale(field)};"
                f" expected a magnitude of {limit} or more, the least that {width} holds in full"
                + (f" (the smallest in the tensor is {least:.3g})" if least is not None else ""),
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                field=field,
                tally=tally,
                data={tensor.noun: total, "subnormal": tally.count, "smallest": least},
            )
