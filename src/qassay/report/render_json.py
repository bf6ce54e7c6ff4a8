"""`--output-format json`: the document itself."""

from __future__ import annotations

import json
from collections.abc import Iterator

from qassay.report.document import Report
from qassay.report.look import Look


def render(report: Report, look: Look) -> Iterator[str]:  # noqa: ARG001 - JSON looks one way
    """Yield the document as JSON, ASCII only, so that any name survives any terminal and pipe."""
    encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, indent=2)
    yield from encoder.iterencode(report.to_dict())
    yield "\n"
