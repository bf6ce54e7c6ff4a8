"""The engines that are known: one file each in this folder."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

from qassay.core.errors import DeclarationError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qassay.runtimes.base import Engine

_by_id: dict[str, type[Engine]] = {}


def register(engine: type[Engine]) -> None:
    """Add a declared engine; called when its class is created.

    Raises:
        DeclarationError: Its id belongs to another engine.
    """
    taken = _by_id.get(engine.id)
    if taken is not None:
        raise DeclarationError(
            f"engine {engine.id} is declared twice",
            expected="an id of its own",
            found=f"declarations in {taken.__module__} and {engine.__module__}",
        )
    _by_id[engine.id] = engine


@cache
def all_engines() -> Mapping[str, type[Engine]]:
    """Return every engine by id."""
    package = importlib.import_module("qassay.runtimes")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return dict(sorted(_by_id.items()))


def engine(name: str) -> type[Engine]:
    """Return the engine called `name`.

    Raises:
        UsageError: There is none.
    """
    every = all_engines()
    if name not in every:
        raise UsageError("no such engine", expected=", ".join(every), found=repr(name))
    return every[name]
