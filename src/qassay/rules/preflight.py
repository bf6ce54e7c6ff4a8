"""What the rules about quantizing have in common: one finding a tensor, expert and target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from qassay.core.finding import Certainty, Finding
from qassay.encodings.base import BlockEncoding, Encoding
from qassay.rules.base import TensorFacts, TensorRule
from qassay.runtimes.preflight_settle import survivors
from qassay.runtimes.preflight_stats import Extent, PreflightStats
from qassay.runtimes.targets import Choice, gguf_name


@dataclass(frozen=True, slots=True)
class Planned:
    """One encoding that a tensor would get, and what that would do.

    Attributes:
        tensor: The tensor.
        id: Of the target: an encoding or a way of storing groups.
        encoding: None for groups.
        words: The words of `--to` that mean it here.
        stats: What it would do.
    """

    tensor: TensorFacts
    id: str
    encoding: type[Encoding] | None
    words: tuple[str, ...]
    stats: PreflightStats

    @property
    def name(self) -> str:
        """What people call the target: `Q8_0`."""
        return gguf_name(self.encoding) if self.encoding is not None else self.id

    @property
    def blocks(self) -> bool:
        """Whether the target has blocks with scales."""
        return self.encoding is not None and issubclass(self.encoding, BlockEncoding)

    @property
    def data(self) -> dict[str, Any]:
        """What every finding's data says of the target."""
        return {"target": self.id, "asked": list(self.words)}

    def fix(self, extent: Extent | None) -> str:
        """Return the "Fix:" line that names types whose scales hold the harmed blocks."""
        if extent is None or not extent.most:
            return ""
        types = [
            name
            for name in survivors(extent.least, extent.most, block=self.blocks)
            if name != self.name
        ]
        if not types:
            return "keep this tensor as it is"
        return f"keep this tensor in a type that holds these weights: {', '.join(types)}"


def planned(tensor: TensorFacts) -> Iterator[Planned]:
    """Yield what a tensor would become, each encoding once, in order of id."""
    by_id: dict[str, list[Choice]] = {}
    for choice in tensor.choices:
        by_id.setdefault(choice.id, []).append(choice)
    for name in sorted(tensor.preflights):
        choices = by_id[name]
        words = tuple(choice.word for choice in choices)
        yield Planned(tensor, name, choices[0].encoding, words, tensor.preflights[name])


class PreflightRule(TensorRule):
    """A rule about what quantizing would do. `judge` looks at one target of one tensor."""

    def check(self, tensor: TensorFacts) -> Iterator[Finding]:
        """Yield what each target would do."""
        for each in planned(tensor):
            yield from self.judge(each)

    def judge(self, plan: Planned) -> Iterable[Finding]:
        """Yield what one target would do."""
        raise NotImplementedError

    def told(self, plan: Planned, message: str, **more: Any) -> Finding:
        """Return a finding about one target, which is the finding's field."""
        more["data"] = {**plan.data, **more.get("data", {})}
        if plan.stats.estimated and plan.blocks:
            more.setdefault("certainty", Certainty.LIKELY)
        return self.finding(
            message,
            path=plan.tensor.stored.path,
            tensor=plan.tensor.stored.name,
            field=plan.id,
            **more,
        )


def share(count: int, whole: int, noun: str) -> str:
    """Return `3 of 128 blocks`."""
    return f"{count:,} of {whole:,} {noun}{'' if whole == 1 else 's'}"


def short(value: float) -> str:
    """Return a number as messages print it."""
    return f"{value:.4g}"
