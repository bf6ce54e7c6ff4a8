"""Writing a GGUF file (version 3) whose tensor data streams by, or leaving nothing behind.

The header comes first, for sizes follow from types and shapes; then the data, tensor by tensor in
the order of the header, in pieces of any length (see `new_file`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qassay.containers.gguf import DEFAULT_ALIGNMENT, MAGIC
from qassay.containers.gguf_metadata import ARRAY, STRING, UINT32
from qassay.containers.new_file import TensorFile
from qassay.core.container import StoredType

VERSION = 3


@dataclass(frozen=True, slots=True)
class Pair:
    """A metadata pair.

    Attributes:
        key: Text; what was no UTF-8 in the file it comes from stands as surrogate escapes.
        type_number: GGUF's number of the value type.
        value: The bytes that follow the type number.
    """

    key: str
    type_number: int
    value: bytes | memoryview

    @classmethod
    def of_text(cls, key: str, text: str) -> Pair:
        """Return a pair with a string."""
        return cls(key, STRING, _string(text))

    @classmethod
    def of_uint32(cls, key: str, number: int) -> Pair:
        """Return a pair with an unsigned 32-bit number."""
        return cls(key, UINT32, struct.pack("<I", number))

    @classmethod
    def of_texts(cls, key: str, texts: Sequence[str]) -> Pair:
        """Return a pair with an array of strings."""
        head = struct.pack("<IQ", STRING, len(texts))
        return cls(key, ARRAY, head + b"".join(_string(text) for text in texts))


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written.

    Attributes:
        name: Text, surrogate escapes as in `Pair`.
        type: A ggml type.
        shape: Row-major, `[N, K]`; rows are whole blocks.
    """

    name: str
    type: StoredType
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data, padding left out."""
        total = 1
        for dim in self.shape:
            total *= dim
        return total // self.type.block * self.type.block_bytes


def _string(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _padding(length: int) -> int:
    return -length % DEFAULT_ALIGNMENT


def header(pairs: Sequence[Pair], tensors: Sequence[NewTensor]) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a header, padded up to where data begins; large values uncopied."""
    length = 0
    for piece in _header_fields(pairs, tensors):
        length += len(piece)
        yield piece
    yield bytes(_padding(length))


def _header_fields(
    pairs: Sequence[Pair], tensors: Sequence[NewTensor]
) -> Iterator[bytes | memoryview]:
    yield MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(pairs))
    for pair in pairs:
        yield _string(pair.key) + struct.pack("<I", pair.type_number)
        yield pair.value
    offset = 0
    for tensor in tensors:
        number = int(tensor.type.label)
        axes = tensor.shape[::-1]
        yield _string(tensor.name) + struct.pack(
            f"<I{len(axes)}QIQ", len(axes), *axes, number, offset
        )
        offset += tensor.nbytes + _padding(tensor.nbytes)


class GgufWriter(TensorFile):
    """A GGUF file being written; a context manager that commits, or removes what it wrote.

    Args:
        path: The destination, symbolic links resolved.
        pairs: Metadata, without `general.alignment`: it is the standard one.
        tensors: What will be written, in this order.
        overwrite: Whether a file of that name is replaced.

    Every method raises `UsageError` when the file cannot be written, a full disk included.
    """

    def __init__(
        self,
        path: Path,
        pairs: Sequence[Pair],
        tensors: Sequence[NewTensor],
        *,
        overwrite: bool = False,
    ) -> None:
        super().__init__(
            path,
            list(header(pairs, tensors)),
            [tensor.nbytes for tensor in tensors],
            alignment=DEFAULT_ALIGNMENT,
            overwrite=overwrite,
        )
