"""Q901."""

from __future__ import annotations

from collections.abc import Iterator

from qassay.core.finding import Finding, Severity
from qassay.rules.base import ModelFacts, ModelRule

_LISTED = 100


class NotChecked(ModelRule, code="Q901", name="not-checked"):
    """Tensors or files were not read, so nothing is known about them.

    ## What it does
    Says, once for each reason, how many tensors and files were not judged: an encoding that this
    version does not read, a shape or place in the file that is not sound, another part of a split
    model. The finding names the first; `data.names` lists up to 100. The result is "incomplete"
    and the exit code 3, unless `--allow-incomplete` is given.

    ## Why it is bad
    What was not read may hold anything. "No findings" says nothing about it.

    ## How to fix it
    Update qassay if the encoding is new; mend the structural findings first if there are any;
    check the other parts as well.

    ## Example
    `12 were not checked: encoding IQ2_XXS is not read by this version`
    """

    severity = Severity.INFO
    help = "update qassay for a new encoding; mend structural findings first; check other parts too"
    since = "0.1"

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each reason."""
        groups: dict[str, list[str]] = {}
        for skipped in model.unread:
            groups.setdefault(skipped.reason, []).append(skipped.name)
        paths = {tensor.name: tensor.path for tensor in model.container.tensors}
        for reason, names in groups.items():
            first, count = names[0], len(names)
            tensors = sum(name in paths for name in names)
            noun = "tensor" if tensors == count else "file" if not tensors else "tensor and file"
            what = f"1 {noun} was" if count == 1 else f"{count} {noun}s were"
            yield self.finding(
                f"{what} not checked: {reason}",
                path=paths.get(first, model.container.path),
                tensor=first if first in paths else None,
                count=count,
                data={"reason": reason, "names": names[:_LISTED]},
            )
