"""Reading headers for `qassay inspect`."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from qassay.core.container import Container
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Finding
from qassay.core.text import safe
from qassay.encodings.registry import open_with_encodings
from qassay.report.document import Report, unreadable
from qassay.report.of_inspect import config_of, key_report, report_of


def run(model: str, key: str | None, show: Callable[[Report], None]) -> Report:
    """Inspect `model` and show the report while the file is open.

    Raises:
        UsageError: The metadata has no `key`.
    """
    try:
        container = open_with_encodings(model)
    except InputError as error:
        report = unreadable("inspect", error.path or model, error)
        show(report)
        return report
    try:
        if key is not None:
            report = key_report(container, key, _value(container, key))
        else:
            report = report_of(container, _structure(container))
        show(report)
    finally:
        container.close()
    return report


def _value(container: Container, key: str) -> Any:
    metadata = {**config_of(container), **container.metadata}
    if key in metadata:
        return metadata[key]
    near = difflib.get_close_matches(key, list(metadata), n=3)
    raise UsageError(
        f"the metadata has no key {safe(key)}",
        path=container.path,
        hint=f"perhaps {', '.join(safe(name) for name in near)}"
        if near
        else "`qassay inspect` without --key lists them",
    )


def _structure(container: Container) -> list[Finding]:
    """Return what is wrong with the structure; rules are not even loaded for a sound one."""
    if not container.defects:
        return []
    from qassay.rules.base import ContainerRule, ModelFacts  # noqa: PLC0415
    from qassay.rules.registry import all_rules  # noqa: PLC0415

    facts = ModelFacts(container)
    return [
        finding
        for rule in all_rules()
        if issubclass(rule, ContainerRule)
        for finding in rule().check(facts)
    ]
