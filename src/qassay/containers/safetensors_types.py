"""The safetensors dtype table: what each word in a header means, and how large its elements are."""

from __future__ import annotations

from qassay.core.container import StoredType
from qassay.core.text import safe

# dtype, weights that are stored together, their bytes (safetensors/src/tensor.rs, enum Dtype)
_DTYPES = {
    name: StoredType("safetensors", name, name, block, size)
    for name, block, size in (
        ("BOOL", 1, 1),
        ("U8", 1, 1),
        ("I8", 1, 1),
        ("F4", 2, 1),
        ("F6_E2M3", 4, 3),
        ("F6_E3M2", 4, 3),
        ("F8_E5M2", 1, 1),
        ("F8_E4M3", 1, 1),
        ("F8_E8M0", 1, 1),
        ("I16", 1, 2),
        ("U16", 1, 2),
        ("F16", 1, 2),
        ("BF16", 1, 2),
        ("I32", 1, 4),
        ("U32", 1, 4),
        ("F32", 1, 4),
        ("F64", 1, 8),
        ("I64", 1, 8),
        ("U64", 1, 8),
        ("C64", 1, 8),
    )
}


def announce(dtype: str, block: int, block_bytes: int) -> None:
    """Make a word known that safetensors itself does not have: that of a declared encoding."""
    _DTYPES.setdefault(dtype, StoredType("safetensors", dtype, dtype, block, block_bytes))


def safetensors_type(dtype: str) -> StoredType:
    """Return the type that the word `dtype` stands for; block and size are 0 when unknown."""
    known = _DTYPES.get(dtype)
    if known is not None:
        return known
    note = f"safetensors dtype {safe(dtype, 40)} is not known to this version of qassay"
    return StoredType("safetensors", dtype, safe(dtype, 40), 0, 0, note)
