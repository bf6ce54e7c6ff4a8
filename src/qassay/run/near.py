"""Which of many names was meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from qassay.core.text import safe

_MOST = 4096
_LONGEST = 200


def near(word: str | None, names: Sequence[str], most: int = 6) -> str:
    """Return, for a message, the names that are most like `word`; the first ones without it.

    A name that ends with the word, or has it inside, is more like it than one that only looks
    similar: `down_proj` is short for `model.layers.0.mlp.down_proj`.
    """
    likely: list[str] = []
    if word:
        likely = [name for name in names if name.endswith(word)]
        likely += [name for name in names if word in name]
        short = [name for name in names[:_MOST] if len(name) <= _LONGEST]
        likely += difflib.get_close_matches(word[:_LONGEST], short, n=most, cutoff=0.7)
    found = list(dict.fromkeys(likely)) or list(names)
    more = f", ... ({len(names):,} in all)" if len(names) > min(most, len(found)) else ""
    return ", ".join(safe(name, 60) for name in found[:most]) + more
