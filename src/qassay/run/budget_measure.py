"""`qassay budget --measure`: what each encoding and group size does to the real weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from qassay.core.container import Container, Skipped, StoredTensor
from qassay.core.errors import UsageError
from qassay.core.text import safe
from qassay.encodings.base import Encoding, Floats, PlainEncoding
from qassay.encodings.registry import by_id, for_stored_type
from qassay.kernels.select import choose
from qassay.run.budget import KEPT_ROLES, Plan
from qassay.run.quantize_error import RoundTrip, measure
from qassay.runtimes.registry import engine
from qassay.runtimes.shapes.linear import Linear
from qassay.runtimes.sophgo.quantizer import quantize

CHUNK_WEIGHTS = 1 << 20

Watch = Callable[[int], None]


@dataclass(slots=True)
class Measured:
    """The error of one plan over all weights that it applies to.

    Attributes:
        plan: Which.
        error: Summed over all Linears.
        left_out: Weights that the plan leaves at 16 bits.
        reason: Why nothing was measured; "" where something was.
        clipped: Groups whose zero point did not fit (one-sided groups), Sophgo only.
    """

    plan: Plan
    error: RoundTrip = field(default_factory=RoundTrip)
    left_out: int = 0
    reason: str = ""
    clipped: int = 0


def measure_all(
    container: Container,
    linears: Sequence[Linear],
    wanted: Sequence[Plan],
    watch: Watch | None = None,
) -> tuple[list[Measured], list[Skipped]]:
    """Quantize every float Linear under every plan, and return the errors.

    Each weight is read once, about a million at a time.

    Raises:
        UsageError: The model holds no float Linear.
    """
    measured = [Measured(plan, reason=_why_not(plan)) for plan in wanted]
    floats = list(_floats(container, linears))
    if not floats:
        raise UsageError(
            "--measure needs float weights, and the model holds none",
            path=container.path,
            hint="name the float model that is to be quantized",
        )
    skipped = []
    total = sum(stored.size for stored in floats)
    kernels = choose(total * 2).name
    for stored in floats:
        parts = [RoundTrip() for _ in measured]
        bad = False
        for rows, nbytes in _chunks(stored):
            if watch is not None:
                watch(nbytes)
            if not np.isfinite(rows).all():
                bad = True
                break
            for one, part in zip(measured, parts, strict=True):
                if not one.reason:
                    _add(one, part, rows, kernels)
        if bad:
            skipped.append(Skipped(stored.name, "it holds values that are not finite"))
            continue
        for one, part in zip(measured, parts, strict=True):
            one.error.merge(part)
    return measured, skipped


def _why_not(plan: Plan) -> str:
    scheme = plan.scheme
    if scheme.runtime == "sophgo" or isinstance(scheme.encoding, type):
        if scheme.encoding is None or _engine_id(scheme.encoding) or scheme.encoding.block == 1:
            return ""
        return f"no quantizer here writes {scheme.id}"
    return "its codes are found with calibration data, which is not at hand"


def _engine_id(encoding: type[Encoding]) -> str:
    return "ggml" if encoding.id in engine("ggml").routes else ""


def _floats(container: Container, linears: Sequence[Linear]) -> Iterator[StoredTensor]:
    names = {f"{one.name}.weight" for one in linears if one.role not in KEPT_ROLES}
    for stored in container.tensors:
        known = for_stored_type(stored.type)
        if (
            stored.name in names
            and known is not None
            and known.kind == "float"
            and stored.readable
            and not stored.part_of
            and len(stored.shape) == 2
            and stored.size
        ):
            yield stored


def _chunks(stored: StoredTensor) -> Iterator[tuple[Floats, int]]:
    """Yield rows of a tensor as float32, and how many bytes were read for them."""
    rows, columns = stored.shape
    known = cast("type[PlainEncoding]", for_stored_type(stored.type))
    each = (stored.nbytes or 0) // rows
    step = max(1, CHUNK_WEIGHTS // columns)
    for start in range(0, rows, step):
        count = min(step, rows - start)
        raw = stored.source.read(stored.offset + start * each, count * each)
        with np.errstate(over="ignore", invalid="ignore"):
            yield known.dequantize(raw).reshape(count, columns), raw.size


def _add(one: Measured, part: RoundTrip, rows: Floats, kernels: str) -> None:
    scheme, group = one.plan.scheme, one.plan.group
    if not scheme.whole(rows.shape[1], group):
        one.left_out += rows.size
        return
    plain = by_id("f32")
    if scheme.encoding is None:
        done = quantize(rows, weight_bits=scheme.bits, group_size=group or 0)
        one.clipped += int(np.count_nonzero(done.clipped))
        back, raw, kind = done.canonical().dequantize(), rows.view(np.uint8), plain
    elif scheme.encoding.block == 1:
        back, raw, kind = _rounded(rows, scheme.id), rows.view(np.uint8), plain
    else:
        raw = engine("ggml").quantize(rows, scheme.encoding, kernels=kernels)
        kind = scheme.encoding
        back = kind.dequantize(raw.reshape(-1))
    part.merge(measure(rows.reshape(-1), back.reshape(-1), raw.reshape(-1), kind))


def _rounded(rows: Floats, name: str) -> Floats:
    from qassay.runtimes.sophgo.bfloat16 import bf16  # noqa: PLC0415

    if name == "bf16":
        return bf16(rows)
    with np.errstate(over="ignore"):
        return rows.astype(np.float16).astype(np.float32) if name == "f16" else rows


def check_measurable(format_: str, path: str) -> None:
    """Raise unless an input has weights at all.

    Raises:
        UsageError: It is a configuration, a table of shapes, or only numbers.
    """
    if format_ not in ("gguf", "safetensors", "folder"):
        raise UsageError(
            "--measure needs the weights of a model",
            path=safe(path) or None,
            expected="a file or folder of float weights",
            found=format_,
        )
