"""What was found out about an output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from qassay.comparison.attribution.edits import Edit
from qassay.comparison.attribution.evidence import Fit
from qassay.core.finding import Certainty
from qassay.runtimes.sophgo.arithmetic import Model


class Verdict(Enum):
    """How far the search came."""

    EXPLAINED = "explained"
    """Bit for bit what a documented arithmetic gives: not a fault."""
    FAULT = "fault"
    """One fault, or one pair, gives these outputs, and nothing else that was tried does."""
    ONE_OF = "one-of"
    """Several faults give these outputs; another probe would part them."""
    LIKELY = "likely"
    """A fault explains them up to rounding, under an arithmetic that is not known."""
    ROUNDING = "rounding"
    """They differ from what should have come out by rounding alone."""
    PART = "part"
    """A fault explains a part of the difference."""
    UNEXPLAINED = "unexplained"
    """Nothing that was tried explains them."""


@dataclass(frozen=True, slots=True, eq=False)
class Explanation:
    """One device, however many names it has.

    Attributes:
        edits: The faults, in the order in which they act; the simplest spelling.
        spellings: What else the same device may be called.
        models: Arithmetics under which it holds.
        fit: How its prediction fits.
        variants: The same fault in other versions that these inputs cannot part.
    """

    edits: tuple[Edit, ...]
    spellings: tuple[str, ...]
    models: tuple[Model, ...]
    fit: Fit
    variants: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What is wrong, in words."""
        return text_of(self.edits)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the faults."""
        return tuple(edit.id for edit in self.edits)


def text_of(edits: tuple[Edit, ...]) -> str:
    """Return several faults as one phrase."""
    return "; and ".join(edit.text for edit in edits) or "nothing is wrong"


@dataclass(frozen=True, slots=True)
class NonFinite:
    """Values that are not finite, on either side.

    Attributes:
        hidden: Outputs that are finite and should not be.
        born: Outputs that are not finite and should be.
        overflow: Whether those are just the outputs whose sum leaves f16.
        zeroed: Whether the hidden ones are what NaN and inf read as zero give.
        expected: Outputs that are not finite and should not be: the input was not.
        where: Row and column of the first hidden or born one.
    """

    hidden: int = 0
    born: int = 0
    overflow: bool = False
    zeroed: bool = False
    expected: int = 0
    where: tuple[int, int] | None = None


@dataclass(slots=True)
class Attribution:
    """What was found out.

    Attributes:
        verdict: How far the search came, values that are not finite aside.
        certainty: How sure the named fault is.
        models: Arithmetics that explain the output, where one does.
        explanations: The faults: one, or several that these inputs cannot part.
        share: Part of the difference that the best explanation explains, where that is told.
        best: What explained most, where that is not enough for a name.
        clean: How the output fits what should have come out, under the nearest arithmetic.
        non_finite: Values that are not finite.
        tail: N' where rows of N' outputs were read as rows of N; 0 where not.
        tail_text: What the tail holds.
        blind: Faults that these inputs cannot show, by kind.
        tried: How many single faults and pairs were tried.
        channels: How many output channels differ from the clean output by more than rounding.
        data: Numbers behind all this.
    """

    verdict: Verdict
    certainty: Certainty = Certainty.PROVEN
    models: tuple[Model, ...] = ()
    explanations: tuple[Explanation, ...] = ()
    share: float | None = None
    best: str = ""
    clean: Fit | None = None
    non_finite: NonFinite = field(default_factory=NonFinite)
    tail: int = 0
    tail_text: str = ""
    blind: tuple[str, ...] = ()
    tried: tuple[int, int] = (0, 0)
    channels: int = 0
    data: Mapping[str, Any] = field(default_factory=dict)
