"""`check_array`: refuse an array of weights that a quantizer would damage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qassay.core.errors import QassayError, UsageError
from qassay.core.finding import Finding, Severity
from qassay.core.text import safe
from qassay.encodings.base import Encoding
from qassay.encodings.registry import by_id
from qassay.guards.audited import look
from qassay.guards.floats import as_array
from qassay.guards.literal import look_literally

PROFILES = ("candle",)
"""Published checks that `profile` may ask for, taken literally."""


class DamagedError(QassayError):
    """Weights that quantizing would damage.

    Attributes:
        findings: Everything found, in file order; the message is that of the first that counts.
    """

    def __init__(self, message: str, findings: Sequence[Finding], **more: Any) -> None:
        super().__init__(message, **more)
        self.findings = tuple(findings)


def check_array(
    x: Any,
    to: str = "Q8_0",
    profile: str | None = None,
    on_bad: str = "raise",
    *,
    name: str = "",
    fail_on: str = "error",
) -> list[Finding]:
    """Refuse weights that would not survive being quantized to `to`.

    Args:
        x: `[K]`, `[N, K]` or more axes: a NumPy array (bfloat16 included), a torch tensor, or
            numbers in lists. Floats only.
        to: The target encoding: `Q8_0`, `ggml.q4_k`, `f16`.
        profile: `candle` applies the check published for candle's Q8_0 literally, with its
            messages: every element finite, amax / 127 at most 65504, the rounding of the scale to
            f16 off by at most 1 %.
        on_bad: `raise`, or `return` to get findings whatever they are.
        name: Of the tensor, for messages.
        fail_on: The least severity that raises: `error` or `warning`.

    Returns:
        What was found, in file order: empty for sound weights. Each finding names the blocks and
        elements concerned (`location.block`, `location.column`).

    Raises:
        DamagedError: They would be damaged.
        UsageError: `x` holds no floats, its rows are no whole number of blocks, or an argument is
            unknown.
    """
    if on_bad not in ("raise", "return"):
        raise UsageError("on_bad is out of range", expected="raise or return", found=repr(on_bad))
    if fail_on not in ("error", "warning"):
        raise UsageError(
            "fail_on is out of range", expected="error or warning", found=repr(fail_on)
        )
    if profile is not None and profile not in PROFILES:
        raise UsageError(
            "there is no such profile", expected=", ".join(PROFILES), found=repr(profile)
        )
    findings = _findings(x, encoding_called(to), profile, name)
    bad = [one for one in findings if one.severity >= Severity.parse(fail_on)]
    if bad and on_bad == "raise":
        literal = profile is not None
        raise DamagedError(
            bad[0].message,
            findings,
            path=safe(name) or None,
            hint=None if literal else bad[0].help,
        )
    return findings


def encoding_called(to: str) -> type[Encoding]:
    """Return the encoding that `to` names.

    Raises:
        UsageError: There is none.
    """
    try:
        encoding = by_id(to)
    except KeyError:
        encoding = None
    if encoding is None or encoding.kind in ("integer", "layer"):
        raise UsageError(
            f"there is no encoding called {safe(to, 40)} to quantize to",
            expected="one of `qassay encodings`, such as Q8_0",
        )
    return encoding


def _findings(x: Any, to: type[Encoding], profile: str | None, name: str) -> list[Finding]:
    array = as_array(x)
    if profile is not None and to.id != "ggml.q8_0":
        raise UsageError("the published check of candle is one of Q8_0", found=to.id)
    row = array.shape[-1] if array.shape else 1
    if row % to.block:
        raise UsageError(
            f"rows of {row} weights are no whole number of {to.id} blocks",
            path=safe(name) or None,
            expected=f"a multiple of {to.block}",
            found=str(list(array.shape)),
            hint="choose a target with smaller blocks, or keep this tensor in F16",
        )
    if not array.size:
        return []
    return look(array, to, name) if profile is None else look_literally(array, to, name)
