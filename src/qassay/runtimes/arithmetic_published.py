"""The inputs of two published write-ups, and their tables computed anew from them.

What the write-ups printed is in the tests; nothing here knows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qassay.encodings.base import Floats
from qassay.encodings.registry import by_id
from qassay.runtimes.base import Engine
from qassay.runtimes.preflight import preflight, published_message
from qassay.runtimes.scale_storage import Scheme, Worked, worked


@dataclass(frozen=True, slots=True, eq=False)
class RoundTrip:
    """A row of the first write-up: two blocks of Q8_0, of which the first was changed.

    Attributes:
        case: What was done to block 0.
        before: The 64 weights, float32.
        after: The 64 weights after a round trip.
        says: The first message of the published check, `ok` where it has none.
    """

    case: str
    before: Floats
    after: Floats
    says: str


def damaged_blocks() -> dict[str, Floats]:
    """Return the inputs of the first write-up by case, float32 `[64]`.

    Each block is `i/31 - 0.5`, i = 0..31, in float32; block 0 then gets a NaN or an infinity as
    element 1, or is multiplied.
    """
    plain = np.arange(32, dtype=np.float32) / np.float32(31) - np.float32(0.5)
    cases = {"plain": plain.copy()}
    for name, value in (("NaN at [1]", np.nan), ("inf at [1]", np.inf)):
        cases[name] = plain.copy()
        cases[name][1] = value
    for factor in ("1e-5", "4e-6", "2e7"):
        cases[f"block x {factor}"] = plain * np.float32(factor)
    return {name: np.concatenate([block, plain]) for name, block in cases.items()}


def round_trips(engine: type[Engine]) -> list[RoundTrip]:
    """Return the first write-up's table as `engine` makes it."""
    encoding = by_id("ggml.q8_0")
    rows = []
    for name, before in damaged_blocks().items():
        after = encoding.dequantize(engine.quantize(before, encoding).reshape(-1))
        blocks = before.reshape(2, 32)
        facts = preflight(blocks, encoding)
        found = [published_message(facts, blocks, block) for block in range(2)]
        says = next((message for message in found if message), "ok")
        rows.append(RoundTrip(name, before, after, says))
    return rows


def sine_block() -> Floats:
    """Return the second write-up's block, `3 sin(0.7 i)`, i = 0..31, as float32."""
    return np.asarray(3 * np.sin(0.7 * np.arange(32)), np.float32)


def stored_scales() -> dict[str, Worked]:
    """Return the rows of the second write-up's two tables by name, worked out in full."""
    cast = "c-cast"
    schemes = {
        "correct": Scheme("f16"),
        "engine": Scheme("f16", "exact", cast),
        "engine, older f16 conversion": Scheme("f16-truncated", "exact", cast),
        "experiment, f16": Scheme("f16-truncated", "stored", cast),
        "experiment, two decimals": Scheme("2-decimals", "stored", cast),
        "experiment, integer": Scheme("integer", "stored", cast),
    }
    block = sine_block()
    return {name: worked(block, scheme) for name, scheme in schemes.items()}
