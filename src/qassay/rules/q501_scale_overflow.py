"""Q501."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.rules.preflight import Planned, PreflightRule, share, short
from qassay.runtimes.preflight_stats import Harm


class ScaleOverflow(PreflightRule, code="Q501", name="scale-overflow"):
    """A block's scale would be stored as infinity, or a value would become infinite.

    ## What it does
    With `--to`: works out the scale that each block of a float tensor would get (for K-quants by
    running the quantizer on the doubtful blocks) and reports blocks whose scale or minimum is
    infinite once it is stored as f16: in Q8_0 from a weight of 8,321,040 on, in Q4_0 from
    524,160. For a target without scales (F16, BF16, F8) it reports the values that overflow.

    ## Why it is bad
    Every weight of such a block becomes NaN or infinite, and with it a whole output channel.
    llama-quantize refuses the file at its very end; other converters write it.

    ## How to fix it
    Such weights are hardly ever meant: look at where the tensor comes from. If they are, take a
    type whose scales reach further, or keep the tensor in BF16.

    ## Example
    `blk.0.ffn_down.weight` to Q8_0: 1 of 4,096 blocks would get an infinite scale: its largest
    weight is 1e+07, which asks for a scale of 7.874e+04, and f16 ends at 65504
    """

    severity = Severity.ERROR
    help = "keep this tensor in BF16, or correct the weights"
    since = "0.1"

    def judge(self, plan: Planned) -> Iterator[Finding]:
        """Yield one finding for each expert."""
        stats = plan.stats
        for expert in stats.experts(Harm.OVERFLOW):
            tally = stats.harms(Harm.OVERFLOW, expert)
            extent = stats.worst(Harm.OVERFLOW, expert)
            data = {"overflowing": tally.count, "blocks": stats.units, "largest": stats.amax}
            if plan.blocks:
                message = (
                    f"to {plan.name}: {share(tally.count, stats.units, 'block')} would get a scale"
                    " that is not finite"
                )
                if extent is not None:
                    message += (
                        f"; the largest weight there is {short(extent.most)}, and f16 ends at 65504"
                    )
                    data |= extent.data
            else:
                data["values"] = data.pop("blocks") and plan.tensor.stats.units
                message = (
                    f"to {plan.name}: {share(tally.count, plan.tensor.stats.units, 'value')} would"
                    f" overflow; the largest is {short(stats.amax)}"
                )
            yield self.told(
                plan, message, expert=expert, tally=tally, data=data, help=plan.fix(extent)
            )
