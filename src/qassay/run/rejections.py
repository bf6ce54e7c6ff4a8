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


def numbered(findings: list[Finding]) -> list[Finding]:
    """Return findings told apart where they are alike in code, path and tensor."""
    seen: dict[tuple[str, str, str | None], int] = {}
    told = []
    for one in findings:
        key = (one.code, one.path, one.tensor)
        seen[key] = seen.get(key, -1) + 1
        told.append(one.numbered(seen[key]))
    return told
