"""Guards for scripts: one line that refuses weights which a quantizer would damage.

qassay.check_array(weight, to="Q8_0")                  # raises qassay.DamagedError
findings = qassay.check_array(weight, to="Q8_0", on_bad="return")

writer = qassay.guards.GuardedGGUFWriter(path, "llama", to="Q8_0")   # a gguf.GGUFWriter
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qassay.core.errors import UsageError
from qassay.guards.arrays import DamagedError, check_array

if TYPE_CHECKING:
    from qassay.guards.writer import GuardedGGUFWriter

__all__ = ["DamagedError", "GuardedGGUFWriter", "check_array"]


def __getattr__(name: str) -> Any:
    if name == "GuardedGGUFWriter":  # the only thing here that needs gguf
        try:
            from qassay.guards.writer import GuardedGGUFWriter  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(
                "GuardedGGUFWriter needs gguf, which cannot be imported",
                found=str(error),
                hint="pip install gguf",
            ) from error
        return GuardedGGUFWriter
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
