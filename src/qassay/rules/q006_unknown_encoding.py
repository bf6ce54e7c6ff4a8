"""Q006."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.container import StoredTensor
from qassay.core.finding import MAX_LOCATIONS, Finding, Location, Severity
from qassay.rules.base import ModelFacts, ModelRule

_LISTED = 100


class UnknownEncoding(ModelRule, code="Q006", name="unknown-encoding"):
    """A tensor is of a type that its format does not define, or defines no longer.

    ## What it does
    Reports, once for each type, the tensors whose type number or dtype word stands for nothing
    that can be stored in a file: unknown, withdrawn, or used for activations only. The finding
    names the first tensor; `data.names` lists up to 100. A type that is sound and merely not yet
    decoded is Q901 alone.

    ## Why it is bad
    Nothing can be said about these tensors, and loaders refuse them. Either the file is newer
    than this program, or it uses a type that was withdrawn, or the field is damaged.

    ## How to fix it
    Update qassay. For a withdrawn type, quantize the model again from its source.

    ## Example
    `3 tensors are of type 99, which no file of this format should hold (ggml type 99 is not known
    to this version of qassay)`
    """

    severity = Severity.INFO
    help = "update qassay; if the type was withdrawn, quantize the model again"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each file and type."""
        groups: dict[tuple[str, str | int], list[StoredTensor]] = {}
        for tensor in model.container.tensors:
            if tensor.type.block == 0 or tensor.type.note:
                groups.setdefault((tensor.path, tensor.type.label), []).append(tensor)
        for (path, label), tensors in groups.items():
            first, count = tensors[0], len(tensors)
            verb = "tensor is" if count == 1 else "tensors are"
            note = f" ({first.type.note})" if first.type.note else ""
            yield self.finding(
                f"{count} {verb} of {first.type.name}, which no file of this format should"
                f" hold{note}",
                path=path,
                tensor=first.name,
                count=count,
                locations=tuple(Location(byte_offset=t.offset) for t in tensors[:MAX_LOCATIONS]),
                data={"type": label, "names": [tensor.name for tensor in tensors[:_LISTED]]},
            )
