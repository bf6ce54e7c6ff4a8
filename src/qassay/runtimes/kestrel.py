"""Kestrel-LLM's quantizers, as its write-up publishes them: C on aarch64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from qassay.core.source import Bytes
from qassay.encodings.base import Encoding, Floats
from qassay.encodings.registry import by_id
from qassay.runtimes.arithmetic import (
    Halves,
    halves,
    halves_truncated,
    legacy_block,
    per_block,
    reciprocal,
    saturated,
    signed_extreme,
)
from qassay.runtimes.base import Engine, Quantizer, Route

_FLOOR = np.float32(1e-10)


def _q8_0(to_half: Callable[[npt.ArrayLike], Halves]) -> Quantizer:
    """Return the quantizer of Q8_0: q = (int)(v / scale + 0.5f), which rounds toward zero.

    The cast is right for positive numbers only: a negative number loses up to a step and a half.
    """

    @per_block(32)
    @np.errstate(all="ignore")
    def quantize(blocks: Floats) -> Bytes:
        amax = np.fmax.reduce(np.abs(blocks), axis=1, keepdims=True, initial=_FLOOR)
        scale = np.maximum(amax / np.float32(127), _FLOOR)
        codes = saturated(blocks / scale + np.float32(0.5), -127, 127)
        return legacy_block([to_half(scale)], codes, 8)

    return quantize


def _q4_0(to_half: Callable[[npt.ArrayLike], Halves]) -> Quantizer:
    """Return the quantizer of Q4_0: d = extreme / -8, q = (int)(v / d + 8.5) within 0..15.

    The write-up gives the scale and the layout; the codes are ggml's (v * (1 / d), 8 where d is
    zero). With the offset of 8.5 the cast never sees a negative number, so it rounds rightly.
    """

    @per_block(32)
    @np.errstate(all="ignore")
    def quantize(blocks: Floats) -> Bytes:
        scale = signed_extreme(blocks) / np.float32(-8)
        codes = saturated(blocks * reciprocal(scale) + np.float32(8.5), 0, 15)
        return legacy_block([to_half(scale)], codes, 4)

    return quantize


@dataclass(frozen=True, slots=True)
class Written:
    """What Kestrel makes of a tensor.

    Attributes:
        raw: The blocks, uint8 `[n, block_bytes]`.
        dropped: Trailing weights that do not fill a block and are not stored.
    """

    raw: Bytes
    dropped: int


class Kestrel(Engine, id="kestrel"):
    """Kestrel-LLM's quantizers: codes cut off toward zero, f16 scale rounded to nearest even.

    On aarch64 `(int)NaN` is 0 and the running maximum passes over NaN. A tensor is cut into
    blocks without regard to its rows, and trailing weights that do not fill a block are dropped
    without a word; `quantize_tensor` does the same and says how many.
    """

    sources: ClassVar[tuple[str, ...]] = (
        "write-up on Kestrel-LLM's f32_to_q8_0 (facts/reference_results.md, section 2)",
        "kestrel-llm 0ac05cc934d1, src/model/vllm_safetensors.c, f32_to_f16_bits",
    )
    routes: ClassVar[dict[str, Route]] = {
        "ggml.q4_0": Route(_q4_0(halves)),
        "ggml.q8_0": Route(_q8_0(halves)),
    }

    @classmethod
    def quantize_tensor(cls, values: npt.ArrayLike, to: str | type[Encoding]) -> Written:
        """Quantize a tensor as one run of weights, the tail dropped as the engine drops it."""
        encoding = by_id(to) if isinstance(to, str) else to
        flat: npt.NDArray[Any] = np.ascontiguousarray(values, np.float32).reshape(-1)
        dropped = flat.size % encoding.block
        kept = flat[: flat.size - dropped].reshape(-1, encoding.block)
        return Written(cls.quantize(kept, encoding), dropped)


class KestrelLegacy(Kestrel, id="kestrel-legacy"):
    """Kestrel-LLM before its f16 fix: the scale is cut off, and below 2^-14 it becomes zero.

    Blocks whose maximum is under 127 * 2^-14 = 0.00775 (Q8_0) are therefore lost whole.
    """

    sources: ClassVar[tuple[str, ...]] = (
        *Kestrel.sources,
        "the same file's comment on the conversion that f32_to_f16_bits replaced",
    )
    routes: ClassVar[dict[str, Route]] = {
        "ggml.q4_0": Route(_q4_0(halves_truncated)),
        "ggml.q8_0": Route(_q8_0(halves_truncated)),
    }
