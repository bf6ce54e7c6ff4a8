"""The failures of tpu-mlir that qassay knows by their text, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """A known failure.

    Attributes:
        id: A short name.
        fragments: Any of these in a line is this failure.
        stages: The stages it can come from; empty for any.
        files: The source files that report it; empty for any.
        rule: What the compiler demands, in words.
        condition: The demand as a formula, empty where there is none.
        cause: Why it comes up.
        remedy: What to do.
        source: Where this was found.
    """

    id: str
    fragments: tuple[str, ...]
    stages: tuple[str, ...]
    files: tuple[str, ...]
    rule: str
    condition: str
    cause: str
    remedy: str
    source: str


FAILURES = (
    Failure(
        "scale-channel",
        ("invalid scale channel",),
        ("weight-reorder",),
        ("A16MatMul.cpp",),
        "the weight reorder deals the rows of scale and zero point to the chip's lanes",
        "N % P == 0",
        "the number of output channels N of a quantized Linear is no multiple of the lanes P; the"
        " group size changes K/g only. The limit is that of this reorder of this path: at 16 bits,"
        " or padded, the same Linear compiles",
        "pad N to a multiple of P (`qassay pad`), keep the layer at 16 bits, or compile with"
        " 1.30.2, which does the latter without a word",
        "tpu-mlir 1f6ac19 WeightReorder/BM1684X/A16MatMul.cpp; issues 269 and 275; run on 1.28.1",
    ),
    Failure(
        "weight-size",
        ("invalid weight size",),
        ("codegen",),
        ("nodechip_a16_matmul.c",),
        "the kernel takes whole groups and whole lanes",
        "K % g == 0 and N % P == 0",
        "with one scale a channel (q_group_size 0) the compiler makes groups of 128 and divides"
        " integers: K must be a multiple of 128",
        "give a group size that divides K, or keep the layer at 16 bits",
        "nodechip_a16_matmul.c:295; run with K = 192 per channel on 1.28.1 and 1.30.2",
    ),
    Failure(
        "zero-point-type",
        ("not equal to Type",),
        ("weight-reorder",),
        (),
        "the weight reorder of this chip reads 16-bit zero points",
        "",
        "the Linear comes quantized from the checkpoint, whose zero points are 8-bit",
        "compile with 1.30.2 (not for sg2380), or from float weights",
        "run on 1.28.1 for cv184x, sgtpuv8, sg2380",
    ),
    Failure(
        "bias-type",
        ("!has_bias || bias_dtype == DT_FP32",),
        ("codegen",),
        ("nodechip_batch_matmul_local.c",),
        "the batch MatMul of this chip takes a float32 bias only",
        "",
        "a Linear fell back to a 16-bit MatMul and kept a bf16 bias",
        "compile with 1.30.2, which keeps that bias at float32",
        "issue 275, beta df2b86866; compiles and runs on bm1688 with 1.30.2",
    ),
    Failure(
        "no-a16matmul",
        ("TopToTpuPass.cpp:1829",),
        ("lowering",),
        ("TopToTpuPass.cpp",),
        "this chip has no A16MatMul",
        "",
        "W4 and W8 modes exist on bm1684x and its successors only",
        "choose another chip, or a 16-bit mode",
        "read in lib/Conversion/TopToTpu/TopToTpuPass.cpp",
    ),
    Failure(
        "global-memory",
        ("Global memory overflow",),
        ("codegen",),
        (),
        "weights and buffers have to lie within the device's memory",
        "",
        "the model does not fit the address space that the compiler gives this chip",
        "split the model, or use more devices",
        "seen on bm1684x2 with 1.30.2",
    ),
)
"""In the order in which a line is compared with them."""


def failure_in(line: str) -> Failure | None:
    """Return the known failure that a line of a log reports, or None."""
    for failure in FAILURES:
        if any(fragment in line for fragment in failure.fragments):
            return failure
    return None
