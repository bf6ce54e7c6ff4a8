"""What a comparison found: plain data for rules and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qassay.comparison.cost.facts import Cost

PARTS = ("codes", "zeros", "scales", "minimums")


@dataclass(frozen=True, slots=True)
class Transformation:
    """What turns one weight into the other, verified on every row.

    Attributes:
        kind: `rows-permuted`, `nibbles-swapped`, ...
        code: The rule that reports it; "" where it is no fault.
        parts: Of what: `codes`, `zeros`, `scales`, `minimums`, `groups`, `whole`; all: ().
        text: The transformation in words, such as `zero points are 1 lower`.
        data: The numbers: the permutation, the shift, the factor.
    """

    kind: str
    code: str
    parts: tuple[str, ...]
    text: str
    data: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "kind": self.kind,
            "rule": self.code or None,
            "parts": list(self.parts),
            "text": self.text,
            "data": self.data,
        }


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a quantized weight that no transformation undoes.

    Attributes:
        code: The rule that reports it.
        kind: `hidden`, `columns-lost`, `one-sided-group`, `unexplained`, ...
        text: What, in words, with its numbers.
        count: How many weights, rows or columns.
        row: Where first, None where that says nothing.
        column: The same.
        severe: Whether it is an error even where its rule warns.
        data: The numbers.
    """

    code: str
    kind: str
    text: str
    count: int = 1
    row: int | None = None
    column: int | None = None
    severe: bool = False
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class PartCount:
    """How many elements of a part differ, and by how many steps.

    Attributes:
        different: Elements that differ.
        of: Elements there are.
        steps: How many differ by one, by two, by three or more (integers only).
    """

    different: int = 0
    of: int = 0
    steps: list[int] = field(default_factory=lambda: [0, 0, 0])

    def to_dict(self, *, stepped: bool) -> dict[str, Any]:
        """Return the JSON form."""
        told: dict[str, Any] = {"different": self.different, "of": self.of}
        if stepped:
            told["steps"] = dict(zip(("1", "2", "3+"), self.steps, strict=True))
        return told


@dataclass(slots=True)
class Difference:
    """How two weights of one shape differ, place by place.

    Attributes:
        parts: By part: `codes`, `zeros`, `scales`, `minimums`, `groups`, `whole`.
        weights: Decoded weights that differ.
        rows: Rows with a decoded weight that differs.
        largest: The largest difference of two finite weights, in steps of the first.
        largest_at: Its row and column.
        one_sided: Weights that are finite on one side only.
        first: Where the first difference is: row, column, part, and both values.
        drift: By how much the sums of all codes, and of their squares, differ: no permutation
            changes either.
        comparable: Whether codes of both sides count the same steps.
        note: What else a reader has to know.
    """

    parts: dict[str, PartCount] = field(default_factory=dict)
    weights: PartCount = field(default_factory=PartCount)
    rows: PartCount = field(default_factory=PartCount)
    largest: float = 0.0
    largest_at: tuple[int, int] | None = None
    one_sided: int = 0
    first: dict[str, Any] | None = None
    drift: tuple[int, int] = (0, 0)
    comparable: bool = True
    note: str = ""

    @property
    def same_form(self) -> bool:
        """Whether nothing differs; other numbers for the same groups are no difference."""
        return self.comparable and not any(
            part.different for name, part in self.parts.items() if name != "groups"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        told: dict[str, Any] = {
            name: part.to_dict(stepped=name in ("codes", "zeros"))
            for name, part in self.parts.items()
        }
        told["weights"] = self.weights.to_dict(stepped=False)
        told["rows"] = self.rows.to_dict(stepped=False)
        told["largest_steps"] = self.largest
        told["one_sided"] = self.one_sided
        told["first"] = self.first
        if self.note:
            told["note"] = self.note
        return told


@dataclass(slots=True)
class Pair:
    """Two tensors that belong together, and what became of the comparison.

    Attributes:
        name: As the first side spells it.
        tensor: As the second side spells it; findings name that one.
        path: File of the second side's.
        encodings: How each side keeps it.
        shape: Logical shape of the first side's.
        relation: `equal`, `quantized`, `equal-up-to`, `different` or `not-compared`; `quantized`:
            one is float and the other what its scheme should make of it.
        transformations: What turns one into the other.
        cost: The error against the float side; None where both are quantized, or equal.
        undone: The same once the transformations are undone.
        faults: What is wrong with it beside.
        difference: How they differ as they are; None where that was not looked at.
        other: The tensor of the first side that the second side's really is.
        reason: Why they were not compared.
        notes: What was allowed for.
        nbytes: Bytes read on both sides.
    """

    name: str
    tensor: str
    path: str
    encodings: tuple[str, str]
    shape: tuple[int, ...]
    relation: str = "equal"
    transformations: tuple[Transformation, ...] = ()
    difference: Difference | None = None
    cost: Cost | None = None
    undone: Cost | None = None
    faults: list[Fault] = field(default_factory=list)
    other: str = ""
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    nbytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        told: dict[str, Any] = {
            "name": self.name,
            "other_name": self.tensor,
            "encodings": list(self.encodings),
            "shape": list(self.shape),
            "relation": self.relation,
            "transformations": [each.to_dict() for each in self.transformations],
        }
        if self.relation not in ("equal", "not-compared") and self.difference is not None:
            told["difference"] = self.difference.to_dict()
        if self.cost is not None:
            told["cost"] = self.cost.to_dict()
        if self.undone is not None:
            told["cost_once_undone"] = self.undone.to_dict()
        if self.other:
            told["weights_of"] = self.other
        if self.reason:
            told["reason"] = self.reason
        if self.notes:
            told["notes"] = self.notes
        return told


@dataclass(frozen=True, slots=True)
class Alone:
    """A tensor that only one side has."""

    name: str
    path: str
    side: int
    encoding: str


@dataclass(slots=True)
class Comparison:
    """Everything that comparing two models found.

    Attributes:
        paths: Both sides, as reports name them.
        pairs: In the first side's order.
        alone: Tensors that one side has and the other lacks.
        computed: Tensors that one side lacks because they follow from the configuration.
        metadata: Keys whose values differ, with both.
        incomplete: Whether something of either input was not read at all.
    """

    paths: tuple[str, str]
    pairs: list[Pair] = field(default_factory=list)
    alone: list[Alone] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    metadata: dict[str, list[Any]] = field(default_factory=dict)
    incomplete: bool = False

    @property
    def relation(self) -> str:
        """The worst of all pairs; `equal` and `quantized` only where all was compared."""
        relations = {pair.relation for pair in self.pairs}
        if self.alone:
            relations.add("different")
        if self.incomplete:
            relations.add("not-compared")
        for word in ("different", "equal-up-to", "not-compared", "quantized"):
            if word in relations:
                return word
        return "equal" if self.pairs else "not-compared"
