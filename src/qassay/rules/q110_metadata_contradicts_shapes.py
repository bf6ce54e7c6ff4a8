"""Q110."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from qassay.core.finding import Finding, Location, Severity
from qassay.core.text import safe
from qassay.rules import claims_config, claims_gguf
from qassay.rules.base import ContainerRule, ModelFacts
from qassay.rules.claims import Contradiction

_LISTED = 100


class MetadataContradictsShapes(ContainerRule, code="Q110", name="metadata-contradicts-shapes"):
    """The metadata states a size that the tensors do not have.

    ## What it does
    Compares what is stated with the shapes, where both exist: in GGUF the number of tokens (or
    `vocab_size`), `embedding_length`, `block_count`, `feed_forward_length`, `expert_count`,
    `expert_feed_forward_length`, the head counts and the number of axes, and the weights of a
    block with each other and with those of other blocks, and the shape that ComfyUI's converter
    noted before it flattened a tensor; in a checkpoint folder `vocab_size`,
    `hidden_size`, `intermediate_size` and `num_hidden_layers` of `config.json`, for float tensors
    of well-known families; and the index of a sharded checkpoint with the shards. Tensors that
    fail for one reason are one finding, which names the first; `data.tensors` lists up to 100.

    ## Why it is bad
    A loader that believes the metadata refuses the file or reads past a tensor's rows; a
    tokenizer with more tokens than embedding rows fails on the first text that uses one.

    ## How to fix it
    Find out which of the two is right. Most often metadata of another model was copied, or tokens
    were added without resizing the embedding.

    ## Example
    `tokenizer.ggml.tokens says 32001, and the rows of token_embd.weight are 32000`
    """

    severity = Severity.WARNING
    help = "find out which of the two is right, and convert the model again with matching metadata"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield what the container found, then one finding for each key and kind of tensor."""
        yield from super().check(model)
        groups: dict[tuple[str, str, str], list[Contradiction]] = {}
        found = (claims_gguf.contradictions, claims_config.contradictions)
        for item in chain.from_iterable(compare(model.container) for compare in found):
            groups.setdefault((item.path or "", item.key, item.part), []).append(item)
        for items in groups.values():
            yield self._finding(items)

    def _finding(self, items: list[Contradiction]) -> Finding:
        first, count = items[0], len(items)
        more = f" (in the first of {count} tensors)" if count > 1 else ""
        verb = "is" if first.part.startswith(("length", "number")) else "are"
        value = first.claimed if first.value is None else first.value
        place = Location(byte_offset=first.offset, value=value)
        said = first.said or f"{safe(first.key)} says {first.claimed}"
        return self.finding(
            f"{said}, and the {first.part} {verb} {first.measured}{more}; expected the same number",
            path=first.path or first.tensor.path,
            tensor=first.tensor.name,
            field=first.key,
            count=count,
            locations=() if first.offset is None else (place,),
            certainty=first.certainty,
            data={
                "key": first.key,
                "expected": first.claimed,
                "measured": first.measured,
                "tensors": [item.tensor.name for item in items[:_LISTED]],
            },
        )
