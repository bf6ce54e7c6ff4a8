"""The functions behind `import qassay`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from qassay.core.errors import UsageError
from qassay.core.finding import Severity
from qassay.core.limits import MOST_JOBS
from qassay.report.document import Report
from qassay.rules.registry import codes
from qassay.run.check import check as run_check
from qassay.run.model import Model
from qassay.run.options import CHUNK_BYTES, CheckOptions
from qassay.runtimes.targets import parse_targets

Source: TypeAlias = "str | os.PathLike[str] | Model"


def open(path: str | os.PathLike[str]) -> Model:  # noqa: A001
    """Open a model file or folder for reading; see `Model.open`.

    Raises:
        UsageError: `path` is empty, or no path.
    """
    return Model.open(_path(path))


def check(
    source: Source,
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    severities: Mapping[str, Severity | str] | None = None,
    jobs: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    stats: str = "default",
    to: str | Iterable[str] = (),
    group_size: int | None = None,
    imatrix: str | os.PathLike[str] | None = None,
) -> Report:
    """Audit a model and return the report; `report.to_dict()` is the JSON document.

    A file that cannot be read at all gives a report with the verdict `incomplete` and the reason
    in `coverage`, not an exception: a batch goes on.

    Args:
        source: A path, or an open `Model`.
        select: Code prefixes of rules to run (`"Q2"`); all when empty.
        ignore: Code prefixes of rules not to run.
        severities: Severity by whole rule code (`"Q301"`), in place of the rule's own.
        jobs: Threads; one for each processor by default. The report does not depend on it.
        chunk_bytes: Bytes read at a time. The report does not depend on it.
        stats: `full` counts the codes of every block, `default` those of a sample.
        to: What float tensors are meant to become (`"Q8_0"`, `["Q8_0", "Q4_K_M"]`): adds the rules
            Q501 to Q506, which say what that would do to them.
        group_size: Weights a group, for targets that are stored in groups.
        imatrix: An importance file that shall be for the model: what of it cannot be used (Q507).

    Raises:
        UsageError: An argument names no rule, severity or target, or is out of range.
    """
    if stats not in ("default", "full"):
        raise UsageError("stats is out of range", expected="default or full", found=repr(stats))
    for name, number, most in (("jobs", jobs, MOST_JOBS), ("chunk_bytes", chunk_bytes, 1 << 40)):
        if number is not None and not (type(number) is int and 1 <= number <= most):
            wanted = f"a whole number from 1 to {most}"
            raise UsageError(f"{name} is out of range", expected=wanted, found=repr(number))
    options = CheckOptions(
        select=_codes(select),
        ignore=_codes(ignore),
        severities=_severities(severities or {}),
        jobs=jobs,
        chunk_bytes=chunk_bytes,
        full_stats=stats == "full",
        targets=parse_targets([to] if isinstance(to, str) else to, group_size),
        importance=None if imatrix is None else _path(imatrix),
    )
    chosen = source.container if isinstance(source, Model) else _path(source)
    return Report.of_check(run_check(chosen, options))


def _path(path: str | os.PathLike[str]) -> str | os.PathLike[str]:
    if not isinstance(path, str | os.PathLike):
        raise UsageError("this is no path", expected="a str or a Path", found=type(path).__name__)
    if not os.fspath(path):
        raise UsageError("the path is empty", expected="a file or folder; '.' for this one")
    return path


def _codes(prefixes: Iterable[str]) -> tuple[str, ...]:
    if not isinstance(prefixes, Iterable):
        raise UsageError("rules are given as a list", found=repr(prefixes))
    given = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
    for prefix in given:
        known = isinstance(prefix, str) and any(code.startswith(prefix) for code in codes())
        if not prefix or not known:
            raise UsageError(
                "no rule has such a code", found=repr(prefix), hint="see `qassay rules`"
            )
    return given


def _severities(given: Mapping[str, Severity | str]) -> dict[str, Severity]:
    if not isinstance(given, Mapping):
        raise UsageError("severities are given by code", expected="a dict", found=repr(given))
    return {code: _severity(code, word) for code, word in given.items()}


def _severity(code: str, word: Severity | str) -> Severity:
    if code not in codes():
        raise UsageError(
            "severities are given by whole codes", expected="a code like Q301", found=repr(code)
        )
    if isinstance(word, Severity):
        return word
    try:
        return Severity.parse(word)
    except (AttributeError, ValueError):
        raise UsageError(
            f"the severity of {code} is none", expected="info, warning or error", found=repr(word)
        ) from None
