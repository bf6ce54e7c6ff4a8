"""The functions behind `import qassay`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from qassay.core.container import Container
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Severity
from qassay.core.limits import MOST_JOBS
from qassay.report.document import Report, unreadable
from qassay.rules.registry import codes
from qassay.run.check import check as run_check
from qassay.run.model import Model
from qassay.run.options import CHUNK_BYTES, CheckOptions, FitOptions
from qassay.runtimes.targets import parse_targets

FilePath: TypeAlias = "str | os.PathLike[str]"
Source: TypeAlias = "FilePath | Model"
Severities: TypeAlias = "Mapping[str, Severity | str]"

_MOST = 1 << 31
_MOST_RANKS = 1024
_MOST_ROWS = 1024
_MOST_SEED = (1 << 63) - 1


def open(path: FilePath) -> Model:  # noqa: A001
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
    severities: Severities | None = None,
    jobs: int | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    stats: str = "default",
    to: str | Iterable[str] = (),
    group_size: int | None = None,
    imatrix: FilePath | None = None,
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
    _whole("jobs", jobs, 1, MOST_JOBS)
    _whole("chunk_bytes", chunk_bytes, 1, 1 << 40)
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
    return Report.of_check(run_check(_source(source), options))


def compare(
    reference: Source,
    other: Source,
    *,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    severities: Severities | None = None,
) -> Report:
    """Set two models side by side: what quantizing cost, or whether they are the same quantization.

    Findings are about `other`; `report.to_dict()["result"]` holds the relation and every tensor's.
    Like `check`, it does not raise for a model that cannot be read.

    Args:
        reference: A path, or an open `Model`.
        other: What is set against it.
        select: Code prefixes of rules to run (`"Q6"`); all when empty.
        ignore: Code prefixes of rules not to run.
        severities: Severity by whole rule code, in place of the rule's own.

    Raises:
        UsageError: An argument names no rule or severity, or no rule is left to run.
    """
    from qassay.report.of_compare import report_of  # noqa: PLC0415 - most scripts compare nothing
    from qassay.run.compare import compare as run_compare  # noqa: PLC0415

    options = _options(select, ignore, severities)
    return report_of(run_compare(_source(reference), _source(other), options))


def fit(
    source: FilePath,
    *,
    on: str,
    to: str | None = None,
    group_size: int | None = None,
    tp: int = 1,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    severities: Severities | None = None,
) -> Report:
    """Tell which Linears of a model a runtime takes; no weight is read.

    Like `check`, it does not raise for a model that cannot be read.

    Args:
        source: A model file or folder, a `config.json`, or a table of shapes.
        on: The runtime: `"sophgo:bm1684x"`, `"sophgo:bm1684x@1.28.1"`.
        to: What floats are quantized to there, as the runtime spells it (`"w4bf16"`); by default
            what the checkpoint states.
        group_size: Weights a group, where the runtime quantizes floats; -1 for one scale a row.
        tp: Ranks of tensor parallelism.
        select: Code prefixes of rules to run; all when empty.
        ignore: Code prefixes of rules not to run.
        severities: Severity by whole rule code, in place of the rule's own.

    Raises:
        UsageError: There is no such runtime, chip, version or mode, or an argument is out of range.
    """
    from qassay.report.of_fit import report_of  # noqa: PLC0415
    from qassay.run.fit import fit_model  # noqa: PLC0415

    _text("on", on)
    _whole("group_size", group_size, -1, _MOST)
    _whole("tp", tp, 1, _MOST_RANKS)
    wanted = FitOptions(on, to if to is None else _text("to", to), group_size, tp)
    return report_of([fit_model(_path(source), wanted, _options(select, ignore, severities))])


def diagnose(
    *,
    weights: FilePath,
    inputs: FilePath,
    device: FilePath,
    reference: FilePath | None = None,
    layer: str | None = None,
    reference_layer: str | None = None,
    input_name: str | None = None,
    output_name: str | None = None,
    group_size: int | None = None,
    weight_bits: int | None = None,
    on: str | None = None,
    pairs: bool = True,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    severities: Severities | None = None,
) -> Report:
    """Tell whose fault the wrong output of one Linear is.

    `report.to_dict()["result"]["outputs"]` holds a verdict for each array of outputs. Like
    `check`, it does not raise for a file that cannot be read.

    Args:
        weights: What the device has: a checkpoint, a `.mlir` with its npz, or an npz.
        inputs: What it was given: npz, npy, safetensors, JSON of polygraphy, a folder of dumps.
        device: What came out, in the same forms.
        reference: The weights before they were quantized, or the outputs that they gave.
        layer: The layer, where `weights` hold several.
        reference_layer: Its name in `reference`, where that is another.
        input_name: The array of inputs, where there are several.
        output_name: The array of outputs, where there are several.
        group_size: Weights a group, where the files do not say.
        weight_bits: 4 or 8: width of the codes in an npz.
        on: Chip and version of its compiler: `"sophgo:bm1684x@1.30.2"`.
        pairs: Whether two faults at once are tried.
        select: Code prefixes of rules to run; all when empty.
        ignore: Code prefixes of rules not to run.
        severities: Severity by whole rule code, in place of the rule's own.

    Raises:
        UsageError: The files do not belong together, or it is not clear which arrays are meant; or
            an argument is out of range.
    """
    from qassay.report.of_diagnose import report_of  # noqa: PLC0415
    from qassay.run.diagnose import Asked  # noqa: PLC0415
    from qassay.run.diagnose import diagnose as run_diagnose  # noqa: PLC0415
    from qassay.runtimes.sophgo.named import aimed_at  # noqa: PLC0415

    _whole("group_size", group_size, 1, _MOST)
    asked = Asked(
        Path(_path(weights)),
        Path(_path(inputs)),
        Path(_path(device)),
        reference=None if reference is None else Path(_path(reference)),
        layer=layer,
        layer_of_reference=reference_layer,
        input_name=input_name,
        output_name=output_name,
        group_size=group_size,
        weight_bits=_bits(weight_bits),
        on=None if on is None else aimed_at(_text("on", on)),
        pairs=pairs,
    )
    options = _options(select, ignore, severities)
    try:
        return report_of(run_diagnose(asked, options))
    except InputError as error:
        return unreadable("diagnose", error.path or os.fspath(device), error)


def diagnose_dumps(
    reference: FilePath,
    device: FilePath,
    *,
    mlir: FilePath | None = None,
    limit: float | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    severities: Severities | None = None,
) -> Report:
    """Compare two dumps of a whole model and name the first tensor that is bad.

    Like `check`, it does not raise for a dump that cannot be read.

    Args:
        reference: Tensors as they should be.
        device: Tensors as they came out.
        mlir: The `.mlir` of the device's model, whose order of operations counts.
        limit: A tensor is bad whose error (RMS) is beyond this share of its size; 0.5 by default.
        select: Code prefixes of rules to run; all when empty.
        ignore: Code prefixes of rules not to run.
        severities: Severity by whole rule code, in place of the rule's own.

    Raises:
        UsageError: No tensor is in both, or an argument is out of range.
    """
    from qassay.report.of_dumps import report_of  # noqa: PLC0415
    from qassay.run.diagnose_dumps import diagnose_dumps as run_dumps  # noqa: PLC0415

    if limit is not None and not (
        isinstance(limit, int | float) and math.isfinite(limit) and limit >= 0
    ):
        raise UsageError("limit is out of range", expected="0 or more", found=repr(limit))
    graph = None if mlir is None else Path(_path(mlir))
    options = _options(select, ignore, severities)
    one, two = Path(_path(reference)), Path(_path(device))
    try:
        return report_of(run_dumps(one, two, graph=graph, limit=limit, options=options))
    except InputError as error:
        return unreadable("diagnose", error.path or str(two), error)


def probe(
    model: FilePath,
    layer: str | None = None,
    *,
    output: FilePath,
    seed: int = 0,
    rows: int = 8,
    weight_bits: int | None = None,
    on: str | None = None,
) -> Report:
    """Write the inputs to run on a device, and a page beside them that says how.

    Arrays of the npz: `prefill` float32 `[1, M, K]`, `decode` float32 `[R, 1, K]`. The same
    weights and seed give the same bytes.

    Args:
        model: What `diagnose` takes as `weights`.
        layer: The Linear, where there are several.
        output: The npz to write; the page gets the same name with `.md`.
        seed: Of random rows.
        rows: Random rows.
        weight_bits: 4 or 8: width of the codes in an npz.
        on: The chip, for the page.

    Raises:
        InputError: The model cannot be read; nothing is written then.
        UsageError: There is no such layer, a file is there already, or an argument is out of range.
    """
    from qassay.report.of_probe import report_of  # noqa: PLC0415
    from qassay.run.probe import write_probes  # noqa: PLC0415
    from qassay.runtimes.sophgo.named import aimed_at  # noqa: PLC0415

    _whole("seed", seed, 0, _MOST_SEED)
    _whole("rows", rows, 1, _MOST_ROWS)
    written = write_probes(
        Path(_path(model)),
        layer,
        Path(_path(output)),
        seed=seed,
        rows=rows,
        weight_bits=_bits(weight_bits),
        on=None if on is None else aimed_at(_text("on", on)),
    )
    return report_of(written)


def _source(source: Source) -> FilePath | Container:
    return source.container if isinstance(source, Model) else _path(source)


def _path(path: FilePath) -> FilePath:
    if not isinstance(path, str | os.PathLike):
        raise UsageError("this is no path", expected="a str or a Path", found=type(path).__name__)
    if not os.fspath(path):
        raise UsageError("the path is empty", expected="a file or folder; '.' for this one")
    return path


def _text(name: str, given: str) -> str:
    if not isinstance(given, str) or not given:
        raise UsageError(f"{name} names nothing", expected="a str", found=repr(given))
    return given


def _whole(name: str, number: int | None, least: int, most: int) -> None:
    """Refuse what is neither None nor a whole number in range; True is no number."""
    if number is not None and not (type(number) is int and least <= number <= most):
        wanted = f"a whole number from {least} to {most}"
        raise UsageError(f"{name} is out of range", expected=wanted, found=repr(number))


def _bits(width: int | None) -> int | None:
    if width is not None and (type(width) is not int or width not in (4, 8)):
        raise UsageError("weight_bits is out of range", expected="4 or 8", found=repr(width))
    return width


def _options(
    select: Iterable[str], ignore: Iterable[str], severities: Severities | None
) -> CheckOptions:
    return CheckOptions(
        select=_codes(select), ignore=_codes(ignore), severities=_severities(severities or {})
    )


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


def _severities(given: Severities) -> dict[str, Severity]:
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
