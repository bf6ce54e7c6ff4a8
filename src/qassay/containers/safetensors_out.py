"""Writing a safetensors file whose tensor data streams by, or leaving nothing behind.

The header comes first, for sizes follow from dtypes and shapes; then the data, tensor by tensor in
the order of the header and without a gap, in pieces of any length (see `new_file`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from qassay.containers.new_file import TensorFile
from qassay.containers.safetensors import LARGEST_HEADER, METADATA_KEY
from qassay.containers.safetensors_types import safetensors_type
from qassay.core.errors import UsageError
from qassay.core.text import safe

_ALIGNMENT = 8  # of where data begins, as the format's own writer does it


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A tensor to be written.

    Attributes:
        name: Unicode text.
        dtype: A word of the format: `F16`, `I32`.
        shape: Row-major.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data.

        Raises:
            UsageError: The dtype is not known, or the shape ends inside a byte.
        """
        kind, total = safetensors_type(self.dtype), 1
        for dim in self.shape:
            total *= dim
        if not kind.block or total * kind.block_bytes % kind.block:
            raise UsageError(
                f"{safe(self.name)} cannot be written",
                expected="a known dtype and whole bytes",
                found=f"{kind.name} {list(self.shape)}",
            )
        return total * kind.block_bytes // kind.block


def header(tensors: Sequence[NewTensor], metadata: Mapping[str, str]) -> bytes:
    """Return the length and the JSON of a header, padded with spaces to a multiple of 8.

    Raises:
        UsageError: A name is no Unicode text or stands twice, or the header grows beyond what the
            format allows.
    """
    entries: dict[str, object] = {METADATA_KEY: dict(metadata)} if metadata else {}
    offset = 0
    for tensor in tensors:
        if tensor.name in entries or tensor.name == METADATA_KEY:
            raise UsageError(f"two tensors are called {safe(tensor.name)}")
        end = offset + tensor.nbytes
        entries[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    try:
        text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError(
            "a name in the source is no Unicode text, which the format asks for"
        ) from None
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > LARGEST_HEADER:
        raise UsageError(
            "the header is too large", expected=f"{LARGEST_HEADER} bytes", found=str(len(text))
        )
    return len(text).to_bytes(8, "little") + text


class SafetensorsWriter(TensorFile):
    """A safetensors file being written; a context manager that commits, or removes what it wrote.

    Args:
        path: The destination, symbolic links resolved.
        tensors: What will be written, in this order.
        metadata: `__metadata__`.
        overwrite: Whether a file of that name is replaced.

    Every method raises `UsageError` when the file cannot be written, a full disk included.
    """

    def __init__(
        self,
        path: Path,
        tensors: Sequence[NewTensor],
        metadata: Mapping[str, str] | None = None,
        *,
        overwrite: bool = False,
    ) -> None:
        sizes = [tensor.nbytes for tensor in tensors]
        super().__init__(path, [header(tensors, metadata or {})], sizes, overwrite=overwrite)
