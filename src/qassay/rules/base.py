"""What a rule is, what it sees, and how it says what it found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from qassay.core.container import Container, Defect, Skipped, StoredTensor
from qassay.core.errors import DeclarationError
from qassay.core.finding import Certainty, Finding, Location, Severity
from qassay.core.pages import demanded, first_sentence
from qassay.core.stats import Tally, TensorStats
from qassay.encodings.base import Encoding
from qassay.rules.registry import register

if TYPE_CHECKING:
    from qassay.comparison.facts import Comparison
    from qassay.encodings.layers import Assembly, Layer
    from qassay.runtimes.preflight_stats import PreflightStats
    from qassay.runtimes.targets import Choice

MANUAL_SECTIONS = ("What it does", "Why it is bad", "How to fix it", "Example")
"""Headings that every rule's docstring has, in this order; a rule's docstring is its manual."""


def share_of(count: int, total: int, noun: str) -> str:
    """Return `3 of 1,024 blocks`; `noun` is the plural."""
    return f"{count:,} of {total:,} {noun if total != 1 else noun.removesuffix('s')}"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """What a rule sees of one tensor that was read.

    Attributes:
        stored: The tensor as its container lists it.
        encoding: Its encoding.
        stats: What its bytes hold.
        choices: What each target of `--to` means for it.
        preflights: What each of those encodings would do to it, by id.
        layer: The weight that it holds the codes of, where that is kept in several tensors;
            `stats` are those of the whole weight, then.
        partial: Whether its bytes alone do not tell what it means.
    """

    stored: StoredTensor
    encoding: type[Encoding]
    stats: TensorStats
    choices: tuple[Choice, ...] = ()
    preflights: Mapping[str, PreflightStats] = field(default_factory=dict)
    layer: Layer | None = None
    partial: bool = False

    @property
    def label(self) -> str:
        """The encoding as reports name it: `ggml.q8_0`, `gptq.int4`."""
        return self.encoding.id if self.layer is None else self.layer.label

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape: `[N, K]`, or `[experts, N, K]`."""
        return self.stored.shape if self.layer is None else self.layer.shape

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.stored.size if self.layer is None else self.layer.weights

    @property
    def nbytes(self) -> int:
        """Stored bytes, those of all parts of a layer."""
        return (self.stored.nbytes or 0) if self.layer is None else self.layer.nbytes

    @property
    def parts(self) -> int:
        """How many stored tensors it takes."""
        return 1 if self.layer is None else len(self.layer.parts)

    @property
    def unit(self) -> int:
        """Weights of a block, or of a group."""
        return self.encoding.block if self.layer is None else self.layer.group

    @property
    def of_integers(self) -> bool:
        """Whether it is a layer whose codes are integers."""
        moments = self.stats.layer
        return moments is not None and moments.mean_code is not None

    @property
    def noun(self) -> str:
        """What scales are for: `blocks`, or `groups`."""
        return "blocks" if self.layer is None else "groups"

    def scales_of(self, field: str | None) -> int:
        """Return how many scales a field holds: one a block, or group, if nothing else is known."""
        known = self.stats.scales.get(field or "")
        if known is not None:
            return known.blocks
        if field is not None and self.layer is not None and field in self.layer.parts:
            return self.layer.parts[field].size
        return self.stats.units

    def share(self, count: int, field: str | None) -> str:
        """Return `3 of 1,024 blocks`, of those that a scale field is for."""
        noun = "values" if self.is_overall(field) else self.noun
        return share_of(count, self.scales_of(field), noun)

    def scale(self, field: str | None) -> str:
        """Return a scale field in words: `scale d`, `scale in weight_scale`."""
        return f"scale {field}" if self.layer is None else f"scale in {field}"

    def is_overall(self, field: str | None) -> bool:
        """Tell whether a field is a scale of the whole weight beside those of its groups."""
        if self.layer is None or field is None or field not in self.layer.parts:
            return False
        return self.layer.encoding.part(field).role.value == "global"

    def placed(self, finding: Finding) -> Finding:
        """Return a finding of a layer with the file of its part, and the layer's name."""
        if self.layer is None:
            return finding
        part = self.layer.parts.get(finding.field or "", self.stored)
        data = {**finding.data, "layer": self.layer.module, "encoding": self.layer.label}
        return replace(finding, path=part.path, data=data)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a rule sees of the whole input.

    Attributes:
        container: Structure and metadata as read.
        tensors: Those whose bytes were read, in file order.
        unread: Tensors and files that were not read, with the reason.
        crashed: Rules that raised, with the error.
        assembly: What its tensors make up together; None where each stands for itself.
    """

    container: Container
    tensors: list[TensorFacts] = field(default_factory=list)
    unread: list[Skipped] = field(default_factory=list)
    crashed: list[tuple[type[Rule], Exception]] = field(default_factory=list)
    assembly: Assembly | None = None

    @property
    def defects(self) -> Iterator[Defect]:
        """What is structurally wrong: with the container, and with weights in several tensors."""
        yield from self.container.defects
        if self.assembly is not None:
            yield from self.assembly.defects


class Rule:
    """One kind of defect. A subclass is declared with its code and name and registers itself.

    The class docstring is the manual page: a first sentence, then the sections of
    `MANUAL_SECTIONS`. Rules are pure: they read facts and never open a file.

    Attributes:
        code: `Q201`.
        name: The defect in words: `scale-not-finite`.
        severity: How bad it is unless a finding or the user's policy says otherwise.
        certainty: How sure it is unless a finding says otherwise.
        help: The "Fix:" line of findings that bring none of their own.
        since: The version that introduced the rule.
    """

    code: ClassVar[str] = ""
    name: ClassVar[str] = ""
    severity: ClassVar[Severity]
    certainty: ClassVar[Certainty] = Certainty.PROVEN
    help: ClassVar[str] = ""
    since: ClassVar[str] = ""

    def __init_subclass__(cls, *, code: str | None = None, name: str | None = None) -> None:
        super().__init_subclass__()
        if code is None or name is None:
            return
        cls.code, cls.name = code, name
        parts = demanded(("__doc__", "severity", "help", "since"))
        wanting = [part for part in parts if not getattr(cls, part, None)]
        if not re.fullmatch(r"Q\d{3}", code) or wanting:
            raise DeclarationError(
                f"rule {code} in {cls.__module__} is incomplete",
                expected="a code like Q201, a docstring, severity, help, since",
                found=f"no {', no '.join(wanting)}" if wanting else code,
            )
        register(cls)

    @classmethod
    def title(cls) -> str:
        """Return the first sentence of the manual page."""
        return first_sentence(cls)

    def finding(
        self,
        message: str,
        *,
        path: str = "",
        tensor: str | None = None,
        expert: int | None = None,
        field: str | None = None,
        tally: Tally | None = None,
        count: int | None = None,
        locations: tuple[Location, ...] = (),
        severity: Severity | None = None,
        certainty: Certainty | None = None,
        data: dict[str, Any] | None = None,
        help: str = "",  # noqa: A002
    ) -> Finding:
        """Return a finding of this rule; `tally` gives count and places unless they are given."""
        if count is None:
            count = tally.count if tally else max(1, len(locations))
        return Finding(
            code=self.code,
            name=self.name,
            severity=self.severity if severity is None else severity,
            certainty=self.certainty if certainty is None else certainty,
            message=message,
            path=path,
            tensor=tensor,
            expert=expert,
            field=field,
            count=count,
            locations=locations or (tally.locations if tally else ()),
            data=data or {},
            help=help or self.help,
        )


class TensorRule(Rule):
    """A rule that looks at one tensor at a time."""

    def check(self, tensor: TensorFacts) -> Iterable[Finding]:
        """Yield what is wrong with one tensor."""
        raise NotImplementedError


class ModelRule(Rule):
    """A rule that looks at the input as a whole."""

    def check(self, model: ModelFacts) -> Iterable[Finding]:
        """Yield what is wrong with the input."""
        raise NotImplementedError


class ComparisonRule(Rule):
    """A rule that looks at two models side by side."""

    def check(self, comparison: Comparison) -> Iterable[Finding]:
        """Yield what is wrong with the second, set against the first."""
        raise NotImplementedError


class ContainerRule(ModelRule):
    """A rule that words what a container found wrong while reading."""

    def check(self, model: ModelFacts) -> Iterator[Finding]:
        """Yield one finding for each defect with this rule's code."""
        for defect in model.defects:
            if defect.code == self.code:
                yield self.word(defect)

    def word(self, defect: Defect) -> Finding:
        """Return the finding for one defect."""
        message = defect.message
        if defect.expected is not None:
            message += f"; expected {defect.expected}"
        if defect.found is not None:
            message += f"; found {defect.found}"
        parts = {"expected": defect.expected, "found": defect.found}
        place = None if defect.byte_offset is None else Location(byte_offset=defect.byte_offset)
        lower = Severity(max(Severity.INFO, self.severity - 1))
        return self.finding(
            message,
            path=defect.path,
            tensor=defect.tensor,
            locations=(place,) if place else (),
            severity=lower if defect.minor else None,
            data={**{key: part for key, part in parts.items() if part is not None}, **defect.data},
            help=defect.help,
        )
