"""Q303."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.core.stats import Offence
from qassay.encodings.base import BlockEncoding, Encoding
from qassay.rules.base import TensorFacts, TensorRule, share_of


class CodeOutOfRange(TensorRule, code="Q303", name="code-out-of-range"):
    """A stored integer is one that no writer produces from finite weights.

    ## What it does
    Counts blocks with a code that the type's quantizers never write, and bytes above 1 in boolean
    tensors. In weights of 8-bit floats with scales in another tensor, counts codes that are NaN
    or infinite, an error. Q8_0's -128 is graded info: it decodes to a number like any other, only
    the reference quantizer stops at -127.

    ## Why it is bad
    The code was not made from a finite weight. In Q8_0, -128 is the fingerprint of the AVX2
    quantizer meeting a NaN or an infinity: the weight is garbage, and the scale beside it hides
    that. A boolean above 1 is true to some readers and undefined to others.

    ## How to fix it
    Check the source for NaN and infinity at this place, and quantize the tensor again.

    ## Example
    `blk.7.attn_k.weight` row 40 block 1300 field qs: 1 block holds a code that no quantizer writes
    (the first is -128)
    """

    severity = Severity.WARNING
    help = "check the source for NaN and infinity at this place, and write the tensor again"
    since = "0.1"

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each field (and expert) with such codes."""
        if tensor.layer is not None:
            yield from self._floats(tensor)
            return
        blocks = issubclass(tensor.encoding, BlockEncoding)
        noun = "blocks" if blocks else "values"
        for field, expert, tally in tensor.stats.offences(Offence.FORBIDDEN_CODE):
            first = tally.locations[0].value
            reason, spare = _judge(tensor.encoding, field, first)
            what = f"{noun} hold" if tally.count > 1 else f"{noun[:-1]} holds"
            yield self.finding(
                f"{tally.count:,} {what} a code that no writer produces from finite weights"
                f" (the first is {first});"
                f" expected {'one that a writer produces' if blocks else '0 or 1'}{reason}",
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                field=field,
                tally=tally,
                severity=Severity.INFO if spare else None,
                data={noun: tensor.stats.units, "out_of_range": tally.count},
            )

    def _floats(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield one finding for each expert whose 8-bit floats are not all numbers."""
        for field, expert, tally in tensor.stats.offences(Offence.FORBIDDEN_CODE):
            first = tally.locations[0].value
            shown = f"{first:#04x}" if isinstance(first, int) else first
            share = share_of(tally.count, tensor.weights, "codes")
            verb = "is" if tally.count == 1 else "are"
            yield self.finding(
                f"{share} {verb} NaN or infinite (the first is {shown}); expected finite numbers",
                path=tensor.stored.path,
                tensor=tensor.stored.name,
                expert=expert,
                field=field,
                tally=tally,
                severity=Severity.ERROR,
                data={"codes": tensor.weights, "not_finite": tally.count},
            )


def _judge(encoding: type[Encoding], field: str | None, code: object) -> tuple[str, bool]:
    """Return what a code tells, and whether it is only the spare end of two's complement."""
    if not issubclass(encoding, BlockEncoding) or field is None or not isinstance(code, int):
        return "", False
    for stored in encoding.bits_fields.values():
        run = stored.runs.get(field)
        if run is not None:
            reason = stored.forbidden.get(code)
            spare = run.signed and code == -(1 << (run.width - 1))
            return f" ({reason})" if reason else "", spare
    return "", False
