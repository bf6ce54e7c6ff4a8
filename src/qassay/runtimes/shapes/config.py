"""The Linears of a model from its `config.json` alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from qassay.core.container import Container, Skipped
from qassay.core.errors import InputError
from qassay.runtimes.shapes.families import family_of, head_of, linears_of
from qassay.runtimes.shapes.linear import MOST_LINEARS, Linear, Shapes
from qassay.runtimes.shapes.reading import Keys

_QUANTIZED = ("quantization_config", "compression_config", "quantization")
_INNER = ("text_config", "llm_config")


def shapes_of_config(config: Mapping[str, Any], path: str, container: Container) -> Shapes:
    """Return the Linears that a configuration describes, without any tensor.

    Args:
        config: The object in `config.json`.
        path: The file, as reports name it.
        container: What stands for the model when its quantization is asked about: `extra` holds
            the same configuration, and those of quantizers beside it.

    Raises:
        InputError: A key is missing, no size or no such kind; or the architecture is not known.
    """
    top = Keys(config, path)
    model_type = top.word("model_type")
    family = family_of(model_type, path)
    text = next((inner for key in _INNER if (inner := top.inner(key)) is not None), None)
    keys = top if text is None else text
    prefix = "model." if text is None else "model.language_model."
    vision = top.inner("vision_config") if family.vision else None
    linears = linears_of(keys, family, vision, prefix)
    found = list(islice(linears, MOST_LINEARS + 1))
    if not _is_tied(top, keys):
        found.append(head_of(keys, "lm_head"))
    if len(found) > MOST_LINEARS:
        raise InputError(
            "it describes more Linears than any model has",
            path=path,
            expected=f"at most {MOST_LINEARS:,}",
            found="num_hidden_layers and num_experts that make more",
        )
    shapes = Shapes("config", found, model_type=model_type, dtype=dtype_of(config))
    if any(holder.get(key) for holder in (top, keys) for key in _QUANTIZED) or (
        container.extra.get("quant_configs")
    ):
        _claim(shapes, container)
    return shapes


def dtype_of(config: Mapping[str, Any]) -> str:
    """Return the type of the floats as a configuration writes it, "" where it does not."""
    for holder in (config, *(config.get(key) for key in _INNER)):
        for key in ("dtype", "torch_dtype"):
            word = holder.get(key) if isinstance(holder, Mapping) else None
            if isinstance(word, str):
                return word.removeprefix("torch.")
    return ""


def _is_tied(*holders: Keys) -> bool:
    return any(keys.flag("tie_word_embeddings", default=False) for keys in holders)


def _claim(shapes: Shapes, container: Container) -> None:
    """Add what the quantization configuration says of each Linear."""
    from qassay.encodings.layers.claims import claims_of  # noqa: PLC0415 - float models need none

    claims = claims_of(container)
    shapes.method = claims.method
    shapes.config_groups = groups_in(claims.raw)
    if not claims.known:
        reason = f"the words of quant_method {claims.method!r} are not understood"
        shapes.unread.append(Skipped(container.path, reason))
        shapes.linears = []
        return
    shapes.linears = list(_claimed(shapes.linears, claims.of))
    sizes = {linear.group for linear in shapes.linears if linear.group is not None}
    shapes.group_size = sizes.pop() if len(sizes) == 1 else None


def groups_in(raw: Mapping[str, Any]) -> int | None:
    """Return the number of groups of layers in a configuration of compressed-tensors."""
    groups = raw.get("config_groups")
    return len(groups) if isinstance(groups, Mapping) else None


def _claimed(linears: list[Linear], of: Any) -> Iterator[Linear]:
    for linear in linears:
        claim = of(linear.name)
        group = claim.group_size
        if group is not None and group <= 0:
            group = -1
        yield replace(
            linear,
            quantized=claim.quantized,
            bits=claim.bits if claim.quantized else None,
            group=group if claim.quantized else None,
            symmetric=claim.symmetric if claim.quantized else None,
            act_order=bool(claim.act_order) if claim.quantized else None,
            zero_offset=zero_offset_of(claim.method, claim.format) if claim.quantized else None,
            method=claim.method,
            format=claim.format,
            kind=claim.kind or ("int" if claim.method.lower() in ("gptq", "awq") else ""),
            because=claim.because if claim.quantized is False else "",
        )


_V2 = frozenset({"gptq_v2", "auto_round", "auto_round:gptqmodel"})


def zero_offset_of(method: str, layout: str) -> int | None:
    """Return what a reader has to add to a zero point of a GPTQ layout, None for others."""
    if layout in _V2:
        return 0
    if method.lower() == "gptq" or layout in ("auto_round:auto_gptq", "auto_round:gptq"):
        return 1
    return None
