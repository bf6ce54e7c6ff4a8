"""The rules that are known: one file each, found by walking this folder."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from qassay.core.errors import DeclarationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qassay.rules.base import Rule

_by_code: dict[str, type[Rule]] = {}


def register(declared: type[Rule]) -> None:
    """Add a declared rule; called when its class is created.

    Raises:
        DeclarationError: Its code or name belongs to another rule.
    """
    for known in _by_code.values():
        if declared.code == known.code or declared.name == known.name:
            raise DeclarationError(
                f"rule {declared.code} {declared.name} is declared twice",
                expected="a code and a name of its own",
                found=f"declarations in {known.__module__} and {declared.__module__}",
            )
    _by_code[declared.code] = declared


OF_TARGETS = ("Q501", "Q502", "Q503", "Q504", "Q505", "Q506")
"""Rules that have something to say only of a target (`--to`): not imported without one."""

OF_RUNTIMES = ("Q701", "Q702", "Q703", "Q704")
"""Rules that have something to say only of a runtime (`fit`, `check --on`)."""

OF_COMPARISONS = ("Q601", "Q602", "Q603", "Q604", "Q605", "Q606", "Q608", "Q610", "Q611", "Q612",
                  "Q613", "Q617")  # fmt: skip
"""Rules that have something to say only of two models (`compare`): a check does not run them."""

OF_DIAGNOSES = ("Q607", "Q609", "Q614", "Q615", "Q616", "Q801", "Q803")
"""Rules that have something to say only of a device's outputs (`diagnose`)."""

NAMED_BY_DIAGNOSES = ("Q603", "Q604", "Q605", "Q606", "Q608", "Q610", "Q613", *OF_DIAGNOSES)
"""Rules that `diagnose` asks: those, and the ones whose faults a device may have as well."""


@cache
def codes() -> Mapping[str, str]:
    """Return the module of each rule by code, in order of code; imports none of them."""
    package = importlib.import_module("qassay.rules")
    found = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("q") and module.name[1:4].isdigit():
            found[module.name[:4].upper()] = f"{package.__name__}.{module.name}"
    return dict(sorted(found.items()))


def rule(code: str) -> type[Rule]:
    """Return the rule with `code`, one of `codes`."""
    importlib.import_module(codes()[code])
    return _by_code[code]


@cache
def all_rules() -> tuple[type[Rule], ...]:
    """Return every rule, in order of code."""
    return tuple(rule(code) for code in codes())
