"""Q701 findings of commands that learn from a compiler, not from a model, that it rejects one."""

from __future__ import annotations

from typing import Any

from qassay.core.finding import Certainty, Finding, Severity


def rejection(
    message: str,
    *,
    path: str,
    help: str,  # noqa: A002
    data: dict[str, Any],
    count: int = 1,
    tensor: str | None = None,
    certainty: Certainty = Certainty.PROVEN,
) -> Finding:
    """Return the finding that a runtime rejects something; `data["stage"]` says at which stage."""
    return Finding(
        code="Q701",
        name="runtime-rejects",
        severity=Severity.ERROR,
        certainty=certainty,
        message=message,
        path=path,
        tensor=tensor,
        count=count,
        data=data,
        help=help,
    )
