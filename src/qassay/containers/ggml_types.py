"""The ggml type table: what each type number in a GGUF file means, and how large its blocks are."""

from __future__ import annotations

from functools import cache

from qassay.core.container import StoredType

_ACTIVATION = "{name} holds activations while a model runs and is no file type"
_RETIRED = "retired type {id} ({name}): requantize from the source"

# (id, name, weights a block, bytes a block, note). Sources: ggml.h, enum ggml_type, and the
# static_asserts on the block structs in ggml-common.h (ggml d99724f2b141). The repacked types
# were retired in llama.cpp b4300 or so; their blocks were those of Q4_0 and IQ4_NL. Q4_2 and Q4_3
# were gone before GGUF existed.
_TABLE: tuple[tuple[int, str, int, int, str], ...] = (
    (0, "F32", 1, 4, ""),
    (1, "F16", 1, 2, ""),
    (2, "Q4_0", 32, 18, ""),
    (3, "Q4_1", 32, 20, ""),
    (4, "Q4_2", 0, 0, _RETIRED),
    (5, "Q4_3", 0, 0, _RETIRED),
    (6, "Q5_0", 32, 22, ""),
    (7, "Q5_1", 32, 24, ""),
    (8, "Q8_0", 32, 34, ""),
    (9, "Q8_1", 32, 36, _ACTIVATION),
    (10, "Q2_K", 256, 84, ""),
    (11, "Q3_K", 256, 110, ""),
    (12, "Q4_K", 256, 144, ""),
    (13, "Q5_K", 256, 176, ""),
    (14, "Q6_K", 256, 210, ""),
    (15, "Q8_K", 256, 292, _ACTIVATION),
    (16, "IQ2_XXS", 256, 66, ""),
    (17, "IQ2_XS", 256, 74, ""),
    (18, "IQ3_XXS", 256, 98, ""),
    (19, "IQ1_S", 256, 50, ""),
    (20, "IQ4_NL", 32, 18, ""),
    (21, "IQ3_S", 256, 110, ""),
    (22, "IQ2_S", 256, 82, ""),
    (23, "IQ4_XS", 256, 136, ""),
    (24, "I8", 1, 1, ""),
    (25, "I16", 1, 2, ""),
    (26, "I32", 1, 4, ""),
    (27, "I64", 1, 8, ""),
    (28, "F64", 1, 8, ""),
    (29, "IQ1_M", 256, 56, ""),
    (30, "BF16", 1, 2, ""),
    (31, "Q4_0_4_4", 32, 18, _RETIRED),
    (32, "Q4_0_4_8", 32, 18, _RETIRED),
    (33, "Q4_0_8_8", 32, 18, _RETIRED),
    (34, "TQ1_0", 256, 54, ""),
    (35, "TQ2_0", 256, 66, ""),
    (36, "IQ4_NL_4_4", 32, 18, _RETIRED),
    (37, "IQ4_NL_4_8", 32, 18, _RETIRED),
    (38, "IQ4_NL_8_8", 32, 18, _RETIRED),
    (39, "MXFP4", 32, 17, ""),
    (40, "NVFP4", 64, 36, ""),
    (41, "Q1_0", 128, 18, ""),
    (42, "Q2_0", 64, 18, ""),
)

GGML_TYPES: dict[int, StoredType] = {
    number: StoredType("ggml", number, name, block, size, note.format(id=number, name=name))
    for number, name, block, size, note in _TABLE
}
"""Every number that ggml has given out, retired ones and activation types included."""


def announce(number: int, name: str, block: int, block_bytes: int) -> None:
    """Make a number known that ggml itself has not given out: that of a declared encoding."""
    GGML_TYPES.setdefault(number, StoredType("ggml", number, name, block, block_bytes))
    ggml_type.cache_clear()


@cache
def ggml_type(number: int) -> StoredType:
    """Return the type that `number` stands for; block and size are 0 when it is unknown.

    `note` says why tensors of a retired, activation-only or unknown type cannot be used.
    """
    known = GGML_TYPES.get(number)
    if known is not None:
        return known
    return StoredType(
        "ggml",
        number,
        f"type {number}",
        block=0,
        block_bytes=0,
        note=f"ggml type {number} is not known to this version of qassay",
    )
