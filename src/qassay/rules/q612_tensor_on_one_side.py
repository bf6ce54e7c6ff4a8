"""Q612."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qassay.core.finding import Finding, Severity
from qassay.rules.base import ComparisonRule

if TYPE_CHECKING:
    from qassay.comparison.facts import Comparison


class TensorOnOneSide(ComparisonRule, code="Q612", name="tensor-on-one-side"):
    """One model has a tensor that the other lacks.

    ## What it does
    `qassay compare` matches tensors by name, GGUF names with Hugging Face names by a table, and
    reports each that has no partner. Tables that follow from the configuration (`rope_freqs`,
    `inv_freq`) are left out of it. `qassay diagnose` reports tensors of a reference dump that the
    device's dump lacks, unless `--mlir` shows that the compiler fused them.

    ## Why it is bad
    What has no partner was not compared. A missing weight is left at its initial value by some
    loaders, and a weight too many is often ignored without a word.

    ## How to fix it
    Find the tensor in the conversion's log. If it only has another name, rename it and compare
    again.

    ## Example
    `model.layers.0.self_attn.q_proj.bias` is in the first model only
    """

    severity = Severity.ERROR
    help = "find out where the tensor was lost or renamed, and compare again"
    since = "0.1"

    def check(self, comparison: Comparison) -> Iterator[Finding]:
        """Yield one finding for each tensor without a partner."""
        for alone in comparison.alone:
            side = "first" if alone.side == 0 else "second"
            yield self.finding(
                f"is in the {side} model only ({alone.encoding})",
                path=alone.path,
                tensor=alone.name,
                data={"side": side, "encoding": alone.encoding},
            )
