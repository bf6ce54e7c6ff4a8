"""Builds safetensors files byte by byte, sound or broken in any field, for tests.

A sound file needs no more than::

    write_safetensors([("a.weight", "F32", [2, 32], bytes(256))])
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """A tensor to write.

    Attributes:
        name: Its key in the header.
        dtype: The word in the header; anything that JSON can hold.
        shape: Row-major; anything that JSON can hold.
        data: Its bytes.
        data_offsets: Written instead of the true `[begin, end]`.
    """

    name: str
    dtype: Any
    shape: Any
    data: bytes
    data_offsets: Any = None


def write_safetensors(
    tensors: Iterable[SafeTensor | tuple[str, str, Sequence[int], bytes]] = (),
    metadata: Any = None,
    *,
    header: bytes | str | Mapping[str, Any] | None = None,
    header_length: int | None = None,
    align: int = 8,
    trailing: bytes = b"",
) -> bytes:
    """Return a safetensors file as bytes.

    Args:
        tensors: `SafeTensor`s, or tuples of its first four attributes. A name may repeat.
        metadata: The value of `__metadata__`; left out when None.
        header: The whole header instead of the one made from the tensors; text and bytes are
            taken as they are, a mapping becomes JSON.
        header_length: Written instead of the true length.
        align: The header is filled up with spaces to a multiple of this.
        trailing: Further bytes at the end.
    """
    entries = [t if isinstance(t, SafeTensor) else SafeTensor(*t) for t in tensors]
    if header is None:
        header = _header(entries, metadata)
    elif isinstance(header, Mapping):
        header = json.dumps(header)
    raw = header.encode("utf-8", "surrogateescape") if isinstance(header, str) else header
    raw += b" " * (-len(raw) % align)
    length = len(raw) if header_length is None else header_length
    data = b"".join(entry.data for entry in entries)
    return length.to_bytes(8, "little") + raw + data + trailing


def _header(entries: list[SafeTensor], metadata: object) -> str:
    members = [] if metadata is None else [f'"__metadata__": {json.dumps(metadata)}']
    begin = 0
    for entry in entries:
        end = begin + len(entry.data)
        offsets = [begin, end] if entry.data_offsets is None else entry.data_offsets
        value = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": offsets}
        # Joined by hand: a dict could not repeat a name.
        members.append(f"{json.dumps(entry.name)}: {json.dumps(value)}")
        begin = end
    return f"{{{', '.join(members)}}}"
