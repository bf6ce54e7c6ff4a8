"""A fault, as an edit of one component of a setup."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from qassay.comparison.attribution.setup import Index, Setup


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One fault.

    Attributes:
        id: `rows:deal64:sz`.
        text: What is wrong, as a sentence says it.
        code: The rule that reports it.
        apply: From a setup to the faulty one; None where it means nothing there.
        common: Whether it is tried in pairs.
        order: The permutation it is, where it is one.
        free: Numbers that were fitted to the outputs, in bits; 0 for what was in the list.
        data: What else there is to tell.
        family: Name shared by variants of one fault; "" for its own id.
    """

    id: str
    text: str
    code: str
    apply: Callable[[Setup], Setup | None]
    common: bool = False
    order: Index | None = None
    free: float = 0.0
    data: Mapping[str, object] | None = None
    family: str = ""

    @property
    def kind(self) -> str:
        """What variants of one fault have in common: how ties are broken is no other fault."""
        return self.family or self.id

    @property
    def component(self) -> str:
        """What is edited."""
        return self.id.rpartition(":")[2]

    @property
    def way(self) -> str:
        """What is done to what: `rows:q`. Two faults that are alike in it are not combined."""
        return f"{self.id.partition('-')[0]}:{self.component}"
