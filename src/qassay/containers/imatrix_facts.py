"""What an importance file is worth: by itself, and for a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from qassay.containers.imatrix import Importance, entries_of
from qassay.core.container import Container, StoredTensor
from qassay.core.finding import MAX_LOCATIONS, Location

KEY = "importance"
"""Where a container's `extra` keeps these facts."""
BLOCK = 32
"""Features looked at together: the smallest block that importance is used in."""


@dataclass(slots=True)
class EntryFacts:
    """What is to be said of one entry.

    Attributes:
        name: The weight's.
        offset: Byte offset of its sums, if it has any.
        matrices, length: Experts, and features of each.
        broken: Why it cannot be used at all, or "".
        nan, inf, negative: Sums of that kind.
        places: The first of them.
        counts: Counts that are NaN, infinite or negative.
        uncalibrated: Experts that never ran.
        guessed: Whether that was told from values alone, as in the older format.
        zero: Experts that ran and whose importance is zero throughout.
        zero_blocks: Aligned runs of 32 features of other experts that are zero throughout.
        expected: What the weight needs, where the number of values is another.
    """

    name: str
    offset: int | None = None
    matrices: int = 0
    length: int = 0
    broken: str = ""
    nan: int = 0
    inf: int = 0
    negative: int = 0
    places: tuple[Location, ...] = ()
    counts: int = 0
    uncalibrated: tuple[int, ...] = ()
    guessed: bool = False
    zero: tuple[int, ...] = ()
    zero_blocks: int = 0
    expected: int | None = None

    @property
    def usable(self) -> bool:
        """Whether a quantizer may take it."""
        wrong = self.nan + self.inf + self.negative + self.counts
        return not self.broken and not wrong and self.expected is None


@dataclass(slots=True)
class ImportanceFacts:
    """What is to be said of a file.

    Attributes:
        path: As reports name it.
        entries: By name of the weight, in file order.
        wanting: Metadata keys without which llama-quantize refuses a GGUF file.
        missing: Weights of the model without an entry.
        foreign: Entries that no weight of the model has a use for.
        damage: What is wrong with the structure of a file that goes with a model.
        weights: Weights of the model that are to have importance; None without a model.
    """

    path: str
    entries: dict[str, EntryFacts] = field(default_factory=dict)
    wanting: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    weights: int | None = None
    damage: str = ""


def look(
    container: Container,
    model: Container | None = None,
    needs: Callable[[StoredTensor], bool] = lambda _: True,
) -> ImportanceFacts:
    """Return what is to be said of an open importance file.

    Args:
        container: The file.
        model: The model that it shall be for, if there is one.
        needs: Tells whether a weight of the model is to have importance.
    """
    entries = entries_of(container)
    weights = {} if model is None else weights_of(model)
    facts = ImportanceFacts(container.path)
    for name, entry in entries.items():
        facts.entries[name] = _entry(entry, weights.get(name))
    if container.format == "gguf" and not container.skipped:
        keys = ("imatrix.datasets", "imatrix.chunk_count", "imatrix.chunk_size")
        facts.wanting = tuple(key for key in keys if key not in container.metadata)
    if model is not None:
        known = {tensor.name for tensor in model.tensors}
        facts.foreign = tuple(name for name in entries if name not in known)
        needed = [name for name, weight in weights.items() if needs(weight)]
        facts.weights = len(needed)
        facts.missing = tuple(name for name in needed if name not in entries)
    return facts


def weights_of(model: Container) -> dict[str, StoredTensor]:
    """Return the tensors of a model that importance may be for, by name."""
    found: dict[str, StoredTensor] = {}
    for tensor in model.tensors:
        if len(tensor.shape) >= 2 and tensor.size and not tensor.part_of:
            found.setdefault(tensor.name, tensor)
    return found


def experts_of(weight: StoredTensor) -> int:
    """Return how many matrices a weight holds."""
    return weight.size // (weight.shape[-1] * weight.shape[-2]) if len(weight.shape) > 1 else 1


@np.errstate(invalid="ignore")  # a NaN may be a signalling one
def _entry(entry: Importance, weight: StoredTensor | None) -> EntryFacts:
    facts = EntryFacts(entry.name, None if entry.sums is None else entry.sums.offset)
    if not entry.whole:
        facts.broken = _why_broken(entry)
        return facts
    assert entry.sums is not None  # noqa: S101
    experts = 1 if weight is None else experts_of(weight)
    sums, counts = entry.read(experts)
    facts.matrices, facts.length = sums.shape
    if weight is not None and sums.size != experts * weight.shape[-1]:
        facts.expected = experts * weight.shape[-1]
    _look_at_sums(facts, entry.sums, sums)
    facts.counts = int((~(counts >= 0) | np.isinf(counts)).sum())
    if entry.counts is not None:
        idle = counts == 0
    else:
        # The older format writes `calls` in every place of an expert that never ran.
        filled = (sums == np.float32(entry.calls or 0)).all(axis=1)
        idle = filled if experts > 1 and (entry.calls or 0) > 0 else np.zeros(counts.size, bool)
        facts.guessed = bool(idle.any())
    facts.uncalibrated = _numbers(idle)
    _look_for_zeros(facts, sums, idle)
    return facts


def _why_broken(entry: Importance) -> str:
    if entry.calls is None and (entry.sums is None or entry.counts is None):
        return "it has counts and no sums" if entry.sums is None else "it has sums and no counts"
    parts = [part for part in (entry.sums, entry.counts) if part is not None]
    if any(not part.readable for part in parts):
        return "its shape or place in the file is not sound"
    if any(part.type.label != 0 for part in parts):
        return "its values are no F32"
    if entry.sums is not None and entry.counts is not None and entry.sums.size:
        return f"{entry.sums.size} sums cannot be shared out among {entry.counts.size} counts"
    return "it is empty"


def _look_at_sums(facts: EntryFacts, stored: StoredTensor, sums: npt.NDArray[np.float32]) -> None:
    flat = sums.reshape(-1)
    nan, inf = np.isnan(flat), np.isinf(flat)
    with np.errstate(invalid="ignore"):
        negative = (flat < 0) & ~inf
    facts.nan, facts.inf, facts.negative = int(nan.sum()), int(inf.sum()), int(negative.sum())
    facts.places = tuple(
        Location(
            row=int(place) // facts.length,
            column=int(place) % facts.length,
            field="in_sum2" if stored.name.endswith(".in_sum2") else "values",
            byte_offset=stored.offset + 4 * int(place),
            value=float(flat[place]),
        )
        for place in np.flatnonzero(nan | inf | negative)[:MAX_LOCATIONS]
    )


def _look_for_zeros(
    facts: EntryFacts, sums: npt.NDArray[np.float32], idle: npt.NDArray[np.bool_]
) -> None:
    live = ~idle
    nothing = live & ~sums.any(axis=1)
    facts.zero = _numbers(nothing)
    if facts.length % BLOCK == 0:
        blocks = sums[live & ~nothing].reshape(-1, BLOCK)
        facts.zero_blocks = int((~blocks.any(axis=1)).sum())


def _numbers(chosen: npt.NDArray[np.bool_]) -> tuple[int, ...]:
    return tuple(int(number) for number in np.flatnonzero(chosen))


def facts_in(extra: Mapping[str, object]) -> ImportanceFacts | None:
    """Return the facts that a container's `extra` keeps, if it does."""
    facts = extra.get(KEY)
    return facts if isinstance(facts, ImportanceFacts) else None
