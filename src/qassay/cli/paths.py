"""Paths on the command line."""

from __future__ import annotations

from typing import Any

import click


class ModelPath(click.Path):
    """A path that has to be there: `""`, most often an unset variable, is not this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path as typed."""
        if value == "":
            self.fail("the path is empty", param, ctx)
        return super().convert(value, param, ctx)
