"""The weights of a GGUF block compared with each other, and with those of the other blocks.

Both hold for architectures that nobody has described here: only what their own blocks show twice
is taken for certain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from qassay.core.container import StoredTensor

Blocks = Mapping[int, Mapping[str, StoredTensor]]
"""The tensors of every block by what follows `blk.N.`."""

_PARTS = (
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_exps.weight",
    "ffn_up_exps.weight",
    "ffn_down_exps.weight",
)
"""Weights that every block of a plain model has if one of them does."""
_FUSED = {"attn_q": "attn_qkv", "attn_k": "attn_qkv", "attn_v": "attn_qkv"}


def blocks_of(tensors: Sequence[StoredTensor], layer: re.Pattern[str]) -> Blocks:
    """Group the tensors by block."""
    blocks: dict[int, dict[str, StoredTensor]] = {}
    for tensor in tensors:
        match = layer.match(tensor.name)
        if match is not None:
            blocks.setdefault(int(match["layer"]), {})[tensor.name[match.end() :]] = tensor
    return blocks


def turned(blocks: Blocks, width: int) -> Iterator[tuple[StoredTensor, int, str]]:
    """Yield matrices that do not meet the model's width where their partners do.

    Every partner reads or writes the hidden state: q, k and v read it, and so does ffn_up, whose
    result ffn_down brings back to it.

    Yields:
        The tensor, the axis that should be `width`, and what its entries are called.
    """
    for parts in blocks.values():
        for stem in ("ffn_up", "ffn_up_exps"):
            up, down = _matrix(parts, stem), _matrix(parts, stem.replace("up", "down"))
            if up is None or down is None or len(up.shape) != len(down.shape):
                continue
            (rows, reads), (writes, inner) = up.shape[-2:], down.shape[-2:]
            if reads != width and writes == width and rows == width:
                yield up, -1, "columns"
            elif writes != width and reads == inner == width and rows in (writes, 2 * writes):
                yield down, -2, "rows"
        heads = [_matrix(parts, f"attn_{one}") for one in "qkv"]
        reading = [one for one in heads if one is not None and len(one.shape) == 2]
        odd = [one for one in reading if one.shape[1] != width]
        if len(odd) == 1 and len(reading) == 3:
            yield odd[0], -1, "columns"


def _matrix(parts: Mapping[str, StoredTensor], name: str) -> StoredTensor | None:
    tensor = parts.get(f"{name}.weight")
    if tensor is None or not tensor.readable or len(tensor.shape) not in (2, 3):
        return None
    return tensor


def lacking(blocks: Blocks, stated: int | None) -> Iterator[tuple[StoredTensor, int, int]]:
    """Yield weights that most blocks have and some lack.

    Args:
        blocks: Of a complete model.
        stated: Number of blocks it should have; others that follow may be of another kind.

    Yields:
        What the missing tensor would be, how many blocks have theirs, and of how many.
    """
    numbers = [number for number in sorted(blocks) if stated is None or number < stated]
    counts = Counter(name for number in numbers for name in _PARTS if name in blocks[number])
    for name, having in counts.items():
        if having == len(numbers) or 2 * having < len(numbers):
            continue
        model = next(blocks[number][name] for number in numbers if name in blocks[number])
        for number in numbers:
            if not _has(blocks[number], name):
                yield replace(model, name=f"blk.{number}.{name}"), having, len(numbers)


def _has(parts: Mapping[str, StoredTensor], name: str) -> bool:
    """Tell whether a block has a weight, or one that could take its place."""
    stem = name.partition(".")[0]
    bare = stem.removesuffix("_exps")
    kin = (f"{bare}.", f"{bare}_exps.", f"{bare}_up", f"{_FUSED.get(stem, stem)}.")
    return any(other.startswith(kin) and other.endswith(".weight") for other in parts)
