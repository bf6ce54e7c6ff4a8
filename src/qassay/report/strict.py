"""Making values fit for strict JSON."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from qassay.core.finding import json_number


def strict(value: Any) -> Any:
    """Return `value` built of what strict JSON has: no NaN, no tuples, no NumPy numbers.

    Rules and metadata may hold anything; what JSON has no word for becomes text, because a long
    audit must not be lost over one odd value.
    """
    if value is None or (isinstance(value, (bool, int, str)) and not isinstance(value, enum.Enum)):
        return value
    if isinstance(value, float):
        return json_number(float(value))
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return strict(value.value)
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return strict(value.tolist())
    if isinstance(value, (list, tuple)):
        return [strict(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((strict(item) for item in value), key=str)
    return str(value)
