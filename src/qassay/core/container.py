"""What a container yields: tensors as stored, metadata, and what is structurally wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qassay.core.source import Bytes, Source


@dataclass(frozen=True, slots=True)
class StoredType:
    """How a container labels a tensor's encoding: `("ggml", 8)`, `("safetensors", "BF16")`.

    Attributes:
        family: The label's vocabulary: `ggml` or `safetensors`.
        label: The number or word in the file.
        name: The label for people (`Q8_0`, `BF16`, `type 99`).
        block: Weights stored together; 0 when the type is unknown.
        block_bytes: Bytes a block; 0 when unknown. Sub-byte types have `block` > 1.
        note: Why tensors of this type cannot be used ("retired, requantize"), or "".
    """

    family: str
    label: int | str
    name: str
    block: int
    block_bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor as its container lists it.

    Attributes:
        name: As in the file, unescaped.
        type: The container's label.
        shape: Row-major, slowest axis first; `[N, K]` for a Linear, `[experts, N, K]` for a MoE.
        source: Where its bytes are.
        offset: Absolute byte offset in `source`.
        nbytes: Size that shape and type imply; None when the type is unknown.
        path: The file, as reports name it.
        readable: Whether `offset` and `nbytes` lie inside the file, and the shape is usable.
        part_of: Why the tensor cannot be judged by itself (it holds packed codes), or "".
    """

    name: str
    type: StoredType
    shape: tuple[int, ...]
    source: Source
    offset: int
    nbytes: int | None
    path: str
    readable: bool = True
    part_of: str = ""

    @property
    def size(self) -> int:
        """Number of weights."""
        total = 1
        for dim in self.shape:
            total *= dim
        return total

    def raw(self) -> Bytes:
        """Return the stored bytes as a read-only uint8 array `[nbytes]`; only if `readable`."""
        return self.source.read(self.offset, self.nbytes or 0)


@dataclass(frozen=True, slots=True)
class Defect:
    """Something structurally wrong, found by a container while reading; a Q0 rule words it.

    Attributes:
        code: The rule that reports it (`Q001`).
        message: One sentence with the numbers.
        path: The file, as reports name it.
        tensor: The tensor concerned, if one is.
        byte_offset: Absolute offset in the file of the wrong thing.
        expected: What a sound file holds there.
        found: What this one holds.
        help: What to do about this very defect; "" leaves it to the rule.
        minor: Graded one step below the rule's own severity (legal, but unusual).
        data: Further numbers.
    """

    code: str
    message: str
    path: str
    tensor: str | None = None
    byte_offset: int | None = None
    expected: str | int | None = None
    found: str | int | None = None
    help: str = ""
    minor: bool = False
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that was not read, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class Container:
    """Everything one reading of a file or folder gave.

    Attributes:
        path: As reports name it.
        format: `gguf`, `safetensors` or `folder`.
        metadata: Keys and values; GGUF arrays decode when they are looked at.
        tensors: In file order, folders in file-name order. Names may repeat in a broken file.
        defects: What is wrong.
        skipped: Files (or parts) of the input that could not be read.
        sources: Every open file.
        extra: Facts for rules and `inspect` that are no metadata (format version, alignment).
    """

    path: str
    format: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    tensors: list[StoredTensor] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all files together."""
        return sum(source.size for source in self.sources)

    def close(self) -> None:
        """Close every file."""
        for source in self.sources:
            source.close()
