"""The report's schema, read and checked once: doing so for each report takes most of the time."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema

from qassay.cli.subjects import schema


@cache
def validator() -> Any:
    """Return a validator of reports."""
    said = json.loads(schema())
    kind = jsonschema.validators.validator_for(said)
    kind.check_schema(said)
    return kind(said)
