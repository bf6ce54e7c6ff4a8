"""Where a checkpoint folder keeps its quantization configuration, and in whose words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from qassay.core.container import Defect
from qassay.encodings.layers.claims_values import shown_value

if TYPE_CHECKING:
    from qassay.core.container import Container

_CONFIG = "config.json"
_KEYS = ("quantization_config", "compression_config", "quantization")
_INNER = ("text_config", "llm_config", "language_config", "thinker_config")


@dataclass(frozen=True, slots=True)
class Context:
    """What a reader has to know besides the configuration.

    Attributes:
        method: As written, or as the keys tell.
        tied: Whether the head is the embedding, and so no layer of its own.
    """

    method: str
    tied: bool


@dataclass(frozen=True, slots=True)
class Configuration:
    """One quantization configuration of a folder.

    Attributes:
        file: Its file's name.
        path: The file, as reports name it.
        key: Where in the file it stands; "" for the whole of it.
        method: `quant_method` as written, else what its keys tell, else "".
        stated: Whether the method is written.
        raw: The configuration.
    """

    file: str
    path: str
    key: str
    method: str
    stated: bool
    raw: Mapping[str, Any]


def configurations(container: Container) -> list[Configuration]:
    """Return the quantization configurations of a folder, the one that counts first."""
    found: list[Configuration] = []
    config = container.extra.get("config")
    if isinstance(config, Mapping):
        for prefix, holder in _holders(config):
            for key in _KEYS:
                raw = holder.get(key)
                if isinstance(raw, Mapping) and raw and not (key == "quantization" and found):
                    found.append(_made(container, _CONFIG, prefix + key, raw))
    files = container.extra.get("quant_configs")
    for file, raw in files.items() if isinstance(files, Mapping) else ():
        # modelopt's own file holds the producer beside the configuration.
        inner = raw.get("quantization") if isinstance(raw, Mapping) else None
        if isinstance(inner, Mapping):
            found.append(_made(container, file, "quantization", inner))
        elif isinstance(raw, Mapping) and raw:
            found.append(_made(container, file, "", raw))
    return found


def config_defects(container: Container) -> list[Defect]:
    """Return a defect where a configuration is there and is no object."""
    config = container.extra.get("config")
    if not isinstance(config, Mapping):
        return []
    return [
        Defect(
            code="Q106",
            message=f"{prefix}{key} is {shown_value(holder[key])}, which is no configuration",
            path=_path(container, _CONFIG),
            expected="an object",
            found=shown_value(holder[key]),
            data={"key": prefix + key},
        )
        for prefix, holder in _holders(config)
        for key in _KEYS[:2]
        if holder.get(key) is not None and not isinstance(holder[key], Mapping)
    ]


def is_tied(container: Container) -> bool:
    """Tell whether `config.json` says that the head shares the embedding's weights."""
    config = container.extra.get("config")
    if not isinstance(config, Mapping):
        return False
    return any(holder.get("tie_word_embeddings") is True for _, holder in _holders(config))


def _holders(config: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    inner = [(f"{key}.", config[key]) for key in _INNER if isinstance(config.get(key), Mapping)]
    return [("", config), *inner]


def _path(container: Container, file: str) -> str:
    return f"{container.path.rstrip('/')}/{file}"


def _made(container: Container, file: str, key: str, raw: Mapping[str, Any]) -> Configuration:
    written = raw.get("quant_method")
    stated = isinstance(written, str) and bool(written)
    method = str(written) if stated else _guessed(key, raw)
    return Configuration(file, _path(container, file), key, method, stated, raw)


def _guessed(key: str, raw: Mapping[str, Any]) -> str:
    """Return the method of a configuration that names none, by the keys only it has."""
    if "quant_algo" in raw or "quantized_layers" in raw:
        return "modelopt"
    if "config_groups" in raw:
        return "compressed-tensors"
    if "autoround_version" in raw or str(raw.get("packing_format")).startswith("auto_round"):
        return "auto-round"
    if "w_bit" in raw or "q_group_size" in raw:
        return "awq"
    if "desc_act" in raw and "bits" in raw:
        return "gptq"
    if "load_in_4bit" in raw or "load_in_8bit" in raw:
        return "bitsandbytes"
    if key.endswith(("quantization", "quantization_config")) and "group_size" in raw:
        return "mlx"
    return ""
