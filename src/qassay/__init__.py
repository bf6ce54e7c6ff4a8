"""Audits the weights of quantized language models: which tensor is wrong, where, and why.

    import qassay

    report = qassay.check("model.gguf")
    print(report.verdict)                      # "clean", "findings" or "incomplete"
    for finding in report.findings:
        print(finding.code, finding.tensor, finding.message)

    with qassay.open("model.gguf") as model:
        weight = model.tensors["blk.0.ffn_up.weight"].dequantize()   # float32 [N, K]
    qassay.check_array(weight, to="Q8_0")      # raises qassay.DamagedError

    qassay.compare("model-f16.gguf", "model.gguf").exit_code()   # as the command's

Names are imported when they are first used, so that importing qassay costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from qassay.core.version import __version__

if TYPE_CHECKING:
    from qassay.api import check, compare, diagnose, diagnose_dumps, fit, open, probe  # noqa: A004
    from qassay.core.errors import (
        DeclarationError,
        InputError,
        NotDecodableError,
        QassayError,
        UsageError,
    )
    from qassay.core.finding import Certainty, Finding, Location, Severity
    from qassay.guards import DamagedError, check_array
    from qassay.report.document import Report
    from qassay.run.model import Model, Tensor
    from qassay.runtimes.linear import linear
    from qassay.runtimes.registry import engine


_HOMES = {
    "qassay.api": ("check", "compare", "diagnose", "diagnose_dumps", "fit", "open", "probe"),
    "qassay.core.errors": (
        "DeclarationError",
        "InputError",
        "NotDecodableError",
        "QassayError",
        "UsageError",
    ),
    "qassay.core.finding": ("Certainty", "Finding", "Location", "Severity"),
    "qassay.guards": ("DamagedError", "check_array"),
    "qassay.report.document": ("Report",),
    "qassay.run.model": ("Model", "Tensor"),
    "qassay.runtimes.linear": ("linear",),
    "qassay.runtimes.registry": ("engine",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Certainty",
    "DamagedError",
    "DeclarationError",
    "Finding",
    "InputError",
    "Location",
    "Model",
    "NotDecodableError",
    "QassayError",
    "Report",
    "Severity",
    "Tensor",
    "UsageError",
    "__version__",
    "check",
    "check_array",
    "compare",
    "diagnose",
    "diagnose_dumps",
    "engine",
    "fit",
    "guards",
    "linear",
    "open",
    "probe",
]


def __getattr__(name: str) -> Any:
    if name == "guards":
        return import_module("qassay.guards")
    if name in _HOME_OF:
        return getattr(import_module(_HOME_OF[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
