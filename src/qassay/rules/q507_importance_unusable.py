"""Q507."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.containers.imatrix_facts import EntryFacts, ImportanceFacts, facts_in
from qassay.core.finding import Certainty, Finding, Location, Severity
from qassay.core.text import safe
from qassay.rules.base import ModelFacts, ModelRule

_LISTED = 100


class ImportanceUnusable(ModelRule, code="Q507", name="importance-unusable"):
    """An importance file cannot be used for a weight, or says nothing about it.

    ## What it does
    Looks at every entry of an importance file (GGUF or the older format): sums that are NaN,
    infinite or negative, counts that are no counts, sums without counts, experts that never ran,
    experts whose importance is zero throughout, and (as a note) runs of 32 features without any
    importance. With a model: weights without an entry, entries for other weights, and entries of
    another length.

    ## Why it is bad
    A quantizer that takes a NaN as a weight of its search writes NaN scales, or aborts in the
    middle of a model; the weights are sound, and the importance is to blame. Without an entry a
    very low-bit type is refused, and any other is quantized without importance and without a
    word. An expert that never ran gets the importance 1.

    ## How to fix it
    Make the importance file again, for this very model, with a current llama-imatrix and more
    text. Overflow of f16 attention while collecting is the usual source of NaN: collect with the
    model in BF16 or F32. Experts that never run need more varied text.

    ## Example
    `blk.3.ffn_down.weight`: 1 of 11008 importance sums is NaN
    """

    severity = Severity.WARNING
    help = "make the importance file again for this model, with more varied text"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield what is wrong with each entry, then with the file as a whole."""
        facts = facts_in(model.container.extra)
        if facts is None:
            return
        for entry in facts.entries.values():
            yield from self._entry(entry, facts.path)
        yield from self._file(facts)

    def _entry(self, entry: EntryFacts, path: str) -> Iterator[Finding]:
        shown = f"importance of '{safe(entry.name)}'"
        at = {"path": path, "tensor": entry.name}
        if entry.broken:
            yield self.finding(f"{shown} cannot be read: {entry.broken}", **at)  # type: ignore[arg-type]
            return
        wrong = {"NaN": entry.nan, "infinite": entry.inf, "negative": entry.negative}
        kinds = ", ".join(f"{count} {word}" for word, count in wrong.items() if count)
        total = entry.matrices * entry.length
        if kinds:
            yield self.finding(
                f"{shown}: of {total} sums are {kinds}; expected finite ones, zero or more",
                field="in_sum2",
                count=sum(wrong.values()),
                locations=entry.places,
                data={
                    "sums": total,
                    "nan": entry.nan,
                    "inf": entry.inf,
                    "negative": entry.negative,
                },
                help="make the importance file again; collect with the model in BF16 or F32",
                **at,  # type: ignore[arg-type]
            )
        if entry.counts:
            yield self.finding(
                f"{shown}: {entry.counts} of {entry.matrices} counts are no counts",
                field="counts",
                count=entry.counts,
                **at,  # type: ignore[arg-type]
            )
        if entry.expected is not None:
            yield self.finding(
                f"{shown} has {total} values, and the weight needs {entry.expected}",
                count=1,
                locations=() if entry.offset is None else (Location(byte_offset=entry.offset),),
                data={"expected": entry.expected, "found": total},
                help="make an importance file for this very model",
                **at,  # type: ignore[arg-type]
            )
        yield from self._experts(entry, path)

    def _experts(self, entry: EntryFacts, path: str) -> Iterator[Finding]:
        idle, zero = entry.uncalibrated, entry.zero
        shown = f"importance of '{safe(entry.name)}'"
        if idle:
            if entry.matrices == 1:
                what = "the weight is uncalibrated: it never ran"
            else:
                what = f"expert {idle[0]} uncalibrated: it never ran"
            more = f" (the first of {len(idle)} of {entry.matrices})" if len(idle) > 1 else ""
            yield self.finding(
                f"{shown}: {what}{more}",
                path=path,
                tensor=entry.name,
                expert=idle[0] if len(idle) == 1 and entry.matrices > 1 else None,
                field="counts",
                count=len(idle),
                certainty=Certainty.LIKELY if entry.guessed else None,
                data={"experts": list(idle[:_LISTED]), "of": entry.matrices},
                help="collect importance over more varied text; an expert that never ran is"
                " quantized as if every feature mattered alike",
            )
        if zero:
            whose = "" if entry.matrices == 1 else f" of expert {zero[0]}"
            yield self.finding(
                f"{shown}{whose} is zero throughout"
                + (f" (the first of {len(zero)} experts)" if len(zero) > 1 else ""),
                path=path,
                tensor=entry.name,
                expert=zero[0] if len(zero) == 1 and entry.matrices > 1 else None,
                field="in_sum2",
                count=len(zero),
                data={"experts": list(zero[:_LISTED]), "of": entry.matrices},
            )
        if entry.zero_blocks:
            yield self.finding(
                f"{shown}: {entry.zero_blocks} runs of 32 features have no importance at all;"
                " a block there has no importance mass",
                path=path,
                tensor=entry.name,
                field="in_sum2",
                count=entry.zero_blocks,
                severity=Severity.INFO,
                data={"blocks": entry.zero_blocks},
            )

    def _file(self, facts: ImportanceFacts) -> Iterator[Finding]:
        if facts.wanting:
            yield self.finding(
                f"the importance file has no {', '.join(facts.wanting)}, and llama-quantize"
                " refuses it",
                path=facts.path,
                field=facts.wanting[0],
                help="write it with llama-imatrix",
            )
        if facts.damage:
            yield self.finding(
                f"the importance file is damaged: {facts.damage}",
                path=facts.path,
                field="file",
                help="make it again; `qassay check` on it says more",
            )
        if not facts.entries:
            yield self.finding("the importance file has no entries", path=facts.path)
        if facts.missing:
            first, count = facts.missing[0], len(facts.missing)
            more = f" and {count - 1} more weights" if count > 1 else ""
            verb = "have" if count > 1 else "has"
            yield self.finding(
                f"'{safe(first)}'{more} {verb} no importance, of {facts.weights} weights",
                path=facts.path,
                field="missing",
                count=count,
                data={"tensors": list(facts.missing[:_LISTED]), "weights": facts.weights},
            )
        if facts.foreign:
            first, count = facts.foreign[0], len(facts.foreign)
            every = " every entry, of" if count == len(facts.entries) else ""
            yield self.finding(
                f"importance for weights that the model does not have:{every} {count} of"
                f" {len(facts.entries)} entries, the first for '{safe(first)}'",
                path=facts.path,
                field="foreign",
                count=count,
                data={"tensors": list(facts.foreign[:_LISTED]), "entries": len(facts.entries)},
                help="name the importance file of this very model",
            )
