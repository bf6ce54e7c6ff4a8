"""What the rules say of an array: an audit in memory of what the array would be in a file."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qassay.core.container import Container, StoredTensor, StoredType
from qassay.core.finding import Finding, Location
from qassay.core.source import Bytes
from qassay.encodings.base import BlockEncoding, Encoding
from qassay.guards.floats import Array
from qassay.run.check import check
from qassay.run.options import CheckOptions
from qassay.runtimes.targets import Target

_RULES = ("Q501", "Q502", "Q503", "Q504")
_SMALL = 1 << 20
"""Weights up to which a second thread is not worth its start."""


class Memory:
    """Bytes in memory as a source."""

    name = "memory"

    def __init__(self, data: Bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self._data.size

    def read(self, offset: int, length: int) -> Bytes:
        """Return `length` bytes from `offset`."""
        return self._data[offset : offset + length]

    def close(self) -> None:
        """Do nothing: the array belongs to the caller."""


def container_of(kind: StoredType, shape: tuple[int, ...], raw: Bytes, path: str = "") -> Container:
    """Return a container of one tensor that lies in memory."""
    stored = StoredTensor("w", kind, shape, Memory(raw), 0, raw.size, path)
    return Container(path=path, format="memory", tensors=[stored])


def look(array: Array, to: type[Encoding], name: str) -> list[Finding]:
    """Return what quantizing an array to `to` would do, in file order."""
    row = array.shape[-1] if array.shape else 1
    kind, raw = array.stored()
    blocks = issubclass(to, BlockEncoding)
    # In a file for people, one axis means that a tensor is not quantized; here it was asked for.
    container = container_of(kind, (array.size // row, row), raw)
    options = CheckOptions(
        # A target without blocks has no rule about NaN of its own.
        select=_RULES if blocks else (*_RULES, "Q401"),
        jobs=1 if array.size <= _SMALL else None,
        targets=(Target(to.id, to),),
    )
    with np.errstate(all="ignore"):
        found = check(container, options).findings
    places = [_placed(finding, to, array, name) for finding in found]
    return sorted(places, key=_first)


def _first(finding: Finding) -> int:
    place = finding.location
    return -1 if place is None or place.block is None else place.block


def _placed(finding: Finding, to: type[Encoding], array: Array, name: str) -> Finding:
    """Return the finding about a named array, its first place in words as well."""
    row = array.shape[-1] if array.shape else 1
    per_row = max(1, row // to.block)
    places = tuple(_with_block(place, to, per_row) for place in finding.locations)
    message = finding.message
    if places and places[0].block is not None:
        element = (places[0].column or 0) % to.block
        what = f", element {element}" if finding.code == "Q504" else ""
        where = f"row {places[0].row}, block {places[0].block}{what}"
        message += f"; first at {where}" if finding.count > 1 else f"; at {where}"
        first = (places[0].row or 0) * row + (places[0].column or 0)
        if finding.code == "Q504" and array.was_finite(first):
            message += " (finite as float64, and infinite as float32)"
    return replace(finding, message=message, tensor=name or None, path="", locations=places)


def _with_block(place: Location, to: type[Encoding], per_row: int) -> Location:
    """Return a place with the number of the block that its column is in."""
    block = None
    if place.row is not None:
        block = place.row * per_row + (place.column or 0) // to.block
    return replace(place, block=block, byte_offset=None)
