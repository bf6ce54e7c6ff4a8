"""One Linear of a model, as the checkpoint names it, and all of them together."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from qassay.core.container import Skipped

MOST_LINEARS = 1 << 17
LARGEST_AXIS = 1 << 31

_NUMBER = re.compile(r"(?<=\.)\d{1,9}(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix product with a weight `[N, K]`.

    Attributes:
        name: The module as the checkpoint names it: `model.layers.0.mlp.down_proj`.
        n: N, output channels (of one expert).
        k: K, input features.
        role: `attention`, `gdn`, `gdn_gate`, `mlp`, `expert`, `router`, `gate`, `lm_head`,
            `vision`, or `other`.
        parallel: Which axis tensor parallelism splits: `col` N, `row` K, "" neither.
        fused_as: The module that runtimes fuse it into, "" where none does.
        bias: Whether it has a bias; None where that is not known.
        experts: Number of experts that have such a weight each; None for a plain Linear.
        quantized: Whether the checkpoint holds it as codes; None where that is not known.
        bits: Of its codes; None without codes.
        group: Weights that share a scale, -1 for one scale a row; None without codes.
        symmetric: Whether the zero point is fixed; None where that is not known.
        act_order: Whether columns are assigned to groups by an index; None where not known.
        zero_offset: What is added to a stored zero point (GPTQ v1: 1, v2: 0); None elsewhere.
        method: The quantization method in the configuration's word, else the encoding's family.
        format: The packing in the method's word.
        kind: `int` or `float` codes; "" where not known.
        because: The entry of the configuration that keeps it at 16 bits, "" where none does.
    """

    name: str
    n: int
    k: int
    role: str = "other"
    parallel: str = ""
    fused_as: str = ""
    bias: bool | None = None
    experts: int | None = None
    quantized: bool | None = False
    bits: int | None = None
    group: int | None = None
    symmetric: bool | None = None
    act_order: bool | None = None
    zero_offset: int | None = None
    method: str = ""
    format: str = ""
    kind: str = ""
    because: str = ""

    @property
    def layers(self) -> tuple[int, ...]:
        """The numbers in the name, that of the layer first, that of an expert after it."""
        return tuple(int(found) for found in _NUMBER.findall(self.name))

    @property
    def pattern(self) -> str:
        """The name with numbers as `*`: the same for every layer."""
        return _NUMBER.sub("*", self.name)

    @property
    def weights(self) -> int:
        """Number of weights, experts included."""
        return self.n * self.k * (self.experts or 1)

    @property
    def alike(self) -> Linear:
        """What decides how it fits: the same Linear without its name."""
        return Linear(
            "", self.n, self.k, self.role, self.parallel, "", None, None, self.quantized,
            self.bits, self.group, self.symmetric, self.act_order, self.zero_offset,
            self.method, self.format, self.kind, self.because and "kept",
        )  # fmt: skip


@dataclass(slots=True)
class Shapes:
    """The Linears of a model, and what its configuration says of all of them.

    Attributes:
        source: `headers`, `config` or `table`.
        linears: In the order of the checkpoint or the configuration.
        unread: What may be a Linear and was not understood, with the reason.
        model_type: As the configuration writes it, "" where it does not.
        method: The quantization method as written; "" for a float model.
        group_size: The group size that the configuration states for all; None: it does not.
        config_groups: Number of groups of layers in a configuration of compressed-tensors.
        dtype: Of the floats, in the configuration's word (`bfloat16`), "" where not known.
        container: Format of the files (`gguf`), "" for a configuration or a table.
        bytes_read: How many bytes of headers and configuration were read.
    """

    source: str
    linears: list[Linear] = field(default_factory=list)
    unread: list[Skipped] = field(default_factory=list)
    model_type: str = ""
    method: str = ""
    group_size: int | None = None
    config_groups: int | None = None
    dtype: str = ""
    container: str = ""
    bytes_read: int = 0
    _answered: tuple[list[Linear], int, bool] = field(
        default=([], 0, False), init=False, repr=False, compare=False
    )

    @property
    def weights(self) -> int:
        """Number of weights of all Linears."""
        return sum(linear.weights for linear in self.linears)

    @property
    def quantized(self) -> bool:
        """Whether the checkpoint holds any Linear as codes, or says that it does."""
        if self.method:
            return True
        seen, length, answer = self._answered  # asked once a Linear: looked for once
        if seen is not self.linears or length != len(seen):
            answer = any(linear.quantized for linear in self.linears)
            self._answered = (self.linears, len(self.linears), answer)
        return answer


def patterns(linears: Iterable[Linear]) -> list[str]:
    """Return the names with numbers as `*`, each once: entries for an ignore list."""
    return list(dict.fromkeys(linear.pattern for linear in linears))
