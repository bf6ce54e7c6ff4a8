"""Q506."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.rules.preflight import Planned, PreflightRule, share, short
from qassay.runtimes.preflight_stats import Harm


class OneSidedGroup(PreflightRule, code="Q506", name="one-sided-group"):
    """A group of weights with one sign would be destroyed by a clipped zero point.

    ## What it does
    With `--to sophgo.w4bf16` (and `w8bf16`, `w4f16`, `w8f16`): finds groups whose smallest weight
    is well above zero, or whose largest is well below. TPU-MLIR divides the range of such a group
    into 15 (255) steps and clips its zero point at 0 (or 15), so that the codes cannot reach the
    weights. Targets whose quantizers extend the range to zero, or store the minimum, as those of
    ggml do, are not concerned.

    ## Why it is bad
    Weights of 0.50 to 0.69 come back as 0.08 to 0.19: 93 steps off, where half a step is usual.
    Compiling succeeds, and the device agrees with the host, so nothing tells.

    ## How to fix it
    Compile with symmetric quantization (`--q_symmetric`), or choose a group size for which every
    group holds both signs.

    ## Example
    `model.layers.0.mlp.down_proj.weight` to sophgo.w4bf16: 1 of 1,024 groups has one sign only;
    the worst, from 0.5 to 0.58, misses by 93.75 steps
    """

    severity = Severity.ERROR
    help = "compile with --q_symmetric, or take another --group-size"
    since = "0.1"

    def judge(self, plan: Planned) -> Iterator[Finding]:
        """Yield one finding for each expert."""
        stats = plan.stats
        for expert in stats.experts(Harm.ONE_SIDED):
            tally = stats.harms(Harm.ONE_SIDED, expert)
            extent = stats.worst(Harm.ONE_SIDED, expert)
            data = extent.data if extent is not None else {}
            verb = "has" if tally.count == 1 else "have"
            yield self.told(
                plan,
                f"to {plan.name}: {share(tally.count, stats.units, 'group')} {verb} weights of one"
                f" sign only; the worst, from {short(data['least'])} to {short(data['most'])},"
                f" would miss by {short(data['steps'])} steps, where half a step is usual",
                expert=expert,
                tally=tally,
                data={"groups": stats.units, "one_sided": tally.count, **data},
            )
