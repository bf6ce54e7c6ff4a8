"""`qassay budget`: what encodings and group sizes cost, padding and fall-backs included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qassay.core.container import Skipped
from qassay.encodings.base import BlockEncoding
from qassay.runtimes.budgets import HALF, Scheme
from qassay.runtimes.shapes.linear import Linear
from qassay.runtimes.sophgo.chips import Behaviour, Misfit, behaviour
from qassay.runtimes.sophgo.named import Aimed
from qassay.runtimes.targets import FALLBACKS

KEPT_ROLES = ("lm_head", "router", "vision", "mtp")
"""Roles of Linears that quantizers and compilers keep at 16 bits."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One encoding with one group size.

    Attributes:
        scheme: The encoding.
        group: The group size; None where it has none to be chosen.
    """

    scheme: Scheme
    group: int | None = None

    @property
    def bits(self) -> float:
        """Bits a weight by the formula."""
        return self.scheme.bits_per_weight(self.group)

    @property
    def ratio(self) -> float:
        """How many times smaller than BF16."""
        return HALF / self.bits


@dataclass(slots=True)
class Cost:
    """What a model, or one shape, costs under a plan.

    Attributes:
        plan: Which.
        weights: Of all Linears.
        size: Bits of all Linears by the formula, those kept at 16 bits included.
        fallen: Bits with those that become 16-bit because they do not fit; None where the
            compiler aborts instead, or does not make this encoding.
        padded: Bits with all padded to the lanes; None where that cannot be done.
        kept: Weights that are kept at 16 bits whatever the plan.
        misfits: Weights that do not fit: rows that are no whole groups, or lanes.
        aborts: Linears at which the compiler aborts.
        notes: What is not certain.
    """

    plan: Plan
    weights: int = 0
    size: float = 0.0
    fallen: float | None = 0.0
    padded: float | None = 0.0
    kept: int = 0
    misfits: int = 0
    aborts: int = 0
    notes: dict[str, None] = field(default_factory=dict)


@dataclass(slots=True)
class Shape:
    """Linears of one shape.

    Attributes:
        n: Output channels.
        k: Input features.
        count: How many Linears, experts counted each.
        names: The first few.
        kept: Whether they are kept at 16 bits.
        padded: N' for the lanes; None where no chip is named.
    """

    n: int
    k: int
    count: int = 0
    names: list[str] = field(default_factory=list)
    kept: bool = False
    padded: int | None = None

    @property
    def more(self) -> float | None:
        """Share of channels that padding adds."""
        return None if self.padded is None else (self.padded - self.n) / self.n


@dataclass(slots=True)
class Budget:
    """The whole account.

    Attributes:
        path: The model, as reports name it; "" without one.
        format: Its format.
        aimed: Chip and version.
        shapes: Shapes in the order of the model.
        costs: One for each plan.
        params: Number of weights, where only that was given.
        skipped: What could not be accounted for.
    """

    path: str
    format: str
    nbytes: int = 0
    aimed: Aimed | None = None
    shapes: list[Shape] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    params: int | None = None
    skipped: list[Skipped] = field(default_factory=list)


def plans(schemes: Sequence[Scheme], groups: Sequence[int]) -> list[Plan]:
    """Return every encoding with every group size that may be chosen for it."""
    return [Plan(each, group) for each in schemes for group in (groups if each.chosen else (None,))]


def of_params(params: int, wanted: Sequence[Plan]) -> Budget:
    """Account for a number of weights of which nothing else is known."""
    budget = Budget("", "params", params=params)
    for plan in wanted:
        bits = plan.bits * params
        budget.costs.append(Cost(plan, params, bits, None, None))
    return budget


def of_linears(linears: Sequence[Linear], wanted: Sequence[Plan], aimed: Aimed | None) -> Budget:
    """Account for Linears, shape by shape."""
    budget = Budget("", "shapes", aimed=aimed)
    shapes: dict[tuple[int, int, bool], Shape] = {}
    for one in linears:
        kept = one.role in KEPT_ROLES
        shape = shapes.setdefault((one.n, one.k, kept), Shape(one.n, one.k, kept=kept))
        shape.count += one.experts or 1
        if len(shape.names) < 3:
            shape.names.append(one.name)
    if aimed is not None:
        lanes = aimed.chip.lanes
        for shape in shapes.values():
            shape.padded = shape.n if shape.kept else -(-shape.n // lanes) * lanes
    budget.shapes = list(shapes.values())
    for plan in wanted:
        cost = Cost(plan)
        acts = _acts(plan, aimed)
        if acts is None:
            cost.fallen = None
        if aimed is None or not plan.scheme.padable:
            cost.padded = None
        for shape in budget.shapes:
            _account(cost, shape, acts)
        budget.costs.append(cost)
    return budget


def _acts(plan: Plan, aimed: Aimed | None) -> Behaviour | None:
    """Return what the compiler does with floats under a plan; None where it makes no such codes."""
    scheme = plan.scheme
    if aimed is None or scheme.runtime != "sophgo":
        return None
    return behaviour(
        aimed.chip.id, aimed.version, weight_bits=scheme.bits, q_group_size=plan.group or 0
    )


def _account(cost: Cost, shape: Shape, acts: Behaviour | None) -> None:
    """Add the Linears of one shape."""
    scheme, group = cost.plan.scheme, cost.plan.group
    weights = shape.n * shape.k * shape.count
    cost.weights += weights
    if shape.kept or not scheme.whole(shape.k, group):
        bits = weights * (HALF if shape.kept else _stand_in(scheme, shape.k))
        if shape.kept:
            cost.kept += weights
        else:
            cost.misfits += weights
        _add(cost, bits, bits, bits)
        return
    bits = weights * scheme.bits_per_weight(group, shape.n * shape.k)
    n = shape.padded or shape.n
    padded = n * shape.k * shape.count * scheme.bits_per_weight(group, n * shape.k)
    fallen: float | None = bits
    if acts is not None and not acts.fits(shape.n):
        cost.misfits += weights
        if acts.note:
            cost.notes[acts.note] = None
        quantized = acts.kept_of(shape.n) / shape.n
        fallen = bits * quantized + weights * HALF * (1 - quantized)
        if acts.on_misfit is Misfit.ABORT:
            cost.aborts += shape.count
            fallen = None
    _add(cost, bits, fallen, padded)


def _add(cost: Cost, bits: float, fallen: float | None, padded: float) -> None:
    cost.size += bits
    cost.fallen = None if cost.fallen is None or fallen is None else cost.fallen + fallen
    cost.padded = None if cost.padded is None else cost.padded + padded


def _stand_in(scheme: Scheme, k: int) -> float:
    """Return the bits a weight of what rows get that are no whole groups: ggml's own, or 16."""
    if scheme.encoding is not None and issubclass(scheme.encoding, BlockEncoding):
        from qassay.encodings.registry import by_id  # noqa: PLC0415 - only for such rows

        name = FALLBACKS.get(scheme.encoding.id)
        other = by_id(name) if name is not None else None
        if other is not None and k % other.block == 0:
            return other.block_bytes * 8 / other.block
    return HALF
