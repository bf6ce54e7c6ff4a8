"""Which Linears of a model a runtime takes: from headers, a configuration or a table of shapes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qassay.containers.opening import display_name
from qassay.containers.sources import INDEX_SUFFIX, MmapSource, check_regular, refusal
from qassay.containers.strict_json import JsonError, parse_json
from qassay.core.container import Container, Skipped
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Finding
from qassay.core.text import safe
from qassay.rules.base import ModelFacts, Rule
from qassay.rules.fitting import KEY
from qassay.rules.registry import OF_RUNTIMES
from qassay.run.options import CheckOptions, FitOptions
from qassay.runtimes.fit import Fit, fit
from qassay.runtimes.fit_profile import Asked, Profile, parse_on
from qassay.runtimes.shapes.config import shapes_of_config
from qassay.runtimes.shapes.linear import Shapes
from qassay.runtimes.shapes.table import LARGEST, SUFFIXES, is_table, shapes_of_table

_CONFIG = "config.json"
_WEIGHTS = (".safetensors", ".gguf", INDEX_SUFFIX)


@dataclass(slots=True)
class FitResult:
    """What a runtime does with a model, before it is put into a document.

    Attributes:
        container: The model: its open files (closed by now), or one configuration or table.
        fit: The judgement; None where the model could not be read.
        findings: One a reason.
        unread: What was not judged, and why.
        rules: Codes of the rules that ran.
        crashed: Rules that raised, with the error.
    """

    container: Container
    fit: Fit | None = None
    findings: list[Finding] = field(default_factory=list)
    unread: list[Skipped] = field(default_factory=list)
    rules: list[str] = field(default_factory=list)
    crashed: list[tuple[type[Rule], Exception]] = field(default_factory=list)


def fit_model(
    source: str | os.PathLike[str],
    wanted: FitOptions,
    options: CheckOptions,
    name: str | None = None,
) -> FitResult:
    """Judge a model by its shapes; weights are not read.

    Args:
        source: A model file or folder, a `config.json`, or a table of shapes.
        wanted: The runtime, and what the model shall become there.
        options: Which rules are asked, and how findings are graded.
        name: How the report names the path.

    Returns:
        The result; for an input that cannot be read, one with nothing but its reason.

    Raises:
        UsageError: There is no such runtime, chip, version or mode; or nothing says what floats
            become; or `options` leave no rule to run.
    """
    if not any(options.runs(code) for code in OF_RUNTIMES):
        raise UsageError(
            "nothing would be checked: no rule is left",
            expected=f"at least one of {', '.join(OF_RUNTIMES)}",
            hint="select other rules, or ignore fewer",
        )
    profile, place = parse_on(wanted.on)
    shown = name or display_name(Path(source))
    container = Container(path=shown, format="unknown")
    try:
        container, shapes = read_shapes(source, shown)
    except InputError as error:
        reason = Skipped(error.path or shown, error.reason)
        return FitResult(container, unread=[reason])
    try:
        asked = profile.ask(shapes, place, wanted.to, wanted.group_size, wanted.tp)
        return _judge(container, shapes, profile, asked, options)
    finally:
        container.close()


def _judge(
    container: Container, shapes: Shapes, profile: Profile, asked: Asked, options: CheckOptions
) -> FitResult:
    from qassay.run.check import judge  # noqa: PLC0415

    found = fit(container.path, shapes, profile, asked)
    container.extra[KEY] = found
    only = CheckOptions(
        select=tuple(code for code in OF_RUNTIMES if options.runs(code)),
        severities=options.severities,
        fit=FitOptions(str(asked.place)),
    )
    facts = ModelFacts(container, unread=list(found.unread))
    told = judge(facts, only)
    return FitResult(container, found, told.findings, facts.unread, told.rules, list(facts.crashed))


def with_fit(facts: ModelFacts, wanted: FitOptions) -> ModelFacts:
    """Add to what was measured of a model what a runtime would do with it.

    Raises:
        UsageError: See `fit_model`.
    """
    from qassay.runtimes.shapes.headers import shapes_of_container  # noqa: PLC0415

    profile, place = parse_on(wanted.on)
    container = facts.container
    shapes = shapes_of_container(container)
    asked = profile.ask(shapes, place, wanted.to, wanted.group_size, wanted.tp)
    found = container.extra[KEY] = fit(container.path, shapes, profile, asked)
    known = {skip.name for skip in facts.unread}
    facts.unread.extend(skip for skip in found.unread if skip.name not in known)
    return facts


def read_shapes(source: str | os.PathLike[str], shown: str) -> tuple[Container, Shapes]:
    """Return what was opened and the Linears in it. Close the container when done.

    Raises:
        InputError: It cannot be read, or says nothing about shapes.
    """
    path = Path(source)
    lower = path.name.lower()
    if path.is_dir():
        if not _has_weights(path, shown) and (path / _CONFIG).is_file():
            return _of_text(path / _CONFIG, f"{shown.rstrip('/')}/{_CONFIG}", ".json")
    elif lower.endswith(SUFFIXES) and not lower.endswith(INDEX_SUFFIX):
        return _of_text(path, shown, path.suffix.lower())
    from qassay.encodings.registry import open_with_encodings  # noqa: PLC0415
    from qassay.runtimes.shapes.headers import shapes_of_container  # noqa: PLC0415

    container = open_with_encodings(source, shown)
    try:
        shapes = shapes_of_container(container)
    except BaseException:
        container.close()
        raise
    missing = container.extra.get("missing_tensors")
    if isinstance(missing, int) and missing:
        reason = f"{missing:,} tensors that the index lists are in no file"
        shapes.unread.append(Skipped(container.path, reason))
    if not shapes.linears and not shapes.unread:
        shapes.unread.append(Skipped(container.path, "it holds no Linear"))
    return container, shapes


def _has_weights(path: Path, shown: str) -> bool:
    try:
        with os.scandir(path) as entries:
            return any(entry.name.lower().endswith(_WEIGHTS) for entry in entries)
    except OSError as error:
        raise refusal(error, shown) from error


def _of_text(path: Path, shown: str, suffix: str) -> tuple[Container, Shapes]:
    text = _read(path, shown)
    value = _parse(text, shown) if suffix == ".json" else None
    size = len(text.encode())
    if value is None or is_table(value):
        container = Container(shown, "table", extra={"text_bytes": size})
        return container, shapes_of_table(text, shown, suffix)
    if not isinstance(value, Mapping):
        raise InputError(
            "this JSON is neither a configuration nor a table of shapes",
            path=shown,
            expected="an object with model_type, or a list of objects with name, N and K",
            found=type(value).__name__,
        )
    folder = shown.rpartition("/")[0] or "."
    extra: dict[str, Any] = {"config": value, "text_bytes": size}
    asked = Container(folder, "config", extra=extra)  # what the quantization is read from
    shapes = shapes_of_config(value, shown, asked)
    shapes.bytes_read = size
    return Container(shown, "config", extra=extra), shapes


def _read(path: Path, shown: str) -> str:
    try:
        check_regular(path.stat().st_mode, shown)
    except (OSError, ValueError) as error:
        raise refusal(error, shown) from error
    source = MmapSource(path, shown)
    try:
        if source.size > LARGEST:
            raise InputError(
                "this file is larger than any configuration or table of shapes",
                path=shown,
                expected=f"at most {LARGEST:,} bytes",
                found=f"{source.size:,}",
            )
        return source.read(0, source.size).tobytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            "this file is not UTF-8", path=shown, offset=error.start, expected="UTF-8"
        ) from error
    finally:
        source.close()


def _parse(text: str, shown: str) -> Any:
    try:
        value, end = parse_json(text)
    except JsonError as error:
        raise InputError(
            f"this file is not JSON: {safe(str(error), 80)}", path=shown, expected="JSON"
        ) from error
    if text[end:].strip(" \t\r\n"):
        raise InputError("something follows the JSON value", path=shown, expected="one value")
    return value
