"""The rules that are known: one file each, found by walking this folder."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from qassay.core.errors import DeclarationError

if TYPE_CHECKING:
    from qassay.rules.base import Rule

_by_code: dict[str, type[Rule]] = {}


def register(rule: type[Rule]) -> None:
    """Add a declared rule; called when its class is created.

    Raises:
        DeclarationError: Its code or name belongs to another rule.
    """
    for known in _by_code.values():
        if rule.code == known.code or rule.name == known.name:
            raise DeclarationError(
                f"rule {rule.code} {rule.name} is declared twice",
                expected="a code and a name of its own",
                found=f"declarations in {known.__module__} and {rule.__module__}",
            )
    _by_code[rule.code] = rule


@cache
def all_rules() -> tuple[type[Rule], ...]:
    """Return every rule, in order of code."""
    package = importlib.import_module("qassay.rules")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("q") and module.name[1:4].isdigit():
            importlib.import_module(f"{package.__name__}.{module.name}")
    return tuple(_by_code[code] for code in sorted(_by_code))
