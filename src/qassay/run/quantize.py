"""`qassay quantize`: check the source, write the new file while measuring, check that as well.

The source is read twice: once to check it and to work out what its new types would do to it, and
once to quantize it, so that nothing is written of a source that is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from qassay.containers.gguf_out import GgufWriter, NewTensor, Pair
from qassay.containers.new_file import check_destination
from qassay.containers.opening import display_name
from qassay.core.container import Container, Skipped
from qassay.core.errors import InputError, UsageError
from qassay.core.finding import Certainty, Finding, Severity
from qassay.core.text import safe
from qassay.encodings.registry import open_with_encodings
from qassay.kernels.select import choose
from qassay.run.check import CheckResult, check, judge
from qassay.run.importance import ImportanceFile
from qassay.run.options import CheckOptions
from qassay.run.quantize_error import RoundTrip
from qassay.run.quantize_importance import (
    given_to,
    importance_for,
    refusals,
    with_importance_pairs,
)
from qassay.run.quantize_metadata import pairs_of
from qassay.run.quantize_plan import Planned, Wish, plan
from qassay.run.quantize_stream import CHUNK_WEIGHTS, LostError, converted

Watch = Callable[[str, int], Callable[[int], None] | None]
"""Called as a phase begins, with its name and bytes; returns what to call with bytes done."""

LONGEST_NAME = 63
"""Bytes of a tensor name (ggml's GGML_MAX_NAME, less the final zero)."""

NEVER_ALLOWED = ("Q007",)
"""Two tensors of one name cannot be told apart in the new file either."""


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    """What to write and how.

    Attributes:
        wish: Engine and types.
        allow: Codes, or beginnings of codes, of errors that do not stop the work; they count as
            warnings.
        overwrite: Whether a file under the new name is replaced.
        check: How the source and the new file are checked; its `jobs` is for the rest as well.
            What the source is checked for (`targets`) is `wish`, whatever it says.
        chunk_weights: Weights converted at a time.
        watch: Told of phases and progress.
        importance: An importance file, for the quantizers that use one.
    """

    wish: Wish
    allow: tuple[str, ...] = ()
    overwrite: bool = False
    check: CheckOptions = field(default_factory=CheckOptions)
    chunk_weights: int = CHUNK_WEIGHTS
    watch: Watch | None = None
    importance: str | os.PathLike[str] | None = None

    def watched(self, phase: str, nbytes: int) -> Callable[[int], None] | None:
        """Tell that a phase begins."""
        return self.watch(phase, nbytes) if self.watch is not None else None


@dataclass(slots=True)
class Written:
    """One tensor of the new file.

    Attributes:
        planned: What it was made from and as what.
        error: The measured round trip; None for integers.
        nbytes: Its bytes in the new file.
    """

    planned: Planned
    error: RoundTrip | None
    nbytes: int


@dataclass(slots=True)
class QuantizeResult:
    """What came of it.

    Attributes:
        options: What was asked for.
        destination: The new file, as reports name it.
        source: The check of the source, the preflight's findings included.
        result: The check of the new file; None when nothing was written.
        tensors: What was written, in file order.
        refused: Codes of the errors for which nothing was written.
        allowed: Codes of the errors that were found and allowed.
        importance: How reports name the importance file, if there is one.
    """

    options: QuantizeOptions
    destination: str
    source: CheckResult
    result: CheckResult | None = None
    tensors: list[Written] = field(default_factory=list)
    refused: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    importance: str | None = None

    @property
    def written(self) -> bool:
        """Whether there is a new file."""
        return self.result is not None


def quantize(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], options: QuantizeOptions
) -> QuantizeResult:
    """Write `source` as a GGUF file `destination` in the types asked for.

    Nothing is written when the source has errors that are not allowed, or could not be checked
    in full.

    Raises:
        UsageError: The source cannot become such a file, or the file cannot be written.
    """
    target = _target(destination)
    files = _files(Path(source))
    if options.importance is not None:
        files.append(Path(options.importance))
    check_destination(target, files, overwrite=options.overwrite)
    try:
        container = open_with_encodings(source)
    except InputError:
        unread = check(source, options.check)
        return QuantizeResult(options, display_name(Path(destination)), unread)
    try:
        return _quantize(container, target, destination, options)
    finally:
        container.close()


def _target(given: str | os.PathLike[str]) -> Path:
    path = Path(given)
    if path.suffix.lower() != ".gguf":
        raise UsageError(
            "the new file has to be a GGUF file",
            path=safe(display_name(path)),
            expected="a name that ends in .gguf",
        )
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:  # links that lead in circles
        raise UsageError(
            f"the new file cannot be written: {error}", path=safe(display_name(path))
        ) from error


def _files(source: Path) -> list[Path]:
    """Return the files that `source` may stand for; none of them is ever replaced."""
    folder = source if source.is_dir() else source.parent if source.suffix == ".json" else None
    try:
        return [source] if folder is None else [*folder.iterdir()]
    except OSError:
        return [source]


def _quantize(
    container: Container,
    target: Path,
    destination: str | os.PathLike[str],
    options: QuantizeOptions,
) -> QuantizeResult:
    planned = plan(container, options.wish)
    if options.importance is None:
        return _checked(container, planned, target, destination, options, None)
    file = importance_for(planned, container, options.importance)
    try:
        return _checked(container, planned, target, destination, options, file)
    finally:
        file.close()


def _checked(
    container: Container,
    planned: list[Planned],
    target: Path,
    destination: str | os.PathLike[str],
    options: QuantizeOptions,
    importance: ImportanceFile | None,
) -> QuantizeResult:
    nbytes = sum(one.stored.nbytes or 0 for one in planned)
    step = options.watched("checking the source", nbytes)
    checked = check(container, replace(options.check, progress=step, targets=(options.wish,)))
    found = [finding for one in planned for finding in _name_too_long(one)]
    if importance is not None:
        found += refusals(importance, planned, options.check)
    findings, allowed = _graded([*checked.findings, *found], options.allow)
    checked = replace(checked, findings=findings)
    refused = sorted({one.code for one in findings if one.severity >= Severity.ERROR})
    result = QuantizeResult(
        options,
        display_name(Path(destination)),
        checked,
        refused=tuple(refused),
        allowed=tuple(sorted(allowed)),
        importance=None if importance is None else importance.path,
    )
    if refused or not checked.complete:
        return result
    try:
        pairs = pairs_of(container, options.wish, checked.rules, result.allowed)
        if importance is not None:
            planned = given_to(planned, importance)
            pairs = with_importance_pairs(pairs, importance)
        result.tensors = _write(planned, pairs, target, options)
    except LostError as lost:
        _not_read_again(result, lost.planned.stored.name, lost.error)
        return result
    except InputError as error:
        _not_read_again(result, error.path or container.path, error)
        return result
    step = options.watched("checking the result", sum(one.nbytes for one in result.tensors))
    after = check(destination, replace(options.check, progress=step, targets=()))
    after.findings, _ = _graded(after.findings, options.allow)
    result.result = after
    return result


def _not_read_again(result: QuantizeResult, name: str, error: InputError) -> None:
    """Note that a file was cut short after its check: so much of the source is unchecked."""
    checked, options = result.source, result.options.check
    reason = f"it could be checked, and not be read again: {error.reason}"
    checked.facts.unread.append(Skipped(name, reason))
    checked.facts.tensors[:] = [one for one in checked.facts.tensors if one.stored.name != name]
    if options.runs("Q901"):
        noted = judge(checked.facts, replace(options, select=("Q901",), targets=()))
        checked.findings += noted.findings


def _name_too_long(planned: Planned) -> Iterator[Finding]:
    """Say before the work what a check of the new file would say after it."""
    stored = planned.stored
    length = len(stored.name.encode("utf-8", "surrogateescape"))
    if stored.type.family == "ggml" or length <= LONGEST_NAME:  # a GGUF source has it said already
        return
    yield Finding(
        "Q003",
        "malformed-header",
        Severity.ERROR,
        Certainty.PROVEN,
        f"the name of tensor '{safe(stored.name)}' has {length} bytes, and llama.cpp refuses a "
        f"GGUF file with names of more than {LONGEST_NAME}",
        path=stored.path,
        tensor=stored.name,
        data={"bytes": length, "limit": LONGEST_NAME},
        help="rename it in the source, as the converter of its architecture does",
    )


def _graded(findings: Iterable[Finding], allow: Sequence[str]) -> tuple[list[Finding], set[str]]:
    """Return the findings, allowed errors as warnings, and the codes of those."""
    graded: list[Finding] = []
    allowed: set[str] = set()
    for finding in findings:
        if finding.severity < Severity.ERROR or finding.code in NEVER_ALLOWED:
            graded.append(finding)
        elif finding.code.startswith(tuple(allow)):
            allowed.add(finding.code)
            graded.append(finding.with_severity(Severity.WARNING))
        else:
            graded.append(finding)
    return graded, allowed


def _write(
    planned: list[Planned], pairs: Sequence[Pair], target: Path, options: QuantizeOptions
) -> list[Written]:
    new = [NewTensor(one.stored.name, one.type, one.shape) for one in planned]
    done = [
        Written(one, None if one.source.kind == "integer" else RoundTrip(), tensor.nbytes)
        for one, tensor in zip(planned, new, strict=True)
    ]
    nbytes = sum(one.stored.nbytes or 0 for one in planned)
    step = options.watched("quantizing", nbytes)
    pieces = converted(planned, choose(nbytes), options.check.threads, options.chunk_weights)
    writer = GgufWriter(target, pairs, new, overwrite=options.overwrite)
    try:
        with closing(pieces), writer:
            for piece in pieces:
                writer.write(piece.data)
                total = done[piece.part.tensor].error
                if total is not None and piece.error is not None:
                    total.merge(piece.error)
                if step is not None:
                    step(piece.read)
    finally:
        writer.discard()
    return done
