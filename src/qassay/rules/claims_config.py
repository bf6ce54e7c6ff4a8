"""What a checkpoint's `config.json` says about shapes, compared with the shapes of float tensors.

Only families whose tensors are known to follow their configuration are compared: others have more
embedding rows than `vocab_size` (Llama 3.2 Vision: 8 more), layers of several widths, and so on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from qassay.core.container import Container
from qassay.rules.claims import (
    AxisRule,
    Contradiction,
    deepest_layer,
    matching,
    nested,
    number,
)

_DENSE = frozenset(
    [
        "llama",
        "mistral",
        "qwen2",
        "qwen3",
        "gemma",
        "gemma2",
        "gemma3_text",
        "granite",
        "olmo2",
        "smollm3",
        "phi3",
    ]
)
_FAMILIES = _DENSE | {"mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "olmoe"}
_FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})
_PREFIX = r"(?:model\.|language_model\.model\.|model\.language_model\.)?"
_LAYER = re.compile(_PREFIX + r"layers\.(?P<layer>\d{1,9})\.")
_HEAD = r"(?:language_model\.)?lm_head"


def _axis(name: str, axes: int, axis: int, claim: str, part: str, **more: Any) -> AxisRule:
    return AxisRule(re.compile(name + r"\.weight"), axes, axis, claim, part, **more)


_IN_LAYER = _LAYER.pattern
_RULES = (
    _axis(_PREFIX + "embed_tokens", 2, 0, "vocab_size", "rows of embed_tokens.weight"),
    _axis(_PREFIX + "embed_tokens", 2, 1, "hidden_size", "columns of embed_tokens.weight"),
    _axis(_HEAD, 2, 0, "vocab_size", "rows of lm_head.weight"),
    _axis(_HEAD, 2, 1, "hidden_size", "columns of lm_head.weight"),
    _axis(_PREFIX + "norm", 1, 0, "hidden_size", "length of norm.weight"),
    *(
        _axis(_IN_LAYER + name, 1, 0, "hidden_size", f"length of {name}.weight")
        for name in ("input_layernorm", "post_attention_layernorm")
    ),
    *(
        _axis(_IN_LAYER + rf"mlp\.{name}", 2, axis, "intermediate_size",
              f"{'rows' if axis == 0 else 'columns'} of mlp.{name}.weight", families=_DENSE)
        for name, axis in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1))
    ),
)  # fmt: skip


def contradictions(container: Container) -> Iterator[Contradiction]:
    """Yield every shape in a checkpoint folder that its `config.json` contradicts."""
    config = container.extra.get("config")
    if not isinstance(config, Mapping):
        return
    inner = config.get("text_config")
    prefix = "text_config." if isinstance(inner, Mapping) else ""
    text: Mapping[str, Any] = inner if isinstance(inner, Mapping) else config
    family = text.get("model_type")
    if not isinstance(family, str) or family not in _FAMILIES or "draft_vocab_size" in text:
        return
    tensors = [
        tensor
        for tensor in container.tensors
        if tensor.type.family == "safetensors" and tensor.type.label in _FLOATS
    ]
    for tensor, rule, _ in matching(tensors, _RULES, family):
        if len(tensor.shape) != rule.axes:
            continue
        stated = number(nested(text, rule.claim))
        measured = tensor.shape[rule.axis]
        if stated is not None and measured != stated:
            yield Contradiction(prefix + rule.claim, stated, measured, rule.part, tensor)
    yield from _layers(container, text, prefix)


def _layers(container: Container, text: Mapping[str, Any], prefix: str) -> Iterator[Contradiction]:
    # Packed tensors count here: their names are those of layers, too.
    stated = number(text.get("num_hidden_layers"))
    deepest = deepest_layer(container.tensors, _LAYER)
    if stated is None or deepest is None:
        return
    count, tensor = deepest
    spare = number(text.get("num_nextn_predict_layers")) or 0
    whole = not container.skipped and all(d.code != "Q005" for d in container.defects)
    if count > stated + spare or (whole and count < stated):
        key = prefix + "num_hidden_layers"
        yield Contradiction(key, stated, count, "number of layers layers.*", tensor)
