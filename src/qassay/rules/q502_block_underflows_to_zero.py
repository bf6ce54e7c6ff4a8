"""Q502."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Tally
from qassay.rules.preflight import Planned, PreflightRule, share, short
from qassay.runtimes.preflight_stats import Extent, Harm


class BlockUnderflowsToZero(PreflightRule, code="Q502", name="block-underflows-to-zero"):
    """A block of weights would come out as zeros.

    ## What it does
    With `--to`: finds blocks whose stored scale would round to zero although they hold weights
    (in Q8_0 up to a largest weight of 3.78e-6, in Q4_0 up to 2.38e-7, in Q6_K up to about 1e-4),
    rows of which nothing would be left, and blocks in which one outlier takes the whole range, so
    that the other weights come out as nothing. A lost row or tensor is an error, a lost block a
    warning, and an info where its largest weight is less than 2^-30 of the tensor's.

    ## Why it is bad
    The weights are gone without a trace: the file is valid, nothing is NaN, and the channel that
    they fed is silent. The limit depends on the type: Q6_K and IQ4_XS fail first, not last.

    ## How to fix it
    Quantize this tensor to one of the types that the finding names, or scale it up and the layer
    behind it down. An outlier that flattens its block is mostly a fault of training or merging.

    ## Example
    `blk.2.attn_k.weight` to Q6_K: all 2,048 blocks with weights would become zero (largest
    weight 4.9e-05)
    """

    severity = Severity.ERROR
    help = "keep this tensor in BF16"
    since = "0.1"

    def judge(self, plan: Planned) -> Iterator[Finding]:
        """Yield one finding for each expert."""
        stats = plan.stats
        for expert in stats.experts(Harm.LOST_ROW, Harm.LOST_BLOCK, Harm.FLATTENED):
            yield self._expert(plan, expert)

    def _expert(self, plan: Planned, expert: int | None) -> Finding:
        stats = plan.stats
        kinds = (Harm.LOST_ROW, Harm.LOST_BLOCK, Harm.FLATTENED)
        every = {kind: stats.harms(kind, expert) for kind in kinds}
        grave = {kind: stats.harms(kind, expert, least=stats.matters()) for kind in kinds}
        extents = {kind: stats.worst(kind, expert) for kind in kinds}
        rows, blocks, flat = (every[kind].count for kind in kinds)
        live = stats.live.get(expert, 0)
        gone = bool(live) and blocks == live
        severity = Severity.INFO
        if any(tally.count for tally in grave.values()):
            severity = Severity.WARNING
        if grave[Harm.LOST_ROW].count or gone:
            severity = Severity.ERROR
        extent = extents[Harm.LOST_BLOCK] or extents[Harm.LOST_ROW] or extents[Harm.FLATTENED]
        shown = next(
            tally
            for found in (grave, every)
            for tally in (found[Harm.LOST_BLOCK], found[Harm.LOST_ROW], found[Harm.FLATTENED])
            if tally.count
        )
        data = {
            "blocks": stats.units,
            "live": live,
            "lost": blocks,
            "lost_rows": rows,
            "flattened": flat,
            "largest": stats.amax,
            "largest_lost": extent.most if extent else 0.0,
        }
        outlier = extents[Harm.FLATTENED]
        if outlier is not None:
            data |= outlier.data
        return self.told(
            plan,
            f"to {plan.name}: {self._said(plan, expert, every, extents, gone=gone)}",
            expert=expert,
            severity=severity,
            count=blocks or rows or flat,
            locations=shown.locations,
            data=data,
            help=self._fix(plan, extent, outlier=not blocks and not rows),
        )

    def _said(
        self,
        plan: Planned,
        expert: int | None,
        every: dict[Harm, Tally],
        extents: dict[Harm, Extent | None],
        *,
        gone: bool,
    ) -> str:
        stats = plan.stats
        rows, blocks, flat = (
            every[kind].count for kind in (Harm.LOST_ROW, Harm.LOST_BLOCK, Harm.FLATTENED)
        )
        said = []
        lost = extents[Harm.LOST_BLOCK] or extents[Harm.LOST_ROW]
        live = stats.live.get(expert, 0)
        if gone:
            noun = "the only block" if live == 1 else f"all {live:,} blocks"
            said.append(f"{noun} with weights would become zero")
        elif blocks:
            said.append(f"{share(blocks, live, 'block')} with weights would become zero")
        if rows and not gone:
            said.append(f"{rows:,} {'row' if rows == 1 else 'rows'} would be nothing but zeros")
        if lost is not None:
            said[-1] += f" (the largest weight lost is {short(lost.most)})"
        outlier = extents[Harm.FLATTENED]
        if flat and outlier is not None:
            noun = "block is" if flat == 1 else "blocks are"
            said.append(
                f"{flat:,} {noun} flattened by an outlier: beside"
                f" {short(outlier.data['outlier'])}, {outlier.data['gone']:.0f} weights of up to"
                f" {short(outlier.data['rest'])} come out no better than zero"
            )
        return "; ".join(said)

    @staticmethod
    def _fix(plan: Planned, extent: Extent | None, *, outlier: bool) -> str:
        if outlier:
            return "look at where the outlier comes from; no type with blocks holds both sizes"
        return plan.fix(extent)
