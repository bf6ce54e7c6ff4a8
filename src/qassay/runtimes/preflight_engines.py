"""What each program makes of a block that holds NaN or infinity: by running its quantizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from qassay.encodings.base import BlockEncoding, Floats
from qassay.runtimes.arithmetic import Doubles
from qassay.runtimes.preflight_settle import decoded, written
from qassay.runtimes.registry import all_engines

WRAPPED = 4.0
"""A neighbour is spoilt when it is off by so many times the block's usual error."""


@np.errstate(all="ignore")
def outcomes(block: Floats, encoding: type[BlockEncoding]) -> dict[str, dict[str, Any]]:
    """Return by engine what becomes of a block that holds something not finite.

    The yardstick is the same engine's quantization of the block with zeros in those places.

    Returns:
        For each engine that writes the encoding: `verdict` (`vanishes`, `spreads` or `wraps`),
        `becomes` (what the first offending weight decodes to), `not_finite` (sound weights that
        become NaN or infinite) and `spoilt` (sound weights that come out wrong).
    """
    sound = np.isfinite(block)
    clean = np.where(sound, block, np.float32(0))
    found = {}
    for name, each in all_engines().items():
        if encoding.id in each.routes:
            got = decoded(written(block[None], encoding, name), encoding)[0]
            usual = decoded(written(clean[None], encoding, name), encoding)[0]
            found[name] = _outcome(block.astype(np.float64), sound, got, usual)
    return found


def _outcome(block: Doubles, sound: Any, got: Doubles, usual: Doubles) -> dict[str, Any]:
    spread = sound & ~np.isfinite(got)
    error = np.where(sound, np.abs(usual - block), 0.0).max()
    largest = np.where(sound, np.abs(block), 0.0).max()
    allowed = WRAPPED * error + 1e-3 * largest
    spoilt = sound & np.isfinite(got) & (np.abs(got - block) > allowed)
    first = float(got[int(np.argmin(sound))])
    kept = not np.isfinite(first)
    verdict = "wraps" if spoilt.any() else "vanishes"
    if spread.any() or kept:
        verdict = "spreads"
    return {
        "verdict": verdict,
        "becomes": first if np.isfinite(first) else str(first),
        "not_finite": int(spread.sum()),
        "spoilt": int(spoilt.sum()),
    }


def told(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the outcomes in words, engines with the same outcome together."""
    groups: dict[str, list[str]] = {}
    for name, outcome in found.items():
        groups.setdefault(_words(outcome), []).append(name)
    return "; ".join(f"{', '.join(names)}: {words}" for words, names in groups.items())


def _words(outcome: Mapping[str, Any]) -> str:
    lost, spoilt = outcome["not_finite"], outcome["spoilt"]
    becomes = outcome["becomes"]
    shown = becomes if isinstance(becomes, str) else f"{becomes:.3g}"
    if outcome["verdict"] == "spreads":
        others = f", and {lost} sound weights with it" if lost else ""
        return f"it becomes {shown.replace('nan', 'NaN')}{others}"
    if outcome["verdict"] == "wraps":
        noun = "weight comes" if spoilt == 1 else "weights come"
        return f"it vanishes (as {shown}), and {spoilt} sound {noun} out wrong"
    return f"it vanishes (as {shown})"
