"""Q504."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.rules.preflight import Planned, PreflightRule, share
from qassay.runtimes.preflight_engines import told
from qassay.runtimes.preflight_stats import Harm


class NanWouldVanish(PreflightRule, code="Q504", name="nan-would-vanish"):
    """NaN or infinity in the source: quantizers hide it, spread it, or spoil its neighbours.

    ## What it does
    With `--to`: runs the quantizer of each program that writes the target on the first block that
    holds NaN or infinity, and says what becomes of it: it vanishes (a finite number is written in
    its place), it spreads (sound weights of the block become NaN or infinite), or it wraps (sound
    weights come out as other numbers: ggml's Q8_0 forgets the maximum of the block at a NaN).

    ## Why it is bad
    The quantized file may be perfectly valid, and no audit of it can find what was there.
    Programs differ, and so does the place in the block: the fault shows up in one conversion and
    not in the next.

    ## How to fix it
    Take the tensor from an earlier checkpoint; training or a merge diverged there.

    ## Example
    `blk.0.ffn_up.weight` to Q8_0: 1 weight in 1 of 4,096 blocks is not finite (1 NaN); ggml:
    it vanishes (as 0), and 1 sound weight comes out wrong; gguf-py: it becomes NaN, and 31 sound
    weights with it
    """

    severity = Severity.ERROR
    help = "take this tensor from a sound checkpoint; do not quantize this one"
    since = "0.1"

    def judge(self, plan: Planned) -> Iterator[Finding]:
        """Yield one finding for each expert."""
        stats = plan.stats
        for expert in stats.experts(Harm.NOT_FINITE):
            tally = stats.harms(Harm.NOT_FINITE, expert)
            extent = stats.worst(Harm.NOT_FINITE, expert)
            nan, inf = tally.parts["nan"], tally.parts["inf"]
            kinds = [f"{nan:,} NaN"] if nan else []
            kinds += [f"{inf:,} infinite"] if inf else []
            engines = extent.data["engines"] if extent is not None else {}
            noun = "weight" if tally.count == 1 else "weights"
            verb = "is" if tally.count == 1 else "are"
            message = (
                f"to {plan.name}: {tally.count:,} {noun} in"
                f" {share(tally.parts['blocks'], stats.units, 'block')} {verb} not finite"
                f" ({', '.join(kinds)})"
            )
            if engines:
                message += f"; of the first block's, {told(engines)}"
            yield self.told(
                plan,
                message,
                expert=expert,
                tally=tally,
                data={
                    "blocks": stats.units,
                    "concerned": tally.parts["blocks"],
                    "nan": nan,
                    "inf": inf,
                    "engines": engines,
                },
            )
