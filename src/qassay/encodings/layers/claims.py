"""What a checkpoint's configuration says of its quantization, layer by layer."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from qassay.core.container import Defect
from qassay.encodings.layers.claims_files import (
    Configuration,
    Context,
    config_defects,
    configurations,
    is_tied,
)
from qassay.encodings.layers.claims_names import is_matchable
from qassay.encodings.layers.claims_values import Notes, View, shown_value

if TYPE_CHECKING:
    from qassay.core.container import Container


@dataclass(frozen=True, slots=True)
class LayerClaim:
    """What the configuration says of one module; None wherever it does not say.

    Attributes:
        method: `gptq`, `awq`, `auto-round`, `compressed-tensors`, `fp8`, `modelopt`, `mxfp4`, ...
            as written; "" without a configuration.
        format: The packing in the method's own word: `gptq_v2`, `gemm`, `pack-quantized`,
            `auto_round:auto_awq`, `NVFP4`.
        quantized: True for a layer in scope, False for one that is listed as left alone.
        kind: `int` or `float` codes.
        bits: Of a code.
        group_size: Weights a scale; -1 for a whole row, 0 for a whole tensor.
        block: Rows and columns of a block that shares a scale.
        symmetric: Whether zero points are fixed.
        act_order: Whether columns are assigned to groups by an index.
        scale_dtype: In the configuration's word.
        activations: `none`, `dynamic` or `static`.
        source: The key that says so: `quantization_config.config_groups.group_0`.
        because: The entry of an ignore list, or pattern, that decided `quantized`.
    """

    method: str = ""
    format: str = ""
    quantized: bool | None = None
    kind: str | None = None
    bits: int | None = None
    group_size: int | None = None
    block: tuple[int, int] | None = None
    symmetric: bool | None = None
    act_order: bool | None = None
    scale_dtype: str | None = None
    activations: str | None = None
    source: str = ""
    because: str = ""


class ClaimsOf(Protocol):
    """Gives what one kind of configuration says of a module, by the module's name."""

    def __call__(self, module: str) -> LayerClaim:
        """Return the claim of a module."""


@dataclass(frozen=True, slots=True)
class Claims:
    """A checkpoint's quantization configuration.

    Attributes:
        method: As written; "" where there is none.
        known: Whether the method is one whose words are understood.
        source: The file and key it was read from.
        raw: The configuration.
        of: What it says of each module.
        kv_cache: What it says of the KV cache (`{"num_bits": 8, "type": "float"}`), None: nothing.
        defects: Where it contradicts itself.
    """

    method: str = ""
    known: bool = True
    source: str = ""
    raw: dict[str, Any] = field(default_factory=dict)
    of: ClaimsOf = lambda module: LayerClaim()  # noqa: ARG005
    kv_cache: dict[str, Any] | None = None
    defects: tuple[Defect, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What one configuration says, as the reader of its method understands it.

    Attributes:
        default: What it says of a quantized layer that nothing else is said of.
        of: What it says of each module.
        kv_cache: What it says of the KV cache.
    """

    default: LayerClaim
    of: ClaimsOf
    kv_cache: dict[str, Any] | None = None


class _Remembered:
    """Asks once a module; names too long to be matched in bounded time are not asked about."""

    def __init__(self, of: ClaimsOf, method: str, source: str) -> None:
        self._of = of
        self._blank = LayerClaim(method=method, source=source)
        self._known: dict[str, LayerClaim] = {}

    def __call__(self, module: str) -> LayerClaim:
        claim = self._known.get(module)
        if claim is None:
            claim = self._of(module) if is_matchable(module) else self._blank
            self._known[module] = claim
        return claim


_FAMILIES = {
    "gptq": ("gptq", "gptq_marlin"),
    "awq": ("awq", "awq_marlin"),
    "auto_round": ("auto-round", "intel/auto-round", "auto_round"),
    "compressed": ("compressed-tensors", "sparseml"),
    "fp8": ("fp8", "fbgemm_fp8"),
    "mxfp4": ("mxfp4",),
    "modelopt": ("modelopt", "modelopt_fp4", "modelopt_fp8", "modelopt_mixed", "modelopt_mxfp8"),
}
_READERS = {
    "gptq": ("claims_gptq", "read_gptq"),
    "awq": ("claims_gptq", "read_awq"),
    "auto_round": ("claims_auto_round", "read"),
    "compressed": ("claims_compressed", "read"),
    "fp8": ("claims_fp8", "read_fp8"),
    "mxfp4": ("claims_fp8", "read_mxfp4"),
    "modelopt": ("claims_modelopt", "read"),
}
_FAMILY_OF = {name: family for family, names in _FAMILIES.items() for name in names}
_COMPARED = ("bits", "group_size", "block", "symmetric", "act_order")


def family_of(method: str) -> str:
    """Return which reader understands a method, "" for none."""
    return _FAMILY_OF.get(method.strip().lower(), "")


def claims_of(container: Container) -> Claims:
    """Return what a container's configuration says; of a single file, nothing.

    `config.json` comes first, then the files of quantizers beside it. Where two of them disagree
    on a fact, that is a defect (Q106), and the first one counts. Nothing raises: values of the
    wrong kind are defects and read as None. A method whose words are not understood is kept as
    written, with `known` False and no claims of layers.
    """
    found = configurations(container)
    if not found:
        odd = config_defects(container)
        return Claims(known=not odd, defects=tuple(odd))
    tied = is_tied(container)
    defects = config_defects(container)
    readings: list[tuple[Configuration, Reading | None]] = []
    for configuration in found:
        notes = Notes(configuration.path)
        reading = _read(configuration, notes, tied=tied)
        readings.append((configuration, reading))
        # The same contradiction in a copy of the configuration is one contradiction.
        said = {defect.message for defect in defects}
        defects += [defect for defect in notes.defects if defect.message not in said]
    first, reading = readings[0]
    for other, second in readings[1:]:
        defects += _disagreements(first, reading, other, second)
    blank = LayerClaim(method=first.method, source=first.key)
    of = (lambda module: blank) if reading is None else reading.of  # noqa: ARG005
    return Claims(
        method=first.method,
        known=reading is not None,
        source=f"{first.file}: {first.key}" if first.key else first.file,
        raw=dict(first.raw),
        of=_Remembered(of, first.method, first.key),
        kv_cache=None if reading is None else reading.kv_cache,
        defects=tuple(defects),
    )


def _read(configuration: Configuration, notes: Notes, *, tied: bool) -> Reading | None:
    known = _READERS.get(family_of(configuration.method))
    if known is None:
        return None
    # Imported when a configuration asks for it: most inputs need one of them, or none.
    module = importlib.import_module(f"qassay.encodings.layers.{known[0]}")
    read = cast("Callable[..., Reading]", getattr(module, known[1]))
    view = View(configuration.raw, configuration.key, notes)
    return read(view, Context(configuration.method, tied))


def _disagreements(
    first: Configuration, reading: Reading | None, other: Configuration, second: Reading | None
) -> Iterator[Defect]:
    """Yield a defect for each fact on which two configurations differ."""
    facts: list[tuple[str, object, object]] = []
    if other.stated and first.stated and _kin(first.method) != _kin(other.method):
        facts.append(("quant_method", first.method, other.method))
    if reading is not None and second is not None:
        for name in _COMPARED:
            one, two = getattr(reading.default, name), getattr(second.default, name)
            if one is not None and two is not None and one != two:
                facts.append((_WORDS.get(name, name), one, two))
    for name, one, two in facts:
        yield Defect(
            code="Q106",
            message=f"{name} is {_plain(one)} in {first.file} and {_plain(two)} in {other.file}",
            path=other.path,
            expected=f"{_plain(one)}, as in {first.file}",
            found=_plain(two),
            data={"key": name, "files": [first.file, other.file]},
        )


_WORDS = {"symmetric": "sym", "act_order": "desc_act"}


def _kin(method: str) -> str:
    return family_of(method) or method.strip().lower()


def _plain(value: object) -> str:
    return shown_value(list(value) if isinstance(value, tuple) else value)
