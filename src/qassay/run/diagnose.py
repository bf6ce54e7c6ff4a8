"""Three outputs of one Linear for the same inputs: which part of an error is whose."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.comparison.attribution.attribute import Problem, attribute, blind_spots
from qassay.comparison.attribution.facts import (
    Diagnosis,
    Difference,
    KindErrors,
    Outcome,
    difference,
)
from qassay.comparison.attribution.kinds import kinds_of_rows, usual_rows
from qassay.comparison.attribution.library import LANES
from qassay.comparison.attribution.setup import Floats
from qassay.comparison.attribution.verdict import Attribution, Verdict
from qassay.containers.opening import display_name
from qassay.core.errors import UsageError
from qassay.core.finding import Certainty, Finding
from qassay.core.text import safe
from qassay.rules.diagnosing import worded
from qassay.rules.registry import NAMED_BY_DIAGNOSES, rule
from qassay.run.diagnose_arrays import Array, as_floats, read_arrays
from qassay.run.diagnose_pairs import Named, pairs
from qassay.run.diagnose_programs import explained_by_program
from qassay.run.diagnose_weights import Weights, open_weights
from qassay.run.mistakes import signs
from qassay.run.options import CheckOptions
from qassay.runtimes.sophgo.arithmetic import Computed, Model, model_of, multiply
from qassay.runtimes.sophgo.named import Aimed

_COMPARED = ("bm1684x", "bm1688")
_RAN = ("1.28.1", "1.30.2")
_MODELS_OF_8 = (Model.DEVICE, Model.ONE)


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked.

    Attributes:
        weights: The weights that the device has.
        inputs: What it was given.
        device: What came out.
        reference: The float reference: weights before they were quantized, or their outputs.
        layer: Name of the layer.
        layer_of_reference: Its name in `reference`, where that is another.
        input_name: Name of the array of inputs.
        output_name: Name of the array of outputs.
        group_size: g.
        weight_bits: Width of codes in an npz.
        on: Chip and version.
        pairs: Whether pairs of faults are tried.
    """

    weights: Path
    inputs: Path
    device: Path
    reference: Path | None = None
    layer: str | None = None
    layer_of_reference: str | None = None
    input_name: str | None = None
    output_name: str | None = None
    group_size: int | None = None
    weight_bits: int | None = None
    on: Aimed | None = None
    pairs: bool = True


@dataclass(slots=True)
class DiagnoseResult:
    """What came of it.

    Attributes:
        diagnosis: Everything that was found.
        findings: In order.
        nbytes: Size of the files of weights and outputs.
        formats: Their formats.
        crashed: Codes of rules that failed.
    """

    diagnosis: Diagnosis
    findings: list[Finding] = field(default_factory=list)
    nbytes: tuple[int, int] = (0, 0)
    formats: tuple[str, str] = ("npz", "npz")
    crashed: list[str] = field(default_factory=list)


def diagnose(
    asked: Asked,
    options: CheckOptions | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> DiagnoseResult:
    """Compare a device's outputs with what its weights should give, and name the fault.

    Raises:
        InputError: A file cannot be read.
        UsageError: The files do not belong together, or it is not clear which arrays are meant.
    """
    inputs = read_arrays(asked.inputs, asked.input_name)
    outputs = read_arrays(asked.device, asked.output_name)
    weights = open_weights(
        asked.weights,
        asked.layer,
        asked.group_size,
        columns=_columns(inputs, asked.input_name),
        weight_bits=asked.weight_bits,
    )
    true = weights.setup
    reference = _Reference(asked, weights)
    computed = _computed(asked.on, weights)
    done = Diagnosis(
        layer=weights.name,
        path=display_name(asked.device),
        weights=weights.path,
        label=weights.label,
        n=true.n,
        k=true.k,
        group=weights.group,
        on=str(asked.on or ""),
        expected=_expected(asked.on, computed, weights),
        notes=list(weights.notes),
    )
    named = Named(
        display_name(asked.inputs), display_name(asked.device), asked.input_name, asked.output_name
    )
    for name, x, y in pairs(inputs, outputs, true.k, true.n, named):
        problem = Problem(true, x, y, _models(weights, computed), _lanes(asked.on),
                          weights.others, asked.pairs, tell)  # fmt: skip
        outcome = _outcome(name, problem, reference, weights)
        done.outcomes.append(outcome)
        done.notes += _signs(outcome, problem, outputs.get(name))
    result = DiagnoseResult(done, nbytes=(weights.nbytes, _size(asked.device)),
                            formats=(weights.format, _format(asked.device)))  # fmt: skip
    _judge(result, options or CheckOptions())
    return result


def _outcome(name: str, problem: Problem, reference: _Reference, weights: Weights) -> Outcome:
    program = None if weights.matrix is None else explained_by_program(problem, weights.matrix)
    told = attribute(problem) if program is None else program.told
    if told.verdict is Verdict.EXPLAINED:
        told.blind = tuple(dict.fromkeys(edit.text for edit in blind_spots(problem)))
    n = problem.true.n
    model = told.models[0] if told.models else problem.models[0]
    quantized = (
        multiply(problem.x, problem.true.weight(), problem.true.bias, model=model)
        if program is None
        else program.output
    )
    y = problem.y[:, :n]
    floats = reference.output(name, problem.x, problem.true.bias)
    kinds = kinds_of_rows(problem.x)
    usual = usual_rows(kinds, len(problem.x))

    def errors(
        rows: npt.NDArray[np.bool_],
    ) -> tuple[Difference | None, Difference, Difference | None]:
        device = difference(quantized[rows], y[rows])
        if floats is None:
            return None, device, None
        return difference(floats[rows], quantized[rows]), device, difference(floats[rows], y[rows])

    parted = {kind: rows for kind, rows in kinds.items() if kind != "not finite"}
    quantization, device, total = errors(usual)
    return Outcome(
        name=name,
        rows=len(problem.x),
        told=told,
        quantization=quantization,
        device=device,
        total=total,
        ways=_ways(told, weights) if program is None else (program.way,),
        elements=len(problem.x) * n,
        told_rows=int(np.count_nonzero(usual)),
        by_kind=tuple(
            KindErrors(kind, int(np.count_nonzero(rows)), *errors(rows))
            for kind, rows in parted.items()
            if len(parted) > 1
        ),
    )


def _signs(outcome: Outcome, problem: Problem, stored: Array | None) -> list[str]:
    """Return what an output that nothing explains looks like."""
    if outcome.told.verdict not in (Verdict.UNEXPLAINED, Verdict.PART):
        return []
    true = problem.true
    quantized = multiply(problem.x, true.weight(), true.bias, model=problem.models[0])
    dtype = None if stored is None else stored.dtype
    found = signs(quantized, problem.y[:, : true.n], dtype)
    return [f"{safe(outcome.name, 80)}: {each}" for each in found]


class _Reference:
    """The float reference: weights, or the outputs that they gave."""

    def __init__(self, asked: Asked, weights: Weights) -> None:
        self._outputs: dict[str, Array] = {}
        self._weight: npt.NDArray[np.float64] | None = None
        self._bias: Floats | None = None
        self._n = weights.setup.n
        if asked.reference is None:
            return
        path = asked.reference
        layer = asked.layer_of_reference or asked.layer
        if path.is_dir() or path.suffix.lower() in (".npz", ".npy"):
            arrays = None if (path / "config.json").is_file() else read_arrays(path)
            if arrays is not None and "weight" not in arrays:
                self._outputs = arrays
                return
        try:
            floats = open_weights(path, layer, columns=weights.setup.k)
        except UsageError as error:
            error.message = f"--float: {error.message}"
            error.hint = "name the layer with --float-layer, or leave --float out"
            raise
        if floats.setup.codes.shape != weights.setup.codes.shape:
            raise UsageError(
                "the float weights are of another shape",
                path=floats.path,
                expected=str(list(weights.setup.codes.shape)),
                found=str(list(floats.setup.codes.shape)),
            )
        self._weight = floats.setup.weight(stored=True).astype(np.float64)
        self._bias = floats.setup.bias

    def output(
        self, name: str, x: Floats, bias: Floats | None
    ) -> npt.NDArray[np.floating[Any]] | None:
        """Return the float output for some inputs, None where there is no reference."""
        if self._weight is not None:
            with np.errstate(all="ignore"):
                product = x.astype(np.float64) @ self._weight.T
            added = bias if self._bias is None else self._bias
            done: npt.NDArray[np.float64] = product if added is None else product + added
            return done
        if not self._outputs:
            return None
        size = len(x) * self._n
        fitting = {key: array for key, array in self._outputs.items() if array.size == size}
        chosen = fitting.get(name) if name in fitting else next(iter(fitting.values()), None)
        if chosen is None:
            raise UsageError(
                "the float reference holds no such output",
                expected=f"an array of {len(x)} x {self._n}, or `weight`",
                found=", ".join(safe(key, 40) for key in list(self._outputs)[:6]),
            )
        return as_floats(chosen, name).reshape(len(x), self._n)


def _columns(inputs: Mapping[str, Array], name: str | None) -> int | None:
    """Return K where all inputs agree on it."""
    sizes = {array.shape[-1] for key, array in inputs.items() if array.ndim and name in (None, key)}
    return sizes.pop() if len(sizes) == 1 else None


def _bits(weights: Weights) -> int | None:
    """Return the width of codes that A16MatMul takes, None of others: it rounds scales to bf16."""
    setup = weights.setup
    return setup.bits if setup.bits in (4, 8) and not setup.exact_scales else None


def _computed(on: Aimed | None, weights: Weights) -> Computed | None:
    bits = _bits(weights)
    if on is None or bits is None:
        return None
    return model_of(on.chip.id, on.version, n=weights.setup.n, weight_bits=bits,
                    q_group_size=weights.group)  # fmt: skip


def _models(weights: Weights, computed: Computed | None) -> tuple[Model, ...]:
    every = _MODELS_OF_8 if _bits(weights) == 8 else tuple(Model)
    first = () if computed is None else (computed.model,)
    return tuple(dict.fromkeys((*first, *every)))


def _lanes(on: Aimed | None) -> tuple[int, ...]:
    return LANES if on is None else (on.chip.lanes,)


def _expected(on: Aimed | None, computed: Computed | None, weights: Weights) -> str:
    if on is None or _bits(weights) is None:
        return ""
    if computed is None:
        return f"{on}: such a Linear does not compile there, or its arithmetic is not known"
    return f"{on}: {computed.operation}, {WORDS[computed.model]}"


WORDS = {
    Model.DEVICE: "weight rounded to bf16, product rounded to bf16, bias added, rounded again",
    Model.ONE: "weight rounded to bf16, product and bias rounded once",
    Model.HOST: "weight not rounded, product and bias rounded once",
}
"""Arithmetics in words."""


def _ways(told: Attribution, weights: Weights) -> tuple[str, ...]:
    return tuple(_places(told.models, weights)) if told.verdict is Verdict.EXPLAINED else ()


def _places(models: tuple[Model, ...], weights: Weights) -> Iterator[str]:
    """Yield where an arithmetic is used: chips and versions whose outputs were compared."""
    bits = _bits(weights)
    if bits is None:
        yield from (f"MatMul of bf16: {WORDS[model]}" for model in models)
        return
    places: dict[str, list[str]] = {}
    for chip in _COMPARED:
        for version in _RAN:
            found = model_of(chip, version, n=weights.setup.n, weight_bits=bits,
                             q_group_size=weights.group)  # fmt: skip
            if found is not None and found.model in models and found.certainty is Certainty.PROVEN:
                path = "A16MatMul" if found.operation == "A16MatMul" else "fall-back MatMul"
                places.setdefault(f"{chip} ({path})", []).append(version)
    for place, versions in places.items():
        yield f"{place} of tpu-mlir {' and '.join(versions)}"
    host = model_of("bm1684x", n=weights.setup.n, weight_bits=bits, where="host")
    if host is not None and host.model in models:
        yield "host: the CPU inference of tpu-mlir 1.28.1 and 1.30.2"


def _judge(result: DiagnoseResult, options: CheckOptions) -> None:
    for code in NAMED_BY_DIAGNOSES:
        if not options.runs(code):
            continue
        try:
            found = list(worded(rule(code)(), result.diagnosis))
        except Exception:  # noqa: BLE001 - a broken rule must not hide the others
            result.crashed.append(code)
            continue
        wanted = options.severities.get(code)
        result.findings += [one if wanted is None else one.with_severity(wanted) for one in found]


def _size(path: Path) -> int:
    try:
        files = [path] if path.is_file() else list(path.iterdir())
        return sum(one.stat().st_size for one in files)
    except OSError:
        return 0


def _format(path: Path) -> str:
    return "folder" if path.is_dir() else path.suffix.lower().lstrip(".") or "unknown"
