"""What a GGUF file calls itself, set against the types of its tensors (for Q106)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from qassay.core.container import Container, StoredTensor
from qassay.core.text import safe

_FILE_TYPES = {
    2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
}  # fmt: skip
"""`enum llama_ftype`, those whose recipe is mostly one type."""
_GUESSED = 1024
_NAMES = re.compile(
    r"(?<![A-Za-z0-9])(Q(?:4_0|4_1|5_0|5_1|8_0|2_K|6_K|3_K_[SML]|[45]_K_[SM]))(?![A-Za-z0-9_])",
    re.I,
)
_MIXED = re.compile(r"(?<![A-Za-z])(?:UD|dynamic|mix(?:ed)?)(?![A-Za-z])", re.I)
_MATRIX = re.compile(r"blk\.\d{1,9}\..*\.weight")
_FEWEST = 4


def of_gguf(container: Container) -> Iterator[tuple[str, str, str, float, int, StoredTensor]]:
    """Yield where a file calls itself what less than a third of its weights are.

    Only matrices of the blocks count, and those whose rows divide into the blocks of the type
    that the label means: quantizers fall back to another type for the rest.

    Yields:
        What says so, the label, the type that most weights have, its share, how many tensors
        were looked at, the first of another type.
    """
    if container.format != "gguf":
        return
    for said, label in _labels(container):
        wanted = re.sub(r"_[SML]$", "", label)
        tensors = [
            tensor
            for tensor in container.tensors
            if _MATRIX.fullmatch(tensor.name)
            and len(tensor.shape) in (2, 3)
            and tensor.type.block > 1
            and tensor.shape[-1] % (256 if wanted.endswith("_K") else 32) == 0
        ]
        weights: Counter[str] = Counter()
        for tensor in tensors:
            weights[tensor.type.name] += tensor.size
        total = weights.total()
        if len(tensors) < _FEWEST or not total or 3 * weights[wanted] >= total:
            continue
        most, count = weights.most_common(1)[0]
        if most == wanted:
            continue
        first = next(tensor for tensor in tensors if tensor.type.name != wanted)
        yield said, label, most, count / total, len(tensors), first


def _labels(container: Container) -> Iterator[tuple[str, str]]:
    """Yield what names the file: its metadata, else its own name."""
    number = container.metadata.get("general.file_type")
    if type(number) is int and not number & _GUESSED and number in _FILE_TYPES:
        yield f"general.file_type is {number} ({_FILE_TYPES[number]})", _FILE_TYPES[number]
        return
    name = container.path.replace("\\", "/").rpartition("/")[2]
    found = _NAMES.findall(name)
    if len(found) == 1 and not _MIXED.search(name):
        yield f"the file is called '{safe(name, 80)}'", found[0].upper()
