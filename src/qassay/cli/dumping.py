"""Comparing dumps of a whole model, for the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qassay.cli.progress import progress
from qassay.core.errors import UsageError
from qassay.report.document import Report
from qassay.report.of_dumps import report_of
from qassay.run.diagnose_dumps import diagnose_dumps
from qassay.run.options import CheckOptions


def refuse_parts(reference: str | None, given: Sequence[str]) -> None:
    """Refuse options of a single Linear where whole dumps are compared.

    Raises:
        UsageError: There are some, or there is no reference.
    """
    if reference is None or given:
        raise UsageError(
            "what is to be diagnosed?",
            expected="--weights, --inputs and --device for one Linear; --float and --device alone "
            "for dumps of a whole model",
            found=", ".join([*given, "--device", *(["--float"] if reference else [])]),
        )


def whole(
    reference: Path,
    device: Path,
    graph: str | None,
    limit: float | None,
    options: CheckOptions,
    *,
    shown: bool,
) -> Report:
    """Compare two dumps, and return the report."""
    total = _size(reference) + _size(device)
    with progress("comparing", total, shown=shown) as step:
        done = diagnose_dumps(
            reference,
            device,
            graph=None if graph is None else Path(graph),
            limit=limit,
            options=options,
            tell=step,
        )
    return report_of(done)


def _size(path: Path) -> int:
    try:
        files = [path] if path.is_file() else list(path.iterdir())
        return sum(one.stat().st_size for one in files)
    except OSError:
        return 0
