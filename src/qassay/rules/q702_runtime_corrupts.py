"""Q702."""

from __future__ import annotations

from qassay.core.finding import Severity
from qassay.rules.fitting import FitRule


class RuntimeCorrupts(FitRule, code="Q702", name="runtime-corrupts"):
    """A runtime takes these layers and computes with other weights, without a word.

    ## What it does
    With `--on`: looks for what the runtime is known to read wrongly: a convention of zero points
    that it does not look at, an index of groups that it never reads, groups that it counts over
    the end of a row.

    ## Why it is bad
    Nothing fails. The model answers, and what it says is noise.

    ## How to fix it
    Store the same weights in the form that the runtime reads, as the "Fix:" line says, or take
    another version of it.

    ## Example
    4 Linears (self_attn.q_proj, mlp.down_proj): columns are assigned to groups by an index
    (act-order), and llm_convert never reads g_idx; weights get the scales of other groups, without
    a word
    """

    severity = Severity.ERROR
    help = "quantize without what this runtime reads wrongly"
    since = "0.1"
