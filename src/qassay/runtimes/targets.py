"""What `--to` means: which encoding each tensor would get.

A word is the id of an encoding (`ggml.q8_0`), the last part of one (`Q8_0`), a recipe of
llama-quantize (`Q4_K_M`: a set of types by the role of a tensor), or a way of storing groups that
a compiler makes up itself (`sophgo.w4bf16`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from qassay.core.container import StoredTensor
from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.encodings.base import BlockEncoding, Encoding, Ggml, PlainEncoding
from qassay.encodings.registry import all_encodings, by_id
from qassay.runtimes.targets_recipes import RECIPES, Layout, keeps_float

FALLBACKS: Mapping[str, str] = {
    "ggml.q2_k": "ggml.q4_0",
    "ggml.q3_k": "ggml.q4_0",
    "ggml.iq4_xs": "ggml.iq4_nl",
    "ggml.q4_k": "ggml.q5_0",
    "ggml.q5_k": "ggml.q5_1",
    "ggml.q6_k": "ggml.q8_0",
}
"""What llama-quantize takes for rows that are no whole number of 256-weight blocks.

llama.cpp 007dbbf3, src/llama-quant.cpp, tensor_type_fallback; for other types it stops. Older
versions took IQ4_NL for Q2_K and Q3_K. Both `check --to` and `quantize` go by this table.
"""

DEFAULT_GROUP = 64
"""`--q_group_size` of TPU-MLIR's llm_convert where none is given."""


@dataclass(frozen=True, slots=True)
class GroupFormat:
    """Groups along a row, coded from their smallest to their largest weight, zero clipped.

    `s = (max - min) / levels`, `z = clip(-round(min / s), 0, levels)`,
    `q = clip(round(w / s) + z, 0, levels)`; the range is not extended to hold zero.

    Attributes:
        id: `sophgo.w4bf16`.
        levels: Largest code.
        size: Weights a group.
        sources: Where that was read.
    """

    id: str
    levels: int
    size: int
    sources: tuple[str, ...]


_TPU_MLIR = ("tpu-mlir 05452d0, lib/Dialect/Tpu/Canonicalize/A16MatMul.cpp, A16MatMulAdjust",)
_GROUPED = {f"sophgo.w{bits}{half}": (1 << bits) - 1 for bits in (4, 8) for half in ("bf16", "f16")}


@dataclass(frozen=True, slots=True)
class Choice:
    """What one word of `--to` means for one tensor.

    Attributes:
        word: As reports spell it.
        wanted: Id of what the word means here; "" where the tensor stays as it is.
        encoding: What would be written; None for groups and where the tensor stays as it is.
        group: How groups would be stored.
        fell_back: Whether `encoding` stands in for `wanted`, which the rows do not fit.
        stops: Whether llama-quantize gives up on these rows instead.
        reason: Why the word does not count for the tensor, which stays as it is (or is widened
            to F32, which is `encoding` then); "" where it counts.
    """

    word: str
    wanted: str = ""
    encoding: type[Encoding] | None = None
    group: GroupFormat | None = None
    fell_back: bool = False
    stops: bool = False
    reason: str = ""

    @property
    def id(self) -> str:
        """Id of what would be written, "" for nothing new."""
        if self.group is not None:
            return self.group.id
        return self.encoding.id if self.encoding is not None else ""


@dataclass(frozen=True, slots=True)
class Target:
    """One word of `--to`.

    Attributes:
        word: As reports spell it: an id, or the recipe's name.
        encoding: The encoding, where the word is one.
        group: The way of storing groups, where the word is one.
    """

    word: str
    encoding: type[Encoding] | None = None
    group: GroupFormat | None = None

    def choose(self, tensor: StoredTensor, source: type[Encoding], layout: Layout) -> Choice:
        """Return what the word means for a float tensor of a model with this layout."""
        if source.kind != "float":
            return Choice(self.word, reason="not floats")
        return self.meant(tensor, layout)

    def meant(self, tensor: StoredTensor, layout: Layout) -> Choice:
        """Return the same, whatever the tensor holds."""
        plain = self.encoding is not None and issubclass(self.encoding, PlainEncoding)
        reason = "" if plain else keeps_float(tensor.name, tensor.shape)
        if tensor.size == 0:
            reason = "empty"
        if reason:
            return Choice(self.word, reason=reason)
        if self.group is not None:
            return Choice(self.word, self.group.id, group=self.group)
        wanted = self.encoding or by_id(RECIPES[self.word](tensor.name, tensor.shape, layout))
        return fitting(self.word, wanted, tensor.shape)


class Chooser(Protocol):
    """Anything that tells what tensors are meant to become: a `Target`, a plan of `quantize`."""

    def choose(self, tensor: StoredTensor, source: type[Encoding], layout: Layout) -> Choice:
        """Return what becomes of a tensor of encoding `source`."""


def fitting(word: str, wanted: type[Encoding], shape: Sequence[int]) -> Choice:
    """Return the choice of `wanted`, or of what llama-quantize takes where rows do not fit it."""
    row = shape[-1] if shape else 1
    if row % wanted.block == 0:
        return Choice(word, wanted.id, wanted)
    name = FALLBACKS.get(wanted.id)
    stand_in = by_id(name) if name is not None else None
    if stand_in is None or row % stand_in.block:
        return Choice(word, wanted.id, by_id("f16"), fell_back=True, stops=stand_in is None)
    return Choice(word, wanted.id, stand_in, fell_back=True)


def target(word: str, group_size: int | None = None) -> Target:
    """Return what a word of `--to` means.

    Raises:
        UsageError: It means nothing that can be written.
    """
    name = word.strip()
    if name.upper() in RECIPES:
        return Target(name.upper())
    grouped = [known for known in _GROUPED if name.lower() in (known, known.partition(".")[2])]
    if grouped:
        size = DEFAULT_GROUP if group_size is None else group_size
        return Target(
            grouped[0], group=GroupFormat(grouped[0], _GROUPED[grouped[0]], size, _TPU_MLIR)
        )
    try:
        encoding = by_id(name)
    except KeyError:
        encoding = None
    if encoding is None or not _can_be_meant(encoding):
        raise UsageError(
            f"--to: there is no target called {safe(name, 40)}",
            expected=", ".join(known_targets()),
            hint="`qassay encodings` describes the types",
        )
    return Target(encoding.id, encoding)


def known_targets() -> list[str]:
    """Return every word that `--to` takes, encodings by id."""
    every = all_encodings().values()
    return [*(found.id for found in every if _can_be_meant(found)), *RECIPES, *_GROUPED]


def _can_be_meant(encoding: type[Encoding]) -> bool:
    """Tell whether it can be foretold what becomes of floats in an encoding."""
    if encoding.kind in ("integer", "layer"):
        return False
    # No engine here writes 8-bit scales of sub-blocks (NVFP4), and they are not f16 either.
    return not (issubclass(encoding, BlockEncoding) and encoding.sub_fields)


def parse_targets(words: Iterable[str], group_size: int | None = None) -> tuple[Target, ...]:
    """Return what the words of `--to`, each with commas in it or not, mean; each once.

    Raises:
        UsageError: One of them means nothing.
    """
    if group_size is not None and group_size < 1:
        raise UsageError(
            "--group-size is out of range", expected="at least 1", found=str(group_size)
        )
    parts = [part for word in words for part in word.split(",") if part.strip()]
    found = {chosen.word: chosen for chosen in (target(part, group_size) for part in parts)}
    return tuple(found.values())


def choices_for(
    targets: Sequence[Chooser], tensors: Sequence[tuple[StoredTensor, type[Encoding]]]
) -> list[tuple[Choice, ...]]:
    """Return for each tensor what every target means for it."""
    layout = Layout.of([(stored.name, stored.shape) for stored, _ in tensors])
    return [
        tuple(target.choose(stored, source, layout) for target in targets)
        for stored, source in tensors
    ]


def gguf_name(encoding: type[Encoding]) -> str:
    """Return the name that llama.cpp gives a type, its id where GGUF has none."""
    in_gguf = any(isinstance(label, Ggml) for label in encoding.stored_as)
    return encoding.id.rpartition(".")[2].upper() if in_gguf else encoding.id
