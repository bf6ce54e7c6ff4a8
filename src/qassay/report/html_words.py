"""Words of the HTML report: labels of the document's keys, and what terms and units mean."""

from __future__ import annotations

from collections.abc import Iterable

LABELS = {
    "astray": "weights with a nearer code",
    "attainable_rmse": "RMSE of the nearest codes",
    "bias_steps": "mean error in steps, weights of one sign",
    "both": "on both sides",
    "born": "on the second side only",
    "by_kind": "kind of row",
    "clipped": "weights beyond all codes of their group",
    "code_ratio": "times expected, due to codes",
    "cost": "error",
    "cost_once_undone": "error once the fault is undone",
    "device": "device - quantized",
    "euclid": "euclid similarity",
    "faults": "fault",
    "hidden": "on the first side only",
    "k": "K, input features",
    "max": "largest",
    "max_error": "largest error",
    "max_steps": "largest error in steps",
    "n": "N, output channels",
    "nonfinite": "NaN or infinite",
    "not_finite": "NaN or infinite",
    "passes_at": "tolerance that would pass",
    "quantization": "quantized - float",
    "ratio": "times expected",
    "relative": "relative error",
    "rms": "RMS error",
    "rmse": "RMSE",
    "scale_ratio": "times expected, due to scales",
    "snr_db": "SNR in dB",
    "sqnr_db": "SQNR in dB",
    "total": "device - float",
}
"""What the page calls a key of the document; any other is shown with spaces for `_`."""

_SEVERITY = (
    "error, warning, info",
    "How bad a finding is: an error makes wrong numbers, a warning may, and an info is a note.",
)
_CERTAINTY = (
    "likely, hint",
    "A finding is proven unless it says otherwise; likely and hint say how sure it is.",
)
_COUNT = ("count", "How many places a finding is about; its text says of what: blocks, rows, ...")
_UNKNOWN = ("not checked", "Nothing is known about it. It is not the same as no finding.")
_RELATIVE = ("relative error", "RMS of the error over the RMS of what it is compared with.")
_DECIBEL = (
    "SNR, dB",
    "Signal-to-noise ratio, -20 log10 of the relative error: 6 dB more is half the error. "
    "20 dB is an error of 10 %, 40 dB of 1 %.",
)
_CHANNEL = ("output channel", "A row of the weight [N, K]: the weights that make one output.")
_COSINE = ("cosine", "Of the angle between both tensors as vectors. 1 is the same direction.")
_RMS = ("RMS, RMSE", "Root of the mean square: of a tensor its size, of errors their usual size.")
_STEP = (
    "step",
    "Distance of two neighbouring codes: the scale of the group that a weight is in. "
    "Rounding to the nearest code is off by half a step at most.",
)

_TERMS: dict[str, tuple[tuple[str, str], ...]] = {
    "check": (
        ("bits per weight", "Bits that are stored, scales included, over weights."),
        ("code, scale, block", "A weight is a small integer, its code, times a scale, which the "
         "weights of one block or group share."),
        ("rows of zeros", "Output channels all of whose weights are zero, also called dead."),
    ),
    "compare": (
        _STEP,
        ("times expected", "RMSE over what rounding to such a grid should cost on these weights. "
         "1 is honest rounding; from 2.5 on it is a finding. It is the product of two ratios: of "
         "codes (1: each is the nearest one) and of scales (1: they suit the weights)."),
        _RELATIVE, _DECIBEL, _COSINE, _RMS, _CHANNEL,
        ("equal-up-to", "Equal once a transformation that is named is undone."),
    ),
    "diagnose": (
        ("float, quantized, device", "Three outputs for one input: of the float weights, of the "
         "quantized weights on the host, and what the device computed."),
        _RELATIVE, _DECIBEL, _COSINE, _RMS, _CHANNEL,
    ),
    "dumps": (
        _RELATIVE, _DECIBEL, _COSINE, _RMS,
        ("first bad tensor", "In graph order. What comes behind it can be wrong because of it."),
    ),
    "fit": (
        ("Linear", "A matrix product with a weight [N, K]: N output channels, K input features."),
        ("count", "How many Linears of this name and shape there are, experts included."),
        ("becomes", "What the runtime makes of its weights."),
    ),
}  # fmt: skip


def label(key: str) -> str:
    """Return what the page calls a key of the document."""
    return LABELS.get(key, key.replace("_", " "))


def terms(kind: str, *, findings: bool, unknown: bool) -> list[tuple[str, str]]:
    """Return the terms that a page uses and what they mean; none for most commands.

    Args:
        kind: The command, or `dumps`.
        findings: Whether there are any.
        unknown: Whether something was not checked.
    """
    own: Iterable[tuple[str, str]] = _TERMS.get(kind, ())
    found = list(own)
    if not found:
        return []
    if findings:
        found += [_SEVERITY, _CERTAINTY, *([] if kind == "fit" else [_COUNT])]
    return found + ([_UNKNOWN] if unknown else [])
