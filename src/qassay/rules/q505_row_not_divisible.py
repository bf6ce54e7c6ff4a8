"""Q505."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.encodings.registry import by_id
from qassay.rules.base import TensorFacts, TensorRule
from qassay.runtimes.targets import Choice, gguf_name


class RowNotDivisible(TensorRule, code="Q505", name="row-not-divisible"):
    """A tensor's rows are no whole number of the target's blocks, so it becomes another type.

    ## What it does
    With `--to`: divides the length of a row (the last axis; the number of rows does not matter)
    by the target's block, and says which type llama-quantize takes instead. A fall-back to
    another type with blocks, which llama-quantize announces, is an info; a warning is a tensor
    that stays at 16 bits or that no tool quantizes.

    ## Why it is bad
    The file comes out larger than asked for, or conversion stops at this tensor. In a model whose
    hidden size is no multiple of 256 that is every tensor.

    ## How to fix it
    Ask for a type with blocks of 32 weights where 256 do not fit; pad the rows if 32 do not.

    ## Example
    `blk.0.attn_q.weight` to Q4_K: rows of 4544 weights are no whole number of 256-weight blocks
    (192 are left over); llama-quantize writes Q5_0 instead: 5.5 bits a weight, not 4.5
    """

    severity = Severity.WARNING
    help = "choose a type whose blocks divide the rows"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each type asked for that the rows do not fit."""
        words: dict[str, list[str]] = {}
        unfit: dict[str, Choice] = {}
        for choice in tensor.choices:
            grouped = choice.group is not None and _row(tensor) % choice.group.size
            if choice.fell_back or grouped:
                unfit.setdefault(choice.wanted, choice)
                words.setdefault(choice.wanted, []).append(choice.word)
        for name in sorted(unfit):
            yield self._one(tensor, unfit[name], words[name])

    def _one(self, tensor: TensorFacts, choice: Choice, words: list[str]) -> Finding:
        row = _row(tensor)
        data = {"target": choice.wanted, "asked": words, "row": row}
        if choice.group is not None:
            return self._grouped(tensor, choice, data, choice.group.size)
        wanted, instead = by_id(choice.wanted), choice.encoding
        left = row % wanted.block
        name = gguf_name(wanted)
        message = (
            f"to {name}: rows of {_weights(row)} are no whole number of {wanted.block}-weight"
            f" blocks ({left} {'is' if left == 1 else 'are'} left over)"
        )
        data |= {"block": wanted.block, "left": left, "asked_bits": wanted.bits_per_weight()}
        severity = Severity.WARNING
        if instead is not None:
            bits = instead.bits_per_weight()
            data |= {"instead": instead.id, "bits": bits}
            doing = "writes" if not choice.stops else "has no fall-back and stops, qassay writes"
            message += (
                f"; llama-quantize {doing} {gguf_name(instead)} instead: {bits:.4g} bits a weight,"
                f" not {wanted.bits_per_weight():.4g}"
            )
            if instead.kind == "block":
                severity = Severity.INFO
        return self.finding(
            message,
            path=tensor.stored.path,
            tensor=tensor.stored.name,
            field=choice.wanted,
            severity=severity,
            data=data,
            help=self._fix(row),
        )

    def _grouped(
        self, tensor: TensorFacts, choice: Choice, data: dict[str, object], size: int
    ) -> Finding:
        row = _row(tensor)
        left = row % size
        return self.finding(
            f"to {choice.wanted}: rows of {_weights(row)} are no whole number of groups of"
            f" {size} ({left} {'is' if left == 1 else 'are'} left over); the compiler stops",
            path=tensor.stored.path,
            tensor=tensor.stored.name,
            field=choice.wanted,
            data={**data, "block": size, "left": left},
            help="choose a --group-size that divides the rows",
        )

    def _fix(self, row: int) -> str:
        if row % 32 == 0:
            return "take a type with blocks of 32 weights: Q8_0, Q5_1, Q5_0, Q4_1, Q4_0, IQ4_NL"
        return "no type with blocks fits: keep this tensor in F16 or BF16, or pad its rows"


def _row(tensor: TensorFacts) -> int:
    """Return the length of a row; a scalar, which GGUF gives one axis, is a row of one."""
    return tensor.stored.shape[-1] if tensor.stored.shape else 1


def _weights(number: int) -> str:
    return "1 weight" if number == 1 else f"{number} weights"
