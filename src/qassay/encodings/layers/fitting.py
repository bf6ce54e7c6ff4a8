"""What families share: comparing a module's tensors with what they should be, and groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from qassay.core.container import Defect, StoredTensor
from qassay.core.text import safe
from qassay.encodings.base import PlainEncoding
from qassay.encodings.layers.base import Fit, Layer, LayerEncoding, Module
from qassay.encodings.layers.canonical import Floats
from qassay.encodings.layers.claims import LayerClaim
from qassay.encodings.registry import for_stored_type

Dim = int | str
"""A length; a word where it is not known, for messages only."""

FLOATS = ("F16", "BF16", "F32")


def disagreement(
    encoding: type[LayerEncoding],
    module: Module,
    part: str,
    blamed: StoredTensor,
    message: str,
    *,
    expected: str | None,
    found: str,
) -> Defect:
    """Return the Q103 for a part of a module that does not agree with a family."""
    return Defect(
        code="Q103",
        message=message,
        path=blamed.path,
        tensor=blamed.name,
        expected=expected,
        found=found,
        data={"layer": module.name, "part": part, "encoding": encoding.id},
    )


class Fitting:
    """Collects how far a module's tensors agree with a family, and where they do not.

    A part that is missing or of another shape is Q103. A part of another dtype is Q103 only
    where the configuration names the family: without it, it may be another family's.
    """

    def __init__(
        self, encoding: type[LayerEncoding], module: Module, claim: LayerClaim, codes: str
    ) -> None:
        self.module = module
        self.encoding = encoding
        self.claim = claim
        self.defects: list[Defect] = []
        self.reason = ""
        self.score = 0
        self._codes = module.tensors[codes]

    @property
    def sound(self) -> bool:
        """Whether nothing stands against decoding."""
        return not self.defects and not self.reason

    @property
    def name(self) -> str:
        """The name of the tensor that holds the codes, for messages."""
        return safe(self._codes.name)

    def require(self, part: str, *shapes: tuple[Dim, ...]) -> bool:
        """Tell whether a part is there, readable, and has one of `shapes` (any, without)."""
        if part in self.module.tensors:
            return self.optional(part, *shapes)
        self.fault(part, f"{self.name} has no {part} beside it", _texts(shapes), "nothing")
        return False

    def optional(self, part: str, *shapes: tuple[Dim, ...]) -> bool:
        """Tell the same of a part that may be left out; False where it is."""
        stored = self.module.tensors.get(part)
        if stored is None:
            return False
        wanted = self.encoding.part(part).dtypes
        if stored.type.label not in wanted:
            self._mistyped(part, stored, wanted)
        elif not stored.readable:
            self.reason = self.reason or f"{safe(stored.name)} cannot be read"
        elif shapes and stored.shape not in shapes:
            self.misshaped(part, *shapes)
        else:
            self.score += 1
            return True
        return False

    def _mistyped(self, part: str, stored: StoredTensor, wanted: tuple[str, ...]) -> None:
        kind = stored.type.name
        if self.encoding.claimed(self.claim):
            message = f"{safe(stored.name)} is {kind}"
            self.fault(part, message, " or ".join(wanted), kind)
        else:
            text = f"its {part} is {kind}, and {self.encoding.id} keeps {' or '.join(wanted)} there"
            self.reason = self.reason or text

    def misshaped(self, part: str, *shapes: tuple[Dim, ...]) -> None:
        """Note that a part has another shape than the codes ask for."""
        name, found = safe(self.module.tensors[part].name), _text(self.module.shape(part))
        asked = f"{self.name} {_text(self._codes.shape)}"
        expected = _texts(shapes)
        self.fault(part, f"{name} has shape {found}, beside {asked}", expected, found)

    def fault(self, part: str, message: str, expected: str, found: str) -> None:
        """Note a Q103."""
        self.defects.append(
            disagreement(
                self.encoding,
                self.module,
                part,
                self._codes,
                message,
                expected=expected or None,
                found=found,
            )
        )

    def result(self, layer: Layer | None = None) -> Fit:
        """Return what has been found, with the layer where there is one."""
        return Fit(self.encoding, layer, tuple(self.defects), self.score, self.reason)

    def unread(self, reason: str) -> Fit:
        """Return that the tensors may be sound, and are not read, for a reason."""
        return Fit(self.encoding, None, (), self.score, reason)

    def layer(self, bits: int, rows: int, columns: int, group: int, **more: Any) -> Fit:
        """Return the layer that the module's tensors make up, with the parts that are known."""
        parts = {
            part.name: self.module.tensors[part.name]
            for part in self.encoding.parts
            if part.name in self.module.tensors
        }
        found = Layer(
            self.module.name,
            self.encoding,
            parts,
            bits,
            rows,
            columns,
            group,
            claim=self.claim,
            evidence=(_agreement(parts, rows, columns, bits),),
            **more,
        )
        return self.result(found)


def fitting_of_words(
    encoding: type[LayerEncoding], module: Module, claim: LayerClaim
) -> Fitting | Fit | None:
    """Return a fitting where `qweight` is a matrix of words, else what there is to say."""
    stored = module.tensors.get("qweight")
    if stored is None:
        return None
    if not encoding.claimed(claim) and not {"qzeros", "scales"} & set(module.tensors):
        return None
    fitting = Fitting(encoding, module, claim, "qweight")
    if stored.type.label != "I32" or len(stored.shape) != 2:
        kind = f"{stored.type.name} of {len(stored.shape)} axes"
        return fitting.unread(f"its qweight is {kind}, not a matrix of int32 words")
    if 0 in stored.shape:
        return fitting.unread("it holds no weights")
    return fitting


def _agreement(parts: dict[str, StoredTensor], rows: int, columns: int, bits: int) -> str:
    shapes = ", ".join(f"{name} {_text(stored.shape)}" for name, stored in parts.items())
    return f"{shapes}: {bits}-bit codes [{rows}, {columns}]"


def _text(shape: tuple[Dim, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _texts(shapes: tuple[tuple[Dim, ...], ...]) -> str:
    return " or ".join(map(_text, shapes))


def span(total: int, count: int, claimed: int | None = None) -> int | None:
    """Return the length of the runs if `total` things are dealt out to `count` runs in order.

    A last run that is shorter is possible only where `claimed` (the configuration's length)
    says so; otherwise all are of one length. None where no length gives that count.
    """
    if not 0 < count <= total:
        return None
    if claimed is not None and claimed > 0 and -(-total // claimed) == count:
        return min(claimed, total)
    return total // count if total % count == 0 else None


def floats_at(layer: Layer, part: str, at: Any) -> Floats:
    """Return some elements of a float part, by an index into its shape, as float32."""
    known = for_stored_type(layer.parts[part].type)
    read = cast("Callable[[npt.NDArray[Any]], Floats]", cast(type[PlainEncoding], known).to_float32)
    return np.ascontiguousarray(read(np.ascontiguousarray(layer.array(part)[at])))


def in_order(layer: Layer) -> npt.NDArray[np.int32]:
    """Return the group of each column, int32 `[K]`, where groups are runs of columns."""
    return (np.arange(layer.columns, dtype=np.int64) // layer.group).astype(np.int32)


def by_index(index: npt.NDArray[Any], groups: int) -> tuple[npt.NDArray[np.int32], bool]:
    """Return the group of each column as an index names it, and whether one names no group.

    Such a column gets the number `groups`, one more than there are: `with_nowhere` adds it.
    """
    outside = (index < 0) | (index >= groups)
    return np.where(outside, groups, index).astype(np.int32), bool(outside.any())


def with_nowhere(
    scales: Floats, zeros: npt.NDArray[np.int16] | None
) -> tuple[Floats, npt.NDArray[np.int16] | None]:
    """Return scales and zeros `[R, G]` with a further group, of NaN, for columns without one."""
    nowhere = np.full((scales.shape[0], 1), np.nan, np.float32)
    scales = np.concatenate([scales, nowhere], axis=1)
    if zeros is not None:
        zeros = np.concatenate([zeros, np.zeros((zeros.shape[0], 1), np.int16)], axis=1)
    return scales, zeros
