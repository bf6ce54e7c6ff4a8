"""What a container holds, by name, and which entries of two containers belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from qassay.comparison import names
from qassay.comparison.composed import Stack, Strided
from qassay.comparison.weights import (
    BlockWeight,
    Entry,
    LayerWeight,
    Plain,
    PlainStack,
    Unread,
    Whole,
    is_quantized,
)
from qassay.core.container import Container, StoredTensor
from qassay.core.errors import InputError
from qassay.encodings.base import BlockEncoding, PlainEncoding
from qassay.encodings.layers import Layer, Role, assemble
from qassay.encodings.registry import for_stored_type

_MOST_EXPERTS = 4096


@dataclass(slots=True)
class Entries:
    """One side.

    Attributes:
        by_name: Weights and other tensors, in file order.
        gguf: Whether names are spelled as GGUF spells them.
        unread: Modules of which something could not be decoded, with the reason.
    """

    by_name: dict[str, Entry] = field(default_factory=dict)
    gguf: bool = False
    unread: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, entry: Entry) -> None:
        """Add an entry; of names that repeat, the first counts."""
        self.by_name.setdefault(name, entry)


def entries_of(container: Container) -> Entries:
    """Return everything that can be compared, and everything that cannot."""
    assembly = assemble(container)
    found = Entries(gguf=names.is_gguf([tensor.name for tensor in container.tensors]))
    scales = _companions(assembly.loose)
    placed = {id(layer.codes): layer for layer in assembly.layers}
    loose = {id(tensor) for tensor in assembly.loose}
    kept = {(t.name, t.path, t.offset): t for t in assembly.loose}
    for tensor in container.tensors:
        layer = placed.get(id(tensor))
        if layer is not None:
            name = f"{layer.module}.weight" if layer.module else tensor.name
            found.add(name, _layer_entry(layer))
            for part, stored in layer.parts.items():
                if layer.encoding.part(part).role is Role.ACTIVATION:
                    _add_loose(found, stored, {})
            continue
        # What is part of something is a copy with its reason.
        own = kept.get((tensor.name, tensor.path, tensor.offset))
        if id(tensor) in loose or own is not None:
            _add_loose(found, own or tensor, scales)
    parts = [
        entry.companion
        for entry in found.by_name.values()
        if isinstance(entry, BlockWeight) and entry.companion
    ]
    parts += [name for name, entry in found.by_name.items() if _of_unread(name, entry, found)]
    for name in parts:
        found.by_name.pop(name, None)
    return found


def _of_unread(name: str, entry: Entry, found: Entries) -> bool:
    """Tell whether a plain tensor is a part of a weight that is not read, and stands for it."""
    module, part = names.split(name)
    whole = found.by_name.get(module if module.endswith(".weight") else f"{module}.weight")
    return (
        isinstance(entry, Plain)
        and isinstance(whole, Unread)
        and bool(whole.stored.part_of)
        and part not in ("weight", "bias")
    )


def _layer_entry(layer: Layer) -> Entry:
    try:
        return LayerWeight.of(layer)
    except InputError as error:  # the file shrank, or is gone
        return Unread(layer.codes, error.message)


def _add_loose(found: Entries, tensor: StoredTensor, scales: Mapping[str, StoredTensor]) -> None:
    encoding = for_stored_type(tensor.type)
    reason = tensor.part_of
    if not tensor.readable or tensor.nbytes is None:
        reason = reason or "its shape or place in the file is not sound"
    if encoding is None:
        reason = reason or f"encoding {tensor.type.name} is not read by this version"
    if tensor.size == 0:
        reason = reason or "it holds nothing"
    if reason:
        module = names.split(tensor.name)[0]
        found.unread.setdefault(module, reason)
        name = tensor.name
        if tensor.part_of:  # all parts are one weight: `x.weight`, also of `x.weight.absmax`
            name = module if module.endswith(".weight") else f"{module}.weight"
        found.add(name, Unread(tensor, reason))
    elif encoding is not None and issubclass(encoding, BlockEncoding):
        if tensor.shape[-1] % encoding.block:
            found.add(tensor.name, Unread(tensor, "its rows are no whole number of blocks"))
            return
        found.add(tensor.name, _block_entry(tensor, encoding, scales))
    elif encoding is not None and issubclass(encoding, PlainEncoding):
        found.add(tensor.name, Plain(tensor, encoding))


def _companions(tensors: list[StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors `<name>.scale` that belong to a weight of ggml blocks, by name."""
    blocks = {
        names.split(tensor.name)[0]
        for tensor in tensors
        if tensor.type.family == "ggml" and tensor.type.block > 1
    }
    return {
        tensor.name: tensor
        for tensor in tensors
        if tensor.type.family == "ggml"
        and tensor.name.endswith(".scale")
        and tensor.type.name == "F32"
        and tensor.readable
        and names.split(tensor.name)[0] in blocks
    }


def _block_entry(
    tensor: StoredTensor, encoding: type[BlockEncoding], scales: Mapping[str, StoredTensor]
) -> BlockWeight:
    stored = scales.get(f"{names.split(tensor.name)[0]}.scale")
    experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
    if stored is not None and stored.size in (1, experts):
        values = np.array(stored.raw().view("<f4"), np.float32)
        return BlockWeight(tensor, encoding, Whole(values, divides=False), stored.name)
    # NVFP4 without its tensor-wide scale: 1 (llama.cpp multiplies by nothing).
    one = Whole(np.ones(1, np.float32), divides=False) if encoding.id == "ggml.nvfp4" else None
    return BlockWeight(tensor, encoding, one)


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """Entries that belong together; either may be missing.

    Attributes:
        name: On the first side, or on the second where the first has none.
        a: The first side's.
        b: The second side's.
        other: The name on the second side.
    """

    name: str
    a: Entry | None
    b: Entry | None
    other: str


def matches(a: Entries, b: Entries) -> Iterator[Match]:
    """Yield what belongs together, then what one side has alone, each side in its own order."""
    if a.gguf == b.gguf:
        yield from _alike(a, b)
    elif a.gguf:
        yield from _converted(a, b)
    else:
        for match in _converted(b, a):
            yield Match(match.other, match.b, match.a, match.name)


def _alike(a: Entries, b: Entries) -> Iterator[Match]:
    one, two = a.by_name, b.by_name
    if not one.keys() & two.keys() and not a.gguf:
        one = {names.plain_name(name): entry for name, entry in one.items()}
        two = {names.plain_name(name): entry for name, entry in two.items()}
    for name, entry in one.items():
        yield Match(name, entry, two.get(name), name)
    for name, entry in two.items():
        if name not in one:
            yield Match(name, None, entry, name)


def _converted(gguf: Entries, other: Entries) -> Iterator[Match]:
    """Match a GGUF side (first) with a Hugging Face one."""
    plain = {names.plain_name(name): name for name in reversed(other.by_name)}
    used: set[str] = set()
    for name, entry in gguf.by_name.items():
        found = _counterpart(name, entry, plain, other, used)
        if found is None:
            yield Match(name, entry, None, name)
        else:
            yield Match(name, entry, found[1], found[0])
    for name, entry in other.by_name.items():
        if name not in used:
            yield Match(name, None, entry, name)


def _counterpart(
    name: str, entry: Entry, plain: Mapping[str, str], other: Entries, used: set[str]
) -> tuple[str, Entry] | None:
    for spelled in names.counterparts(name):
        known = plain.get(spelled)
        if known is not None:
            used.add(known)
            return known, other.by_name[known]
    both = names.interleaved(name)
    inverse = names.inverse_of(name)
    if inverse is not None and inverse in plain:
        known = plain[inverse]
        found = other.by_name[known]
        used.add(known)
        return known, replace(found, inverse=True) if isinstance(found, Plain) else found
    if both is not None and both[0] in plain:
        known = plain[both[0]]
        used.add(known)
        return known, _every_second(other.by_name[known], both[1])
    shape: Any = getattr(entry, "shape", ())
    if isinstance(entry, Unread):
        shape = entry.stored.shape
    if len(shape) != 3 or shape[0] > _MOST_EXPERTS:
        return None
    return _stacked(name, shape[0], plain, other, used)


def _every_second(entry: Entry, first: int) -> Entry:
    if isinstance(entry, Unread):
        return entry
    if isinstance(entry, Plain):
        return Plain(entry.stored, entry.encoding, first, 2)
    return Strided(entry, first)


def _codes_of(entry: Entry) -> StoredTensor | None:
    return entry.layer.codes if isinstance(entry, LayerWeight) else None


def _stacked(
    name: str, count: int, plain: Mapping[str, str], other: Entries, used: set[str]
) -> tuple[str, Entry] | None:
    """Return experts that the other side keeps one by one."""
    ways = [names.expert_names(name, expert) for expert in range(count)]
    for spelling in zip(*ways, strict=True):
        known = [plain.get(each) for each in spelling]
        found = [other.by_name[each] for each in known if each is not None]
        if len(found) != count:
            continue
        used.update(each for each in known if each is not None)
        first = str(known[0])
        weights = [entry for entry in found if is_quantized(entry)]
        try:
            stack = Stack.of(weights) if len(weights) == count else None  # type: ignore[arg-type]
        except InputError:  # a file shrank, or is gone
            stack = None
        if stack is not None:
            return first, stack
        plains = [entry for entry in found if isinstance(entry, Plain)]
        floats = PlainStack.of(plains) if len(plains) == count else None
        if floats is not None and floats.size:
            return first, floats
        one = found[0]
        if isinstance(one, Unread):
            return first, one
        stored = one.stored if isinstance(one, Plain) else _codes_of(one)
        if stored is None:
            return None
        return first, Unread(stored, "its experts are kept one by one, and not alike")
    return None
