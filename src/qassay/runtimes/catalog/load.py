"""The catalogs that come with the package: one YAML file a runtime in this folder.

YAML is read when a runtime is asked about, and only then: PyYAML is a small dependency, and a
second form of the same entries made at build time would be one more thing that can be stale.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from qassay.core.errors import DeclarationError, UsageError
from qassay.core.text import safe
from qassay.runtimes.catalog.grammar import Catalog, read_catalog

_SUFFIX = ".yaml"
_offered: dict[str, Catalog] = {}


def offer(made: Catalog) -> None:
    """Add a catalog that does not come with the package; it goes before one that does."""
    _offered[made.runtime] = made
    catalog.cache_clear()


@cache
def catalogs() -> tuple[str, ...]:
    """Return the runtimes that there is a catalog of; reads none."""
    folder = files("qassay.runtimes.catalog")
    names = (entry.name for entry in folder.iterdir())
    return tuple(sorted(name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX)))


@cache
def catalog(runtime: str) -> Catalog:
    """Return what is known of a runtime.

    Raises:
        UsageError: There is no catalog of it.
        DeclarationError: The catalog is wrong.
    """
    if runtime in _offered:
        return _offered[runtime]
    if runtime not in catalogs():
        raise UsageError(
            "no such runtime", expected=", ".join(catalogs()), found=safe(repr(runtime), 60)
        )
    import yaml  # noqa: PLC0415

    text = (files("qassay.runtimes.catalog") / f"{runtime}{_SUFFIX}").read_text("utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = read_catalog(yaml.load(text, Loader=loader), f"{runtime}{_SUFFIX}")  # noqa: S506
    if found.runtime != runtime:
        raise DeclarationError(
            f"{runtime}{_SUFFIX} is about another runtime", expected=runtime, found=found.runtime
        )
    return found
