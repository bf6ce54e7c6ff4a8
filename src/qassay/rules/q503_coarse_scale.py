"""Q503."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.rules.preflight import Planned, PreflightRule, share, short
from qassay.runtimes.preflight import COARSE_STEPS
from qassay.runtimes.preflight_stats import Harm


class CoarseScale(PreflightRule, code="Q503", name="coarse-scale"):
    """The rounding of a block's scale would move its weights by more than a step.

    ## What it does
    With `--to`: compares the scale that a block asks for with what f16 makes of it. Below 2^-14
    f16 has fewer and fewer digits, so that a small scale is stored far off. Reported are blocks
    in which that moves a weight by more than 1.27 steps, beyond what rounding the weights does:
    in Q8_0 exactly a scale off by more than 1 %. The minimum of Q4_1 and Q5_1 is judged alike, in
    steps of a block that reaches from zero to its weights: of weights that are all equal, it is
    all that is stored. Quantizers of K-quants choose their codes for
    the stored scale; what counts is what is left of the error after that, and only where the
    block's whole error grows by half as well. So their scales, which are subnormal in healthy
    models, are not reported.

    ## Why it is bad
    All weights of the block come out too large or too small together, or clipped: an error that
    does not average out, and that can exceed the weights themselves.

    ## How to fix it
    Quantize this tensor to one of the types that the finding names, or scale it up and the layer
    behind it down.

    ## Example
    `blk.2.attn_k.weight` to Q8_0: 512 of 4,096 blocks would be off by up to 38 steps: a scale of
    3.94e-08 is stored as 5.96e-08
    """

    severity = Severity.ERROR
    help = "keep this tensor in BF16"
    since = "0.1"

    def judge(self, plan: Planned) -> Iterator[Finding]:
        """Yield one finding for each expert."""
        stats = plan.stats
        for expert in stats.experts(Harm.COARSE):
            tally = stats.harms(Harm.COARSE, expert)
            extent = stats.worst(Harm.COARSE, expert)
            if extent is None:
                continue
            found = dict(extent.data)
            what = "minimum" if found.pop("of_minimum") else "scale"
            exact = found[what] = found.pop("scale")
            yield self.told(
                plan,
                f"to {plan.name}: {share(tally.count, stats.units, 'block')} would be off by up to"
                f" {short(found['steps'])} steps beside the usual rounding; expected at most"
                f" {COARSE_STEPS} (there, a {what} of {short(exact)} is stored as"
                f" {short(found['stored'])})",
                expert=expert,
                tally=tally,
                data={"blocks": stats.units, "coarse": tally.count, **found},
                help=plan.fix(extent),
            )
