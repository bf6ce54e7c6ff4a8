"""What GGUF metadata says about shapes, compared with the shapes.

Keys as llama.cpp writes them (gguf-py/gguf/constants.py, llama-hparams). What holds for every
architecture is compared for every one; head counts and feed-forward lengths only for those whose
tensors are known to follow them (Qwen 1 stores half of its feed-forward length, for one).
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from qassay.core.container import Container, StoredTensor
from qassay.core.finding import Certainty
from qassay.core.text import safe
from qassay.rules.claims import (
    AxisRule,
    Contradiction,
    deepest_layer,
    for_layer,
    matching,
    missing_layers,
    number,
)
from qassay.rules.claims_gguf_blocks import Blocks, blocks_of, lacking, turned

_ORIGINAL = "comfy.gguf.orig_shape."
_PLAIN = frozenset(
    [
        "llama",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3",
        "granite",
        "olmo2",
        "internlm2",
        "smollm3",
        "starcoder2",
    ]
)
_DENSE = _PLAIN | {"phi2", "phi3", "gpt2", "falcon", "stablelm", "olmo", "bert", "nomic-bert"}
# Attention as in llama: q, k, v read the model's width, and heads are as wide as stated.
_HEADED = _PLAIN | {"qwen2moe", "qwen3moe", "olmoe", "olmo", "stablelm", "command-r", "deepseek"}
_EXPERTS = frozenset({"qwen2moe", "qwen3moe", "deepseek", "deepseek2", "gpt-oss", "glm4moe"})
# Their output.weight or token_embd.weight is no matrix of the vocabulary and the model's width.
_ODD = frozenset({"wavtokenizer-dec", "eagle3", "clip", "imatrix", "controlvector"})
_TOKENS = "tokenizer.ggml.tokens"
_LAYER = re.compile(r"blk\.(?P<layer>\d{1,9})\.")


def _axis(pattern: str, axes: int, axis: int, claim: str, part: str, **more: Any) -> AxisRule:
    name = re.escape(pattern).replace("blk\\.N", r"blk\.(?P<layer>\d{1,9})")
    return AxisRule(re.compile(name), axes, axis, claim, part, **more)


def _sides(name: str, rows: str, columns: str, families: Collection[str]) -> list[AxisRule]:
    """Return the rules of a matrix in every block, `[rows, columns]`."""
    return [
        _axis(f"blk.N.{name}.weight", 2, axis, claim, f"{side} of {name}.weight", families=families)
        for axis, claim, side in ((0, rows, "rows"), (1, columns, "columns"))
    ]


def _expert_sides(name: str, rows: str, columns: str) -> list[AxisRule]:
    """Return the rules of the matrices of all experts of a block, `[experts, rows, columns]`."""
    return [
        _axis(f"blk.N.{name}.weight", 3, axis, claim, f"{side} of {name}.weight",
              families=_EXPERTS | {"llama"})
        for axis, claim, side in ((1, rows, "rows"), (2, columns, "columns"))
    ]  # fmt: skip


_EMBEDDING = "embedding_length"
_RULES = (
    _axis("token_embd.weight", 2, 0, "vocabulary", "rows of token_embd.weight"),
    _axis("output.weight", 2, 0, "vocabulary", "rows of output.weight"),
    _axis("token_embd.weight", 2, -1, _EMBEDDING, "columns of token_embd.weight"),
    _axis("output.weight", 2, -1, _EMBEDDING, "columns of output.weight"),
    _axis("output_norm.weight", 1, 0, _EMBEDDING, "length of output_norm.weight"),
    _axis("blk.N.attn_norm.weight", 1, 0, _EMBEDDING, "length of attn_norm.weight"),
    _axis("blk.N.ffn_norm.weight", 1, 0, _EMBEDDING, "length of ffn_norm.weight"),
    # Some architectures fuse gate and up into one tensor.
    _axis("blk.N.ffn_up.weight", 2, 0, "feed_forward_length", "rows of ffn_up.weight",
          families=_DENSE, multiples=(1, 2)),
    _axis("blk.N.ffn_up.weight", 2, 1, _EMBEDDING, "columns of ffn_up.weight", families=_DENSE),
    *_sides("ffn_gate", "feed_forward_length", _EMBEDDING, _DENSE),
    *_sides("ffn_down", _EMBEDDING, "feed_forward_length", _DENSE),
    *(
        _axis(f"blk.N.ffn_{part}_exps.weight", 3, 0, "expert_count",
              f"experts of ffn_{part}_exps.weight")
        for part in ("gate", "up", "down", "gate_up")
    ),
    *_expert_sides("ffn_gate_exps", "expert_width", _EMBEDDING),
    *_expert_sides("ffn_up_exps", "expert_width", _EMBEDDING),
    *_expert_sides("ffn_down_exps", _EMBEDDING, "expert_width"),
    *_sides("attn_q", "queries", _EMBEDDING, _HEADED),
    *_sides("attn_k", "keys", _EMBEDDING, _HEADED),
    *_sides("attn_v", "values", _EMBEDDING, _HEADED),
    *_sides("attn_output", _EMBEDDING, "attended", _HEADED),
)  # fmt: skip

_HEADS = {
    "queries": ("attention.head_count", "attention.key_length"),
    "keys": ("attention.head_count_kv", "attention.key_length"),
    "values": ("attention.head_count_kv", "attention.value_length"),
    "attended": ("attention.head_count", "attention.value_length"),
}


class _Claim(NamedTuple):
    """What a key claims of an axis, and how to say it where the value itself does not."""

    key: str
    length: int
    said: str = ""
    value: int | None = None


@dataclass(frozen=True, slots=True)
class _Model:
    """One model: its metadata, its tensors, and whether these are all of them."""

    path: str
    architecture: str
    metadata: Mapping[str, Any]
    tensors: Sequence[StoredTensor]
    offsets: Mapping[str, int]
    whole: bool

    def key(self, suffix: str) -> str:
        """Return the full name of an architecture's key."""
        return f"{self.architecture}.{suffix}"

    def stated(self, suffix: str, layer: int | None) -> int | None:
        """Return what an architecture's key states, for one layer where it lists all."""
        return for_layer(self.metadata.get(self.key(suffix)), layer)

    def claim(self, name: str, layer: int | None) -> _Claim | None:
        """Return the key and what it claims, None where nothing is stated."""
        if name == "vocabulary":
            return self._vocabulary()
        if name in _HEADS:
            return self._heads(*_HEADS[name], layer)
        if name == "expert_width":
            own = self.architecture != "llama" or self.stated("expert_feed_forward_length", layer)
            name = "expert_feed_forward_length" if own else "feed_forward_length"
        stated = self.stated(name, layer)
        return None if stated is None else _Claim(self.key(name), stated)

    def _heads(self, counted: str, measured: str, layer: int | None) -> _Claim | None:
        """Return a number of heads times their length; what is left out is as in llama.cpp."""
        if self.key("attention.key_length_swa") in self.metadata:
            return None  # layers differ
        every = "attention.head_count"
        suffix = counted if self.key(counted) in self.metadata else every
        heads = self.stated(suffix, layer)
        length, origin = self.stated(measured, layer), measured
        if length is None and self.key(measured) not in self.metadata:
            # llama.cpp takes the heads of the first layer for the length of all.
            width, first = self.stated(_EMBEDDING, layer), self.stated(every, 0)
            if width and first and width % first == 0:
                length, origin = width // first, f"{_EMBEDDING} / head_count"
        if heads is None or length is None:
            return None
        said = f"{safe(self.key(suffix))} says {heads}, which makes {heads * length} with {origin}"
        return _Claim(self.key(suffix), heads * length, f"{said} {length}", heads)

    def _vocabulary(self) -> _Claim | None:
        tokens = self.metadata.get(_TOKENS)
        if isinstance(tokens, Sequence) and not isinstance(tokens, str | bytes) and len(tokens):
            return _Claim(_TOKENS, len(tokens))
        stated = number(self.metadata.get(self.key("vocab_size")))
        return None if stated is None else _Claim(self.key("vocab_size"), stated)

    def place(self, key: str) -> tuple[int | None, str]:
        """Return where the value of a key stands."""
        return self.offsets.get(key), self.path


def contradictions(container: Container) -> Iterator[Contradiction]:
    """Yield every shape in the GGUF files of `container` that their metadata contradicts."""
    for model in _models(container):
        wrong: set[str] = set()
        for item in _shapes(model):
            wrong.add(item.tensor.name)
            yield item
        yield from _reshaped(model)
        yield from _layers(model)
        blocks = blocks_of(model.tensors, _LAYER)
        yield from (item for item in _turned(model, blocks) if item.tensor.name not in wrong)
        if model.whole and model.architecture in _PLAIN:
            yield from _lacking(model, blocks)


def _reshaped(model: _Model) -> Iterator[Contradiction]:
    """Compare tensors with the shape that they had before a converter made them two-dimensional.

    Source: ComfyUI-GGUF tools/convert.py (`comfy.gguf.orig_shape.` and the tensor's name).
    """
    for tensor in model.tensors:
        key = _ORIGINAL + tensor.name
        shape = model.metadata.get(key)
        if not isinstance(shape, Sequence) or isinstance(shape, str | bytes) or len(shape) > 8:
            continue
        axes = [number(axis) for axis in shape]
        if not tensor.readable or None in axes:
            continue
        count = math.prod(axis for axis in axes if axis is not None)
        if count != tensor.size:
            said = f"{safe(key)} says {axes}, which is {count}"
            part = f"number of weights of {tensor.name}"
            yield Contradiction(key, count, tensor.size, part, tensor, *model.place(key), said)


def _turned(model: _Model, blocks: Blocks) -> Iterator[Contradiction]:
    """Compare the weights of each block with each other."""
    key = model.key(_EMBEDDING)
    width = number(model.metadata.get(key))
    for tensor, axis, side in turned(blocks, width) if width else ():
        part = f"{side} of {tensor.name.split('.', 2)[-1]}"
        yield Contradiction(key, width or 0, tensor.shape[axis], part, tensor, *model.place(key))


def _lacking(model: _Model, blocks: Blocks) -> Iterator[Contradiction]:
    """Compare the blocks with each other."""
    key = model.key("block_count")
    stated = number(model.metadata.get(key))
    for tensor, having, total in lacking(blocks, stated):
        yield Contradiction(
            key,
            total,
            having,
            f"number of blocks that have {tensor.name.split('.', 2)[-1]}",
            tensor,
            path=model.path,
            said=f"there are {total} blocks",
            certainty=Certainty.LIKELY,
        )


def _shapes(model: _Model) -> Iterator[Contradiction]:
    """Compare every tensor that a rule is about with what the metadata claims."""
    trimmed: set[str] = set()
    odd: set[str] = set()
    for tensor, rule, layer in matching(model.tensors, _RULES, model.architecture):
        claim = model.claim(rule.claim, layer)
        if claim is None or tensor.name in odd:
            continue
        shape = tensor.shape
        if rule.axis == 0 and claim.length == 1 and len(shape) == rule.axes - 1:
            trimmed.add(tensor.name)  # ggml leaves the slowest axes out where they have length 1
        if tensor.name in trimmed:
            shape = (1, *shape)
        if len(shape) != rule.axes:
            odd.add(tensor.name)
            yield _rank(model, tensor, rule)
        elif shape[rule.axis] not in {claim.length * times for times in rule.multiples}:
            place = model.place(claim.key)
            yield Contradiction(
                claim.key, claim.length, shape[rule.axis], rule.part, tensor, *place,
                said=claim.said, value=claim.value,
            )  # fmt: skip


def _rank(model: _Model, tensor: StoredTensor, rule: AxisRule) -> Contradiction:
    """Return what to say of a tensor with another number of axes than its kind has."""
    name = rule.part.rpartition(" ")[2]
    axes = "1 axis" if rule.axes == 1 else f"{rule.axes} axes"
    return Contradiction(
        "general.architecture",
        rule.axes,
        len(tensor.shape),
        f"number of axes of {name}",
        tensor,
        path=model.path,
        said=f"{safe(model.architecture)} models have a {name} of {axes}",
    )


def _layers(model: _Model) -> Iterator[Contradiction]:
    """Compare the number of blocks; blocks that predict further tokens may be left out or not."""
    key = model.key("block_count")
    stated = number(model.metadata.get(key))
    deepest = deepest_layer(model.tensors, _LAYER)
    if stated is None or deepest is None:
        return
    count, tensor = deepest
    spare = number(model.metadata.get(model.key("nextn_predict_layers"))) or 0
    if count > stated + spare or (model.whole and count < stated - spare):
        place = model.place(key)
        part = f"number of blocks up to the highest (blk.{count - 1})"
        yield Contradiction(key, stated, count, part, tensor, *place)
    missing = missing_layers(model.tensors, _LAYER) if model.whole else []
    if missing:
        place = model.place(key)
        part = f"number of blocks that have tensors (blk.{missing[0]} has none)"
        yield Contradiction(key, stated, count - len(missing), part, tensor, *place)


def _models(container: Container) -> Iterator[_Model]:
    """Yield the models whose metadata describes tensors; adapters and the like do not."""
    parts: Mapping[str, Container] = container.extra.get("parts", {})
    missing = any(defect.code in {"Q001", "Q005"} for defect in container.defects)
    for part in parts.values() if container.format == "folder" else (container,):
        metadata = part.metadata
        architecture = metadata.get("general.architecture")
        if part.format != "gguf" or not isinstance(architecture, str) or architecture in _ODD:
            continue
        if metadata.get("general.type", "model") != "model":
            continue
        split = (number(metadata.get("split.count")) or 1) > 1
        united = split and bool(container.metadata) and container.format == "folder"
        yield _Model(
            path=part.path,
            architecture=architecture,
            metadata=metadata,
            tensors=container.tensors if united else part.tensors,
            offsets=part.extra.get("value_offsets", {}),
            whole=not missing and (united or not split) and not container.skipped,
        )
