"""What metadata claims about shapes, as data: shared by the readers of claims and by Q110."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qassay.core.container import StoredTensor
from qassay.core.finding import Certainty

LARGEST = 1 << 48
"""A number above this counts no axis: metadata is untrusted."""


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A number in the metadata that a shape belies.

    Attributes:
        key: The metadata key, as in the file.
        claimed: What follows from its value for the axis.
        measured: What the axis is.
        part: What was measured: `rows of output.weight`.
        tensor: The tensor whose shape it is.
        offset: Byte offset of the value in its file.
        path: The file of the value, where an offset is known.
        said: What the message begins with, where `key says claimed` would not be true.
        value: What stands under the key, where that is not `claimed` itself.
        certainty: Of the finding.
    """

    key: str
    claimed: int
    measured: int
    part: str
    tensor: StoredTensor
    offset: int | None = None
    path: str | None = None
    said: str = ""
    value: int | None = None
    certainty: Certainty = Certainty.PROVEN


@dataclass(frozen=True, slots=True)
class AxisRule:
    """That an axis of certain tensors has the length that a key states.

    Attributes:
        pattern: Of the whole tensor name; a group `layer` is the number of the layer.
        axes: Axes that such a tensor has.
        axis: The axis compared, negative from the fastest one.
        claim: Name of the claim, looked up by the reader.
        part: What is measured, for messages.
        families: Architectures that this is certain of; None for all.
        multiples: The axis may be the claim times one of these (fused tensors).
    """

    pattern: re.Pattern[str]
    axes: int
    axis: int
    claim: str
    part: str
    families: Collection[str] | None = None
    multiples: tuple[int, ...] = (1,)


def number(value: object) -> int | None:
    """Return `value` if it is an integer that could count something, else None."""
    if type(value) is not int or not 0 <= value <= LARGEST:
        return None
    return value


def for_layer(value: object, layer: int | None) -> int | None:
    """Return a number that is stated once, or for each layer in an array."""
    if layer is None or isinstance(value, str | bytes) or not isinstance(value, Sequence):
        return number(value)
    # An array of anything but numbers may be large and slow to index: leave it alone.
    kind = getattr(value, "item_name", "int")
    if "int" not in kind or layer >= len(value):
        return None
    return number(value[layer])


def nested(config: Mapping[str, Any], *keys: str) -> object:
    """Return the value under `keys`, None where one is missing."""
    value: object = config
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def matching(
    tensors: Sequence[StoredTensor], rules: Sequence[AxisRule], family: str
) -> Iterator[tuple[StoredTensor, AxisRule, int | None]]:
    """Yield each tensor with each rule that is about it, and the number of its layer.

    How many axes the tensor has is for the caller to compare with `AxisRule.axes`.
    """
    wanted = [rule for rule in rules if rule.families is None or family in rule.families]
    for tensor in tensors:
        if not tensor.readable:  # its shape is wrong, and reported as such
            continue
        for rule in wanted:
            match = rule.pattern.fullmatch(tensor.name)
            if match is not None:
                layer = match.groupdict().get("layer")
                yield tensor, rule, None if layer is None else int(layer)


def deepest_layer(
    tensors: Sequence[StoredTensor], pattern: re.Pattern[str]
) -> tuple[int, StoredTensor] | None:
    """Return the highest layer number in the names, counted from 1, and its first tensor."""
    best: tuple[int, StoredTensor] | None = None
    for tensor in tensors:
        match = pattern.match(tensor.name)
        if match is not None and (best is None or int(match["layer"]) + 1 > best[0]):
            best = int(match["layer"]) + 1, tensor
    return best


def missing_layers(tensors: Sequence[StoredTensor], pattern: re.Pattern[str]) -> list[int]:
    """Return the layer numbers below the highest that no name has, at most a hundred."""
    numbers = {int(match["layer"]) for one in tensors if (match := pattern.match(one.name))}
    # At most a hundred numbers more than there are layers have to be looked at.
    below = range(min(max(numbers, default=0), len(numbers) + 100))
    return [number for number in below if number not in numbers][:100]
