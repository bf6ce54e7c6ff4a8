"""The renderers that are known: one file each in this folder, found by its name.

`render_sarif.py` makes `--output-format sarif`; it holds `render(report, look) -> Iterator[str]`,
which yields pieces of text. Listing the names imports nothing.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from qassay.core.errors import UsageError

if TYPE_CHECKING:
    from qassay.report.document import Report
    from qassay.report.look import Look

    Renderer = Callable[[Report, Look], Iterator[str]]

_PREFIX = "render_"


@cache
def renderers() -> tuple[str, ...]:
    """Return the names of the output formats there are, `text` first."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    names = [
        module.name.removeprefix(_PREFIX) for module in modules if module.name.startswith(_PREFIX)
    ]
    return tuple(sorted(names, key=lambda name: (name != "text", name)))


def renderer(name: str) -> Renderer:
    """Return the renderer called `name`.

    Raises:
        UsageError: There is none.
    """
    if name not in renderers():
        raise UsageError(
            f"there is no output format called {name}",
            expected=" or ".join(renderers()),
            hint="name one of these with --output-format",
        )
    render: Renderer = importlib.import_module(f"qassay.report.{_PREFIX}{name}").render
    return render
