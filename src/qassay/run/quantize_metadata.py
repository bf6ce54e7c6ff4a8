"""The metadata of the new file: the source's own, and what was done to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from qassay.containers.gguf_metadata import TYPE_NAMES, read_value
from qassay.containers.gguf_out import Pair
from qassay.containers.header_reader import HeaderReader
from qassay.core.container import Container
from qassay.core.version import __version__
from qassay.run.quantize_plan import Wish

FILE_TYPES: Mapping[str, int] = {
    "f32": 0,
    "f16": 1,
    "ggml.q4_0": 2,
    "ggml.q4_1": 3,
    "ggml.q8_0": 7,
    "ggml.q5_0": 8,
    "ggml.q5_1": 9,
    "ggml.q2_k": 10,
    "ggml.q3_k": 11,
    "ggml.q4_k": 14,
    "ggml.q5_k": 16,
    "ggml.q6_k": 18,
    "ggml.iq4_nl": 25,
    "ggml.iq4_xs": 30,
    "bf16": 32,
    "Q2_K_S": 21,
    "Q2_K_M": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
}
"""`general.file_type` by encoding or recipe (`enum llama_ftype`).

A K-quant for every tensor has no number of its own and gets that of its smallest recipe.
"""

QUANTIZATION_VERSION = 2
_OWN = ("general.file_type", "general.quantization_version", "general.alignment")


def pairs_of(
    container: Container, wish: Wish, checks: Sequence[str], allowed: Sequence[str]
) -> list[Pair]:
    """Return the metadata pairs of the new file.

    Args:
        container: The source; of a GGUF file every pair is copied, arrays as raw bytes.
        wish: What was asked for.
        checks: Codes of the rules that the source was checked with.
        allowed: Codes of the errors that were found there and allowed.
    """
    copied = {pair.key: pair for pair in _copied(container)}
    if "general.architecture" not in copied:
        named = Pair.of_text("general.architecture", _architecture(container))
        copied = {named.key: named, **copied}
    pairs = list(copied.values())
    number = FILE_TYPES.get(wish.to.word)
    if number is not None:
        pairs.append(Pair.of_uint32("general.file_type", number))
    pairs.append(Pair.of_uint32("general.quantization_version", QUANTIZATION_VERSION))
    pairs.append(Pair.of_text("qassay.engine", wish.engine.id))
    pairs.append(Pair.of_text("qassay.version", __version__))
    pairs.append(Pair.of_texts("qassay.checks", checks))
    if allowed:
        pairs.append(Pair.of_texts("qassay.allowed", allowed))
    return pairs


def _copied(container: Container) -> Iterator[Pair]:
    """Yield the pairs of a GGUF source that still hold in one file of another type."""
    parts: Mapping[str, Container] = container.extra.get("parts", {})
    seen: set[str] = set()
    for part in parts.values() if parts else [container]:
        if part.format != "gguf":
            continue
        for key in part.metadata:
            if key in seen or key in _OWN or key.startswith(("split.", "qassay.")):
                continue
            seen.add(key)
            yield _pair(part, key)


def _pair(part: Container, key: str) -> Pair:
    source = part.sources[0]
    start = part.extra["value_offsets"][key]
    number = TYPE_NAMES.index(part.extra["value_types"][key])
    reader = HeaderReader(source, start)
    read_value(reader, source, number)  # steps over it, without decoding arrays
    return Pair(key, number, source.read(start, reader.pos - start).data)


def _architecture(container: Container) -> str:
    config = container.extra.get("config")
    named = config.get("model_type") if isinstance(config, Mapping) else None
    return named if isinstance(named, str) and named else "unknown"
