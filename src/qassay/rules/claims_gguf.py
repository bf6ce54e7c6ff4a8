"""What GGUF metadata says about shapes, compared with the shapes.

Keys as llama.cpp writes them (gguf-py/gguf/constants.py, llama-hparams). What holds for every
architecture is compared for every one; head counts and feed-forward lengths only for those whose
tensors are known to follow them (Qwen 1 stores half of its feed-forward length, for one).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qassay.core.container import Container, StoredTensor
from qassay.rules.claims import (
    AxisRule,
    Contradiction,
    deepest_layer,
    missing_layers,
    for_layer,
    matching,
    number,
)

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
# Their output.weight or token_embd.weight is no matrix of the vocabulary and the model's width.
_ODD = frozenset({"wavtokenizer-dec", "eagle3", "clip", "imatrix", "controlvector"})
_TOKENS = "tokenizer.ggml.tokens"
_LAYER = re.compile(r"blk\.(?P<layer>\d{1,9})\.")


def _axis(pattern: str, axes: int, axis: int, claim: str, part: str, **more: Any) -> AxisRule:
    name = re.escape(pattern).replace("blk\\.N", r"blk\.(?P<layer>\d{1,9})")
    return AxisRule(re.compile(name), axes, axis, claim, part, **more)


_RULES = (
    _axis("token_embd.weight", 2, 0, "vocabulary", "rows of token_embd.weight"),
    _axis("output.weight", 2, 0, "vocabulary", "rows of output.weight"),
    _axis("token_embd.weight", 2, -1, "embedding_length", "columns of token_embd.weight"),
    _axis("output.weight", 2, -1, "embedding_length", "columns of output.weight"),
    _axis("output_norm.weight", 1, 0, "embedding_length", "length of output_norm.weight"),
    _axis("blk.N.attn_norm.weight", 1, 0, "embedding_length", "length of attn_norm.weight"),
    _axis("blk.N.ffn_norm.weight", 1, 0, "embedding_length", "length of ffn_norm.weight"),
    # Some architectures fuse gate and up into one tensor.
    _axis("blk.N.ffn_up.weight", 2, 0, "feed_forward_length", "rows of ffn_up.weight",
          families=_DENSE, multiples=(1, 2)),
    _axis("blk.N.ffn_gate.weight", 2, 0, "feed_forward_length", "rows of ffn_gate.weight",
          families=_DENSE),
    _axis("blk.N.ffn_down.weight", 2, -1, "feed_forward_length", "columns of ffn_down.weight",
          families=_DENSE),
    *(
        _axis(f"blk.N.ffn_{part}_exps.weight", 3, 0, "expert_count",
              f"experts of ffn_{part}_exps.weight")
        for part in ("gate", "up", "down", "gate_up")
    ),
    _axis("blk.N.attn_q.weight", 2, 0, "queries", "rows of attn_q.weight", families=_PLAIN),
    _axis("blk.N.attn_k.weight", 2, 0, "keys", "rows of attn_k.weight", families=_PLAIN),
    _axis("blk.N.attn_v.weight", 2, 0, "values", "rows of attn_v.weight", families=_PLAIN),
)  # fmt: skip

_HEADS = {
    "queries": ("attention.head_count", "attention.key_length"),
    "keys": ("attention.head_count_kv", "attention.key_length"),
    "values": ("attention.head_count_kv", "attention.value_length"),
}


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

    def claim(self, name: str, layer: int | None) -> tuple[str, int] | None:
        """Return the key and what it claims, None where nothing is stated."""
        if name == "vocabulary":
            return self._vocabulary()
        suffixes = _HEADS.get(name, (name,))
        product = 1
        for suffix in suffixes:
            stated = for_layer(self.metadata.get(self.key(suffix)), layer)
            if stated is None:
                return None
            product *= stated
        return self.key(suffixes[0]), product

    def _vocabulary(self) -> tuple[str, int] | None:
        tokens = self.metadata.get(_TOKENS)
        if isinstance(tokens, Sequence) and not isinstance(tokens, str | bytes) and len(tokens):
            return _TOKENS, len(tokens)
        stated = number(self.metadata.get(self.key("vocab_size")))
        return None if stated is None else (self.key("vocab_size"), stated)


def contradictions(container: Container) -> Iterator[Contradiction]:
    """Yield every shape in the GGUF files of `container` that their metadata contradicts."""
    for model in _models(container):
        for tensor, rule, layer in matching(model.tensors, _RULES, model.architecture):
            claim = model.claim(rule.claim, layer)
            if claim is None:
                continue
            key, stated = claim
            measured = tensor.shape[rule.axis]
            if measured not in {stated * times for times in rule.multiples}:
                place = (model.offsets.get(key), model.path)
                yield Contradiction(key, stated, measured, rule.part, tensor, *place)
        yield from _layers(model)


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
        place = (model.offsets.get(key), model.path)
        part = f"number of blocks up to the highest (blk.{count - 1})"
        yield Contradiction(key, stated, count, part, tensor, *place)
    missing = missing_layers(model.tensors, _LAYER) if model.whole else []
    if missing:
        place = (model.offsets.get(key), model.path)
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
