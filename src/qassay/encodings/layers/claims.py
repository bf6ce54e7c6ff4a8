"""What a checkpoint's configuration says of its quantization, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from qassay.core.container import Defect

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


def claims_of(container: Container) -> Claims:
    """Return what a container's configuration says; of a single file, nothing."""
    del container
    return Claims()
