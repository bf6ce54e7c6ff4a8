"""What a tensor is for, told from its name as GGUF or Hugging Face spell it."""

from __future__ import annotations

import re

KINDS = ("embedding", "attention", "ffn", "experts", "norm", "output", "other")

# The first that matches decides: `attn_norm` is a norm, `ffn_gate_inp` routes and is no expert.
_PATTERNS = (
    ("norm", r"norm|(^|[._])ln(_?[0-9a-z]+)?\.(weight|bias)$|(^|\.)layer_?norm"),
    ("other", r"ffn_gate_inp|(mlp|moe|block_sparse_moe|feed_forward)\.(gate|router)\.|router"),
    ("ffn", r"shexp|shared_expert"),
    ("experts", r"_exps?(\.|$)|ffn_(up|down|gate)\.\d+\.|(^|[._])experts?([._]|$)"),
    ("embedding", r"embd|embed|(^|\.)wte\.|(^|\.)wpe\.|(^|[._])tok(en)?_types?"),
    ("output", r"^output(\.|$)|lm_head|(^|\.)embed_out\.|^cls\.|^score\."),
    (
        "attention",
        r"attn|attention|(^|\.)[qkv]_proj\.|(^|\.)[qkvo]\.(weight|bias)$|in_proj_(qkv|ba)",
    ),
    ("ffn", r"ffn|mlp|feed_forward|(^|\.)fc\d?\.|intermediate|(gate|up|down)_proj|output\.dense"),
)
_COMPILED = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _PATTERNS)


def kind_of(name: str) -> str:
    """Return which of `KINDS` the tensor called `name` is; `other` where the name does not say."""
    for kind, pattern in _COMPILED:
        if pattern.search(name):
            return kind
    return "other"
