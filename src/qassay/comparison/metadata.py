"""What two models say of themselves, key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qassay.core.container import Container

_MOST_KEYS = 200
_LONGEST = 64
_DEEPEST = 12
_HEADS = ("num_attention_heads", "num_key_value_heads")


def metadata_differences(a: Container, b: Container) -> dict[str, list[Any]]:
    """Return the keys whose values differ, with both values; long ones by their length.

    Models of different formats say different things under different keys: those are not set side
    by side. A key that one side lacks has None there.
    """
    if (a.format == "gguf") != (b.format == "gguf"):
        return {}
    one, two = _flat(a), _flat(b)
    found: dict[str, list[Any]] = {}
    for key in dict.fromkeys((*one, *two)):
        left, right = one.get(key), two.get(key)
        if _equal(left, right):
            continue
        if len(found) == _MOST_KEYS:
            break
        found[key] = [_told(left), _told(right)]
    return found


def _flat(container: Container) -> dict[str, Any]:
    found: dict[str, Any] = dict(container.metadata)
    config = container.extra.get("config")
    if isinstance(config, Mapping):
        _flatten(config, "config", found, _DEEPEST)
    return found


def _flatten(value: Mapping[str, Any], prefix: str, into: dict[str, Any], depth: int) -> None:
    for key, item in value.items():
        name = f"{prefix}.{key}"
        if isinstance(item, Mapping) and depth:
            _flatten(item, name, into, depth - 1)
        else:
            into[name] = item


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, Sequence) and isinstance(right, Sequence) and not isinstance(left, str):
        return len(left) == len(right) and all(
            _equal(one, two) for one, two in zip(left, right, strict=True)
        )
    if isinstance(left, float) and isinstance(right, float) and left != left:  # noqa: PLR0124
        return right != right  # noqa: PLR0124 - NaN on both sides
    return bool(left == right)


def _told(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else f"{value[:_LONGEST]}... ({len(value)})"
    if isinstance(value, Sequence):
        return list(value) if len(value) <= 8 else f"{len(value)} values"
    return value


def heads_of(a: Container, b: Container) -> tuple[int, ...]:
    """Return the numbers of attention heads that either side's configuration tells."""
    found: list[int] = []
    for container in (a, b):
        config = container.extra.get("config")
        if isinstance(config, Mapping):
            nested = config.get("text_config")
            for part in (config, nested if isinstance(nested, Mapping) else {}):
                found += [part[key] for key in _HEADS if type(part.get(key)) is int]
        for key, value in container.metadata.items():
            if key.endswith((".attention.head_count", ".attention.head_count_kv")):
                found += [value] if type(value) is int else []
    return tuple(dict.fromkeys(each for each in found if 0 < each <= 1 << 16))
