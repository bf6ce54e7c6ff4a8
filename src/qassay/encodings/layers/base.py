"""What a family of layers declares, and what is known of one layer from headers alone."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy.typing as npt

from qassay.core.container import Defect, StoredTensor
from qassay.core.errors import DeclarationError
from qassay.core.pages import first_sentence
from qassay.encodings.base import Encoding
from qassay.encodings.layers.canonical import Canonical, Floats
from qassay.encodings.layers.layout import CodeLayout
from qassay.encodings.registry import for_stored_type

if TYPE_CHECKING:
    from qassay.encodings.layers.claims import LayerClaim

_VIEWS = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "U64": "<u8",
          "I32": "<i4", "U32": "<u4", "I16": "<i2", "U16": "<u2", "I8": "i1"}  # fmt: skip


class Role(enum.Enum):
    """What a part of a layer is for."""

    CODES = "codes"
    SCALE = "scale"
    ZERO = "zero"
    GLOBAL = "global"
    INDEX = "index"
    SHAPE = "shape"
    ACTIVATION = "activation"


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors that make up a weight.

    Attributes:
        name: What follows the module's name in the tensor's: `qweight`, `weight_scale`.
        role: What it is for.
        dtypes: The safetensors words it may have.
        required: Whether the family cannot do without it, or without the one in its place.
        instead_of: The required part in whose place it stands, under another name; "" for none.
    """

    name: str
    role: Role
    dtypes: tuple[str, ...]
    required: bool = True
    instead_of: str = ""


@dataclass(frozen=True, slots=True)
class Module:
    """All tensors of one module, as they may make up a weight.

    Attributes:
        name: `model.layers.0.mlp.down_proj`; "" for tensors without a module.
        tensors: By part name.
    """

    name: str
    tensors: Mapping[str, StoredTensor]

    def shape(self, part: str) -> tuple[int, ...]:
        """Return the shape of a part, `()` where there is none."""
        stored = self.tensors.get(part)
        return () if stored is None else stored.shape


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One weight that is kept in several tensors, read from headers alone.

    Attributes:
        module: `model.layers.0.mlp.down_proj`.
        encoding: The family.
        parts: Tensors by part name, those that the family knows.
        bits: Of a code.
        rows: N, output channels of one expert.
        columns: K, input features.
        group: Weights of a row that share a scale; K where a row or a tensor has one.
        group_rows: Rows that share a scale: 1, 128 in blocks, N where a tensor has one.
        experts: Number of experts of a fused tensor `[experts, N, K]`, None for a plain matrix.
        symmetric: Whether the codes have a fixed zero point; None where headers do not say.
        options: What else the family has to know (`{"zero_offset": 1}`).
        claim: What the configuration says of it.
        evidence: What spoke for this reading, one sentence each.
    """

    module: str
    encoding: type[LayerEncoding]
    parts: Mapping[str, StoredTensor]
    bits: int
    rows: int
    columns: int
    group: int
    group_rows: int = 1
    experts: int | None = None
    symmetric: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    claim: LayerClaim | None = None
    evidence: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The encoding with its bits: `gptq.int4`."""
        return self.encoding.label(self)

    @property
    def codes(self) -> StoredTensor:
        """The tensor that holds the codes; findings are reported under its name."""
        return self.parts[self.encoding.codes_part(self.parts)]

    @property
    def total_rows(self) -> int:
        """Rows of all experts together."""
        return self.rows * (self.experts or 1)

    @property
    def weights(self) -> int:
        """Number of weights."""
        return self.total_rows * self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape: `(N, K)`, or `(experts, N, K)`."""
        matrix = (self.rows, self.columns)
        return matrix if self.experts is None else (self.experts, *matrix)

    @property
    def groups(self) -> int:
        """Groups a row."""
        return -(-self.columns // self.group)

    @property
    def nbytes(self) -> int:
        """Stored bytes, all parts together."""
        return sum(part.nbytes or 0 for part in self.parts.values())

    @property
    def bits_per_weight(self) -> float:
        """Mean bits a weight, scales, zero points and indexes included."""
        return self.nbytes * 8 / self.weights

    def array(self, part: str) -> npt.NDArray[Any]:
        """Return a part as stored, in its shape, read-only and mapped, not copied.

        BF16 comes as uint16 bit patterns, 8-bit floats as uint8. A scalar has shape `()`.
        """
        stored = self.parts[part]
        dtype = _VIEWS.get(str(stored.type.label), "u1")
        return stored.raw().view(dtype).reshape(stored.shape)

    def floats(self, part: str) -> Floats:
        """Return a float part as float32 in its stored shape (F64 rounded)."""
        stored = self.parts[part]
        known = for_stored_type(stored.type)
        assert known is not None  # noqa: S101 - `fit` took only dtypes that are known
        return known.dequantize(stored.raw()).reshape(stored.shape)


@dataclass(frozen=True, slots=True)
class Fit:
    """How one module's tensors fit one family.

    Attributes:
        encoding: The family.
        layer: The weight, None where what there is does not make one.
        defects: What is wrong with the parts (Q103 and the like).
        score: How much speaks for the family: required parts that are there and right.
        reason: Why tensors that may well be sound are not read (a layout that is not known).
    """

    encoding: type[LayerEncoding]
    layer: Layer | None
    defects: tuple[Defect, ...] = ()
    score: int = 0
    reason: str = ""


class LayerEncoding(Encoding):
    """A weight kept in several tensors. Subclasses are declarations; none is instantiated.

    Attributes:
        id: `gptq`, `nvfp4.compressed`.
        parts: The tensors, required and optional.
        methods: Values of `quant_method` (and what follows it) that mean this family.
        scales_by_group: Whether scales are `[G, N]`, not `[N, G]`.
        unset_index: What an index holds that was never set: columns are in order then.
    """

    kind = "layer"
    parts: ClassVar[tuple[Part, ...]] = ()
    methods: ClassVar[tuple[str, ...]] = ()
    scales_by_group: ClassVar[bool] = False
    unset_index: ClassVar[int | None] = None

    _demanded = ("__doc__", "parts", "sources", "formula")

    @classmethod
    def _declare(cls) -> None:
        if sum(part.role is Role.CODES for part in cls.parts) == 0:
            raise DeclarationError(f"encoding {cls.id} has no part that holds the codes")
        needed = {part.name for part in cls.parts if part.required}
        for part in cls.parts:
            if part.instead_of and (part.required or part.instead_of not in needed):
                raise DeclarationError(
                    f"encoding {cls.id}: {part.name} stands in no required part's place",
                    expected=", ".join(sorted(needed)),
                    found=part.instead_of,
                )

    @classmethod
    def title(cls) -> str:
        """Return the first sentence of the declaration's docstring."""
        return first_sentence(cls)

    @classmethod
    def codes_part(cls, parts: Mapping[str, StoredTensor]) -> str:
        """Return which of the parts that are there holds the codes."""
        return next(p.name for p in cls.parts if p.role is Role.CODES and p.name in parts)

    @classmethod
    def part(cls, name: str) -> Part:
        """Return the declaration of a part."""
        return next(part for part in cls.parts if part.name == name)

    @classmethod
    def alternatives(cls, name: str) -> list[str]:
        """Return the parts that may stand in the place of a required one."""
        return [part.name for part in cls.parts if part.instead_of == name]

    @classmethod
    def claimed(cls, claim: LayerClaim) -> bool:
        """Tell whether the configuration names this family."""
        return claim.method in cls.methods or claim.format in cls.methods

    @classmethod
    def label(cls, layer: Layer) -> str:
        """Return the encoding's name with what varies inside the family: `gptq.int4`."""
        return f"{cls.id}.int{layer.bits}"

    @classmethod
    def fit(cls, module: Module, claim: LayerClaim) -> Fit | None:
        """Return how a module's tensors fit this family; None where nothing speaks for it.

        Names, dtypes and shapes decide, each of them hostile until it agrees with the others.
        `claim` only settles what they leave open (`zero_offset` of GPTQ v1 and v2).
        """
        raise NotImplementedError

    @classmethod
    def layout(cls, layer: Layer) -> CodeLayout | None:
        """Return where the codes lie, for fast kernels; None: they are to be unpacked."""
        del layer
        return None

    @classmethod
    def unpack(cls, layer: Layer, start: int = 0, stop: int | None = None) -> Canonical:
        """Return rows `start` to `stop` (of all experts' rows in turn) in canonical form."""
        raise NotImplementedError

    @classmethod
    def pack(cls, layer: Layer, canonical: Canonical) -> dict[str, npt.NDArray[Any]]:
        """Return what the integer parts (codes, zero points) hold for a whole layer.

        The inverse of `unpack` for the parts that are packed: arrays in their stored dtype and
        shape. Scales and indexes are left as they are.
        """
        raise NotImplementedError
