"""A table of shapes: CSV, JSON or YAML with name, N and K."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from qassay.containers.strict_json import JsonError, parse_json
from qassay.core.errors import InputError
from qassay.core.text import safe
from qassay.runtimes.shapes.linear import LARGEST_AXIS, MOST_LINEARS, Linear, Shapes
from qassay.runtimes.shapes.roles import fused_name, part_of

SUFFIXES = (".csv", ".json", ".yaml", ".yml")
LARGEST = 1 << 20
_NAMES = ("name", "module", "layer")
"""Headings of the name; the first that is there counts, as `layer` may be a number beside it."""
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
        isinstance(value, Mapping)
        and isinstance(value.get("shapes"), list)
        and "model_type" not in value
    )


def _load(text: str, path: str, suffix: str) -> Any:
    try:
        return _json(text) if suffix == ".json" else load_yaml(text)
    except (ValueError, JsonError) as error:
        raise InputError(
            f"the table cannot be read: {safe(str(error).splitlines()[0], 100)}",
            path=path,
            expected="a list of objects with name, N and K",
        ) from error


def _json(text: str) -> Any:
    value, end = parse_json(text)
    if text[end:].strip(" \t\r\n"):
        raise ValueError("something follows the JSON value")
    return value


def load_yaml(text: str, *, deepest: int = 8) -> Any:
    """Return a YAML value made of lists, mappings and strings.

    Every scalar stays the text that it is: numbers of YAML 1.1 are a trap (`1:30` is 90) and can
    take minutes to build. Aliases, tags and deep nesting are refused.

    Raises:
        ValueError: It has one of these, or is no YAML.
    """
    import yaml  # noqa: PLC0415 - only a table in YAML needs it

    root: list[Any] = []
    open_: list[tuple[Any, list[Any]]] = [(root, [])]  # what is being filled, and a key for it
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            if isinstance(event, yaml.DocumentStartEvent) and root:
                raise ValueError("there is more than one document")
            if isinstance(event, yaml.AliasEvent):
                raise ValueError("aliases are not read")  # noqa: TRY004 - a wrong value, no type
            if getattr(event, "tag", None) not in (None, "!"):
                raise ValueError("tags are not read")
            if isinstance(event, yaml.ScalarEvent):
                _put(open_[-1], event.value)
            elif isinstance(event, yaml.CollectionStartEvent):
                if len(open_) > deepest:
                    raise ValueError("it is nested too deeply")
                made: Any = [] if isinstance(event, yaml.SequenceStartEvent) else {}
                _put(open_[-1], made)
                open_.append((made, []))
            elif isinstance(event, yaml.CollectionEndEvent):
                open_.pop()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return root[0] if root else None


def _put(place: tuple[Any, list[Any]], value: Any) -> None:
    """Add a value to a list, or a key and then its value to a mapping."""
    holder, key = place
    if isinstance(holder, list):
        holder.append(value)
    elif not key:
        if not isinstance(value, str):
            raise ValueError("a key is no text")  # noqa: TRY004 - as for the other faults
        if value in holder:
            raise ValueError(f"the key {value[:40]} stands twice")
        key.append(value)
    else:
        holder[key.pop()] = value


def _csv(text: str, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    lines = csv.reader(io.StringIO(text, newline=""))
    try:
        heading = [word.strip() for word in next(lines, [])]
        columns = _columns(heading)
        if not {"name", "n", "k"} <= columns.keys():
            raise InputError(
                "the table has no heading line",
                path=path,
                expected="name,N,K",
                found=safe(",".join(heading), 60) or "nothing",
            )
        _refuse_twice(heading, columns, path)
        for row in lines:
            if any(cell.strip() for cell in row):
                known = {name: row[at] for name, at in columns.items() if at < len(row)}
                yield f"line {lines.line_num}", known
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
        keys = [*row, *(key for key, _ in getattr(row, "repeated", ()))]
        columns = _columns([str(key) for key in keys])
        _refuse_twice([str(key) for key in keys], columns, path)
        yield f"entry {at}", {name: row[keys[place]] for name, place in columns.items()}


def _columns(heading: list[str]) -> dict[str, int]:
    """Return where the columns stand that mean something."""
    words = [word.lower() for word in heading]
    wanted: tuple[str, ...] = ("n", "k", "role", "parallel")
    found = {word: words.index(word) for word in wanted if word in words}
    name = next((word for word in _NAMES if word in words), None)
    return found if name is None else {"name": words.index(name), **found}


def _refuse_twice(heading: list[str], columns: Mapping[str, int], path: str) -> None:
    """Refuse a table that states something twice.

    Raises:
        InputError: A heading that means something stands twice.
    """
    words = [word.lower() for word in heading]
    for at in columns.values():
        if words.count(words[at]) > 1:
            raise InputError(
                f"the table has two columns {safe(heading[at], 20)}",
                path=path,
                expected="name, N and K, each once",
                found=safe(",".join(heading), 60),
            )


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
