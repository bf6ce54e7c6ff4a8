"""What an encoding costs a weight, as a formula in the group size and nothing else.

::

    bits a weight = code bits + (scale bits + zero point bits) / g + bits a tensor / (N * K)

`4 + 24/g` is 4-bit codes with a 16-bit scale and an 8-bit zero point a group: 4.375 at g = 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.encodings.base import BlockEncoding, Encoding, PlainEncoding
from qassay.encodings.registry import all_encodings, by_id

HALF = 16
"""Bits of what stays a float: BF16 or F16."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way of storing weights.

    Attributes:
        id: As reports spell it.
        what: In words: what a group keeps.
        bits: Of a code.
        scale_bits: Of a scale.
        zero_bits: Of a zero point or minimum; 0 where there is none.
        group: The only group size it has; None where it is chosen.
        area: Weights that share a scale where that is no run along a row (a block of 128 x 128).
        tensor_bits: What is kept once a tensor.
        encoding: The encoding of blocks, whose bits a weight are its own.
        runtime: Whose form it is, `sophgo`; "" for a checkpoint's.
    """

    id: str
    what: str
    bits: int
    scale_bits: int = 0
    zero_bits: int = 0
    group: int | None = None
    area: int | None = None
    tensor_bits: int = 0
    encoding: type[Encoding] | None = None
    runtime: str = ""

    @property
    def padable(self) -> bool:
        """Whether its Linears can get more channels (`qassay pad`, or before compiling)."""
        return self.chosen

    @property
    def chosen(self) -> bool:
        """Whether a group size has to be chosen."""
        return self.group is None and self.area is None and self.encoding is None

    def bits_per_weight(self, group: int | None = None, weights: int | None = None) -> float:
        """Return the mean bits a weight.

        Args:
            group: The group size, where it is chosen.
            weights: Of the tensor, for what is kept once; without it that is left out.
        """
        if self.encoding is not None:
            return self.encoding.block_bytes * 8 / self.encoding.block
        each = self.area or self.group or group
        shared = (self.scale_bits + self.zero_bits) / each if each else 0.0
        return self.bits + shared + (self.tensor_bits / weights if weights else 0.0)

    def formula(self) -> str:
        """Return the formula: `4 + 24/g`."""
        if self.encoding is not None:
            block = self.encoding.block
            if block == 1:
                return str(self.bits)
            return f"{self.encoding.block_bytes * 8}/{block}"
        shared = self.scale_bits + self.zero_bits
        text = f"{self.bits} + {shared}/{self.area or self.group or 'g'}"
        return text + (f" + {self.tensor_bits}/(N K)" if self.tensor_bits else "")

    def whole(self, k: int, group: int | None) -> bool:
        """Tell whether rows of K weights are whole groups, or blocks."""
        each = self.encoding.block if self.encoding is not None else self.group or group
        return not each or k % each == 0


_SCALE_ZERO = "16-bit scale, {}-bit zero point"


def _sophgo(bits: int, half: str) -> Scheme:
    what = f"TPU-MLIR: {_SCALE_ZERO.format(8)}"
    return Scheme(f"sophgo.w{bits}{half}", what, bits, 16, 8, runtime="sophgo")


_SCHEMES: Mapping[str, Scheme] = {
    one.id: one
    for one in (
        *(_sophgo(bits, half) for bits in (4, 8) for half in ("bf16", "f16")),
        *(
            Scheme(f"gptq.int{bits}", _SCALE_ZERO.format(bits), bits, 16, bits)
            for bits in (2, 3, 4, 8)
        ),
        Scheme("awq.int4", _SCALE_ZERO.format(4), 4, 16, 4),
        Scheme("compressed.pack.int4", "16-bit scale, symmetric", 4, 16, tensor_bits=128),
        Scheme("compressed.pack.int4-asym", _SCALE_ZERO.format(4), 4, 16, 4, tensor_bits=128),
        Scheme("compressed.pack.int8", "16-bit scale, symmetric", 8, 16, tensor_bits=128),
        Scheme("nvfp4", "E4M3 scale, F32 scale a tensor", 4, 8, group=16, tensor_bits=32),
        Scheme("mxfp4", "E8M0 scale", 4, 8, group=32),
        Scheme("mxfp8", "E8M0 scale", 8, 8, group=32),
        Scheme("fp8.block", "F32 scale a block of 128 x 128", 8, 32, area=128 * 128),
    )
}
_SHORT = {
    "w4": "sophgo.w4bf16", "w8": "sophgo.w8bf16", "gptq": "gptq.int4", "awq": "awq.int4",
    "compressed.pack": "compressed.pack.int4", "w4a16": "compressed.pack.int4",
    "w8a16": "compressed.pack.int8", "fp8": "fp8.block",
}  # fmt: skip

DEFAULT = (
    "sophgo.w4bf16", "gptq.int4", "compressed.pack.int4", "nvfp4", "mxfp4", "ggml.q4_0",
    "ggml.q4_k", "ggml.q6_k", "ggml.q8_0", "fp8.block", "bf16",
)  # fmt: skip
"""What is shown where no word is given."""


def scheme(word: str) -> Scheme:
    """Return what a word of `--to` costs.

    Raises:
        UsageError: It means nothing that has a cost of its own.
    """
    name = word.strip().lower()
    name = _SHORT.get(name, name)
    if name in _SCHEMES:
        return _SCHEMES[name]
    ends = [one for one in _SCHEMES.values() if one.id.partition(".")[2] == name]
    if len(ends) == 1:
        return ends[0]
    try:
        found = by_id(name)
    except KeyError:
        found = None
    if found is None or not issubclass(found, BlockEncoding | PlainEncoding):
        raise UsageError(
            f"--to: there is no cost known for {safe(word, 40)}",
            expected=", ".join(known()),
            hint="`qassay encodings` lists the types of ggml",
        )
    return _of_encoding(found)


def _of_encoding(found: type[Encoding]) -> Scheme:
    bits = found.block_bytes * 8 // found.block
    what = found.title().rstrip(".")
    return Scheme(found.id, what, bits, encoding=found)


def known() -> list[str]:
    """Return every word that has a cost."""
    blocks = (one.id for one in all_encodings().values() if issubclass(one, BlockEncoding))
    return [*_SHORT, *_SCHEMES, *blocks, "f16", "bf16"]
