"""A table of shapes: CSV, JSON or YAML with name, N and K."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.runtimes.shapes.linear import LARGEST_AXIS, MOST_LINEARS, Linear, Shapes
from qassay.runtimes.shapes.roles import fused_name, part_of

SUFFIXES = (".csv", ".json", ".yaml", ".yml")
LARGEST = 1 << 20
_NAMES = {"name": "name", "layer": "name", "module": "name", "n": "n", "k": "k", "role": "role"}
_PARALLEL = {"col": "col", "row": "row", "none": "", "": ""}


def shapes_of_table(text: str, path: str, suffix: str) -> Shapes:
    """Return the Linears of a table.

    CSV has a heading line with `name`, `N` and `K` (`role` and `parallel` may follow); JSON and
    YAML hold a list of objects with these keys, or an object with such a list under `shapes`.

    Raises:
        InputError: The table cannot be read, or a row has no name or sizes.
    """
    rows = _csv(text, path) if suffix == ".csv" else _objects(_load(text, path, suffix), path)
    linears = [_linear(row, at, path) for at, row in islice(rows, MOST_LINEARS + 1)]
    if len(linears) > MOST_LINEARS:
        raise InputError(
            "the table has more rows than any model has Linears",
            path=path,
            expected=f"at most {MOST_LINEARS:,}",
        )
    if not linears:
        raise InputError("the table has no rows", path=path, expected="rows of name, N and K")
    return Shapes("table", linears, bytes_read=len(text.encode()))


def is_table(value: object) -> bool:
    """Tell whether a JSON or YAML value is a table of shapes rather than a configuration."""
    return isinstance(value, list) or (
        isinstance(value, Mapping) and isinstance(value.get("shapes"), list)
    )


def _load(text: str, path: str, suffix: str) -> Any:
    try:
        return json.loads(text) if suffix == ".json" else load_yaml(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the table cannot be read: {safe(str(error).splitlines()[0], 100)}",
            path=path,
            expected="a list of objects with name, N and K",
        ) from error


def load_yaml(text: str, *, deepest: int = 8) -> Any:
    """Return a YAML value without aliases, tags of its own or deep nesting.

    Raises:
        ValueError: It has one of these, or is no YAML.
    """
    import yaml  # noqa: PLC0415 - only a catalog or a table in YAML needs it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        # The events come one by one: nothing is built before it is known to be small.
        for event in yaml.parse(text, Loader=loader):
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("aliases are not read")  # noqa: TRY004 - a wrong value, no type
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > deepest:
                raise ValueError("it is nested too deeply")
        return yaml.load(text, Loader=loader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _csv(text: str, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    lines = csv.reader(text.splitlines())
    try:
        heading = [_NAMES.get(word.strip().lower(), word.strip()) for word in next(lines, [])]
        if not {"name", "n", "k"} <= set(heading):
            raise InputError(
                "the table has no heading line",
                path=path,
                expected="name,N,K",
                found=safe(",".join(heading), 60) or "nothing",
            )
        for row in lines:
            if any(cell.strip() for cell in row):
                yield f"line {lines.line_num}", dict(zip(heading, row, strict=False))
    except csv.Error as error:
        raise InputError(
            f"the table cannot be read: {safe(str(error), 100)}", path=path, expected="CSV"
        ) from error


def _objects(value: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    rows: Iterable[Any] = value["shapes"] if isinstance(value, Mapping) and "shapes" in value else (
        value if isinstance(value, list) else ()
    )  # fmt: skip
    for at, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(
                f"entry {at} of the table is no object",
                path=path,
                expected="an object with name, N and K",
                found=safe(repr(row), 60),
            )
        # The first key that means a column counts: `layer` and `name` are the same.
        known: dict[str, Any] = {}
        for key, cell in row.items():
            known.setdefault(_NAMES.get(str(key).lower(), str(key)), cell)
        yield f"entry {at}", known


def _linear(row: Mapping[str, Any], at: str, path: str) -> Linear:
    name = row.get("name")
    if not isinstance(name, str) or not name.strip() or len(name) > 1000:
        raise InputError(
            f"{at} of the table has no name",
            path=path,
            expected="the name of a Linear",
            found=safe(repr(name), 60),
        )
    part = part_of(name.strip())
    role, parallel = row.get("role"), row.get("parallel")
    return Linear(
        name.strip(),
        _size(row.get("n"), "N", at, path),
        _size(row.get("k"), "K", at, path),
        role if isinstance(role, str) and role else part.role,
        _PARALLEL.get(parallel, part.parallel) if isinstance(parallel, str) else part.parallel,
        fused_name(name.strip(), part),
        bias=None,
    )


def _size(value: Any, what: str, at: str, path: str) -> int:
    shown = value
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value.strip()[:20])
    if type(value) is not int or not 1 <= value <= LARGEST_AXIS:
        raise InputError(
            f"{what} in {at} of the table is no size",
            path=path,
            expected=f"a whole number from 1 to {LARGEST_AXIS:,}",
            found=safe(repr(shown), 60),
        )
    return value
