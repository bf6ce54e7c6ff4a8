"""Files with many planted faults, their sound twins, and the list of what was planted where.

    planted = build_planted(folder)
    for pair in planted.pairs:
        check(pair.clean)    # nothing above info
        check(pair.broken)   # exactly pair.faults

Expected places are worked out here, from the block layouts of ggml-common.h as tabled below and
from the file writers' own maps; nothing of what qassay knows about layouts is used for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from qassay.core.finding import Severity
from qassay.core.source import Bytes
from qassay.encodings.registry import by_id
from qassay.testing.content import healthy
from qassay.testing.gguf_writer import GgufTensor, build_gguf
from qassay.testing.safetensors_writer import SafeTensor, write_safetensors

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault, and where a report has to say that it is.

    Attributes:
        code: The rule that finds it.
        severity: How it is graded.
        tensor: The tensor's name; None for a fault of the file.
        expert: Index of the expert in a tensor of experts.
        field: The stored field, or the metadata key of a Q110.
        row: Row, inside the expert.
        column: Column of the block's first weight, or of the value.
        block: Index of the block in the whole tensor.
        byte_offset: Absolute offset in the file.
    """

    code: str
    severity: Severity = ERROR
    tensor: str | None = None
    expert: int | None = None
    field: str | None = None
    row: int | None = None
    column: int | None = None
    block: int | None = None
    byte_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """A sound file (or folder), the same with faults, and these."""

    name: str
    clean: Path
    broken: Path
    faults: tuple[Fault, ...]


@dataclass(frozen=True, slots=True)
class Planted:
    """All files that were built."""

    pairs: tuple[Pair, ...]

    @property
    def faults(self) -> list[Fault]:
        """The faults of all files."""
        return [fault for pair in self.pairs for fault in pair.faults]


Fill = tuple[tuple[int, int, int], ...]
"""Runs of one byte in a block: (offset, length, byte)."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """A ggml type as `ggml-common.h` has it.

    Attributes:
        name: Last part of qassay's id, for the healthy content.
        number: ggml type number.
        block: Weights a block.
        nbytes: Bytes a block.
        scales: Byte offset of each scale field that makes a block's weights vanish when zero.
        offsets: Byte offset of each field that is only added.
        unsigned: Fields in which a negative number is impossible.
        zeros: What a block of zeros looks like.
        full: Codes at the upper end of the range.
    """

    name: str
    number: int
    block: int
    nbytes: int
    scales: dict[str, int]
    unsigned: tuple[str, ...]
    zeros: Fill
    full: Fill
    offsets: dict[str, int] = field(default_factory=dict)


_D, _BOTH = {"d": 0}, {"d": 0, "dmin": 2}
_LAYOUTS = (
    _Layout("q4_0", 2, 32, 18, _D, (), ((2, 16, 0x88),), ((2, 16, 0xFF),)),
    _Layout("q4_1", 3, 32, 20, _D, ("d",), (), ((4, 16, 0xFF),), {"m": 2}),
    _Layout("q5_0", 6, 32, 22, _D, (), ((2, 4, 0xFF),), ((2, 20, 0xFF),)),
    _Layout("q5_1", 7, 32, 24, _D, ("d",), (), ((4, 20, 0xFF),), {"m": 2}),
    _Layout("q8_0", 8, 32, 34, _D, ("d",), (), ((2, 32, 0x7F),)),
    _Layout("q2_k", 10, 256, 84, {"d": 80, "dmin": 82}, ("d", "dmin"), (), ((16, 64, 0xFF),)),
    _Layout("q3_k", 11, 256, 110, {"d": 108}, (), ((0, 32, 0xFF),), ((0, 96, 0xFF),)),
    _Layout("q4_k", 12, 256, 144, _BOTH, ("d", "dmin"), (), ((16, 128, 0xFF),)),
    _Layout("q5_k", 13, 256, 176, _BOTH, ("d", "dmin"), (), ((16, 160, 0xFF),)),
    _Layout("q6_k", 14, 256, 210, {"d": 208}, (), ((128, 64, 0xAA),), ((0, 192, 0xFF),)),
    _Layout("iq4_nl", 20, 32, 18, _D, (), ((2, 16, 0x88),), ((2, 16, 0xFF),)),
    _Layout("iq4_xs", 23, 256, 136, _D, (), ((8, 128, 0x88),), ((8, 128, 0xFF),)),
)
_MXFP4 = _Layout("mxfp4", 39, 32, 17, {}, (), (), ((1, 16, 0x77),))

_F16 = {"nan": 0x7E00, "signalling nan": 0x7C01, "inf": 0x7C00, "-inf": 0xFC00}
_ROWS, _PER_ROW = 8, 4
_DEAD_ROW = 6
_SPOTS = (1, 2, 5, 7, 9, 11, 12, 14, 16, 18, 19, 21, 23, 28, 30, 31)
"""Blocks for faults, none of them in the dead row."""


@dataclass(slots=True)
class _Tensor:
    """A tensor on its way: healthy bytes, broken bytes, and faults relative to its first byte."""

    name: str
    label: int | str
    shape: tuple[int, ...]
    clean: Bytes
    unit_bytes: int
    broken: Bytes = field(init=False)
    faults: list[Fault] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.broken = self.clean.copy()

    def plant(self, unit: int, into: int, bits: int, width: int) -> int:
        """Write `bits` at byte `into` of a block or value; return the byte offset."""
        at = unit * self.unit_bytes + into
        self.broken[at : at + width] = np.frombuffer(bits.to_bytes(width, "little"), np.uint8)
        return at

    def fill(self, unit: int, runs: Fill) -> int:
        """Write runs of bytes into a block; return the block's byte offset."""
        at = unit * self.unit_bytes
        for offset, length, byte in runs:
            self.broken[at + offset : at + offset + length] = byte
        return at

    def moved(self, start: int) -> Iterator[Fault]:
        """Yield the faults of a tensor that begins at byte `start` of its file."""
        for fault in self.faults:
            assert fault.byte_offset is not None  # noqa: S101  (set by everything in here)
            yield _at(fault, fault.byte_offset + start)


def _at(fault: Fault, byte_offset: int) -> Fault:
    parts = {name: getattr(fault, name) for name in Fault.__slots__}
    return Fault(**{**parts, "byte_offset": byte_offset})


def _block_tensor(layout: _Layout, seed: int) -> _Tensor:
    """Return a matrix of one block type with every fault that the type can have."""
    units = _ROWS * _PER_ROW
    encoding = by_id(f"ggml.{layout.name}")
    data = healthy(encoding, units, "random", seed)
    name = f"{layout.name}.weight"
    tensor = _Tensor(name, layout.number, (_ROWS, _PER_ROW * layout.block), data, layout.nbytes)
    spots = iter(_SPOTS)

    def add(code: str, severity: Severity, block: int, at: int, stored: str | None = None) -> None:
        row, place = divmod(block, _PER_ROW)
        column = place * layout.block
        tensor.faults.append(Fault(code, severity, name, None, stored, row, column, block, at))

    for stored, into in {**layout.scales, **layout.offsets}.items():
        for bits in _F16.values():
            block = next(spots)
            add("Q201", ERROR, block, tensor.plant(block, into, bits, 2), stored)
    for stored, into in layout.scales.items():
        block = next(spots)
        add("Q202", WARNING, block, tensor.plant(block, into, 0, 2), stored)
    for stored in layout.unsigned:
        block = next(spots)
        into = layout.scales[stored]
        add("Q205", WARNING, block, tensor.plant(block, into, 0xA123, 2), stored)
    if layout is _MXFP4:
        for bits in (255, 254, 253):
            block = next(spots)
            add("Q201", ERROR, block, tensor.plant(block, 0, bits, 1), "e")
    if layout.name == "q8_0":
        block = next(spots)
        tensor.plant(block, 2 + 17, 0x80, 1)
        add("Q303", INFO, block, block * layout.nbytes + 2, "qs")
    block = next(spots)
    add("Q302", INFO, block, tensor.fill(block, layout.full))
    for block in range(_DEAD_ROW * _PER_ROW, (_DEAD_ROW + 1) * _PER_ROW):
        at = tensor.fill(block, ((0, layout.nbytes, 0), *layout.zeros))
        add("Q301", INFO, block, at)
    at = _DEAD_ROW * _PER_ROW * layout.nbytes
    tensor.faults.append(Fault("Q402", INFO, name, row=_DEAD_ROW, byte_offset=at))
    return tensor


def _expert_tensor(layout: _Layout, seed: int) -> _Tensor:
    """Return `[3 experts, 2 rows, 2 blocks]` with one fault each in the last two experts."""
    name = f"blk.0.ffn_{layout.name}_exps.weight"
    data = healthy(by_id(f"ggml.{layout.name}"), 12, "random", seed)
    tensor = _Tensor(name, layout.number, (3, 2, 2 * layout.block), data, layout.nbytes)
    into = layout.scales["d"]
    at = tensor.plant(7, into, _F16["nan"], 2)
    tensor.faults.append(Fault("Q201", ERROR, name, 1, "d", 1, layout.block, 7, at))
    at = tensor.plant(8, into, _F16["-inf"], 2)
    tensor.faults.append(Fault("Q201", ERROR, name, 2, "d", 0, 0, 8, at))
    at = tensor.plant(11, into, 0, 2)
    tensor.faults.append(Fault("Q202", WARNING, name, 2, "d", 1, layout.block, 11, at))
    return tensor


# Bytes a value, then bit patterns that are no number.
_FLOATS: dict[str, tuple[int, tuple[int, ...]]] = {
    "f64": (8, (0x7FF8 << 48, 0x7FF0 << 48, 0xFFF0 << 48)),
    "f32": (4, (0x7FC00000, 0x7F800001, 0x7F800000, 0xFF800000)),
    "f16": (2, (0x7E00, 0xFC01, 0x7C00, 0xFC00)),
    "bf16": (2, (0x7FC0, 0xFF81, 0x7F80, 0xFF80)),
    "f8_e4m3": (1, (0x7F, 0xFF)),
    "f8_e5m2": (1, (0x7E, 0x7C, 0xFC)),
}


def _float_tensor(kind: str, label: int | str, shape: tuple[int, ...], seed: int) -> _Tensor:
    """Return a float tensor with NaN, infinities and a row of zeros; three axes are experts."""
    width, patterns = _FLOATS[kind]
    experts = len(shape) == 3
    name = f"{kind}.{'experts' if experts else 'weight'}"
    columns, rows = shape[-1], shape[-2]
    data = healthy(by_id(kind), math.prod(shape), "random", seed)
    tensor = _Tensor(name, label, shape, data, width)
    for count, bits in enumerate(patterns):
        index = (2 * count + 1) * columns + 3 * count + 1
        row, column = divmod(index, columns)
        at = tensor.plant(index, 0, bits, width)
        expert = row // rows if experts else None
        tensor.faults.append(Fault("Q401", ERROR, name, expert, None, row % rows, column, None, at))
    row = shape[0] * rows - 1 if experts else rows - 2
    at = tensor.fill(row * columns, ((0, columns * width, 0),))
    expert = row // rows if experts else None
    tensor.faults.append(Fault("Q402", INFO, name, expert, row=row % rows, byte_offset=at))
    return tensor


def _bool_tensor() -> _Tensor:
    tensor = _Tensor("mask", "BOOL", (4, 8), healthy(by_id("bool"), 32), 1)
    at = tensor.plant(19, 0, 2, 1)
    tensor.faults.append(Fault("Q303", WARNING, "mask", None, None, 2, 3, None, at))
    return tensor


_GGUF_FLOATS = {"f64": 28, "f32": 0, "f16": 1, "bf16": 30}
_SAFE_FLOATS = ("f64", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2")


def _gguf_tensors() -> list[_Tensor]:
    every = (*_LAYOUTS, _MXFP4)
    tensors = [_block_tensor(layout, seed) for seed, layout in enumerate(every)]
    experts = [layout for layout in _LAYOUTS if layout.name in {"q4_0", "q4_k", "q6_k", "q8_0"}]
    tensors += [_expert_tensor(layout, 50 + seed) for seed, layout in enumerate(experts)]
    floats = enumerate(_GGUF_FLOATS.items())
    tensors += [_float_tensor(kind, number, (11, 16), seed) for seed, (kind, number) in floats]
    return tensors


def _gguf(tensors: Sequence[_Tensor], folder: Path) -> Pair:
    paths = []
    offsets: dict[str, int] = {}
    for sort in ("clean", "broken"):
        entries = [
            GgufTensor(t.name, int(t.label), t.shape[::-1], getattr(t, sort).tobytes())
            for t in tensors
        ]
        built = build_gguf({"general.architecture": "planted"}, entries)
        offsets = built.fields
        paths.append(folder / f"contents-{sort}.gguf")
        paths[-1].write_bytes(built.data)
    faults = [f for t in tensors for f in t.moved(offsets[f"tensor:{t.name}:data"])]
    return Pair("gguf contents", paths[0], paths[1], tuple(faults))


def _safetensors(tensors: Sequence[_Tensor], folder: Path) -> Pair:
    paths = []
    start = 0
    for sort in ("clean", "broken"):
        parts = [getattr(t, sort).tobytes() for t in tensors]
        data = write_safetensors(
            SafeTensor(t.name, t.label, list(t.shape), part)
            for t, part in zip(tensors, parts, strict=True)
        )
        start = len(data) - sum(map(len, parts))  # the data is what ends the file
        paths.append(folder / f"contents-{sort}.safetensors")
        paths[-1].write_bytes(data)
    faults: list[Fault] = []
    for tensor in tensors:
        faults.extend(tensor.moved(start))
        start += tensor.clean.size
    return Pair("safetensors contents", paths[0], paths[1], tuple(faults))


def build_planted(folder: Path) -> Planted:
    """Write all files into `folder`, which must exist, and return what they are.

    One GGUF and one safetensors file hold the faults of contents; each structural fault has a
    small file of its own.
    """
    from qassay.testing.planted_structure import structural_pairs  # noqa: PLC0415  (uses Fault)

    matrices = [
        _float_tensor(kind, kind.upper(), (11, 16), seed) for seed, kind in enumerate(_SAFE_FLOATS)
    ]
    experts = [_float_tensor(kind, kind.upper(), (5, 3, 16), 9) for kind in ("bf16", "f8_e4m3")]
    pairs = (
        _gguf(_gguf_tensors(), folder),
        _safetensors([*matrices, *experts, _bool_tensor()], folder),
    )
    return Planted((*pairs, *structural_pairs(folder)))
