"""What `qassay env` tells: nothing is imported to learn its version."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import qassay.kernels
from qassay.core.version import __version__
from qassay.kernels.select import SMALL, wanted
from qassay.report.document import Report
from qassay.report.page import Pairs
from qassay.report.words import size
from qassay.run.options import CheckOptions

_PACKAGES = ("numpy", "numba", "llvmlite", "click", "rich")


def environment_report() -> Report:
    """Return the report of `env`.

    Raises:
        UsageError: `QASSAY_KERNELS` names no set of kernels.
    """
    versions = {name: _version(name) for name in _PACKAGES}
    pinned = wanted()
    cache = kernel_cache()
    result = {
        "qassay": __version__,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "packages": versions,
        "platform": {"system": platform.system(), "machine": platform.machine()},
        "threads": CheckOptions().threads,
        "kernels": {
            "pinned": pinned,
            "fast_from_bytes": None if pinned else SMALL,
            "cache": cache,
            "cache_writable": cache is not None,
        },
    }
    kernels = (
        f"{pinned} (pinned by QASSAY_KERNELS)"
        if pinned
        else f"reference below {size(SMALL)} of weights, fast (compiled) from there"
    )
    kept = f"kept {cache}" if cache else "no folder is writable: compiled anew in every run"
    pairs = (
        ("qassay", __version__),
        ("python", f"{result['python']} ({result['implementation']})"),
        *((name, found or "not installed") for name, found in versions.items()),
        ("platform", f"{platform.system()} {platform.machine()}"),
        ("threads", str(result["threads"])),
        ("kernels", kernels),
        ("compiled kernels", kept),
    )
    return Report(command="env", result=result, sections=(Pairs("", pairs),), judged=False)


def kernel_cache() -> str | None:
    """Return where Numba will keep compiled kernels, None when nowhere.

    Numba looks at NUMBA_CACHE_DIR, then beside the source, then in the user's cache folder.
    """
    named = os.environ.get("NUMBA_CACHE_DIR")
    if named:
        return "in NUMBA_CACHE_DIR" if _can_hold(Path(named)) else None
    if _can_hold(Path(qassay.kernels.__path__[0]) / "__pycache__"):
        return "beside the package"
    return "in the user's cache folder" if _can_hold(_user_cache()) else None


def _user_cache() -> Path:
    if platform.system() == "Windows":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home()) / "numba"
    if platform.system() == "Darwin":
        return Path.home() / "Library" / "Caches" / "numba"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "numba"


def _can_hold(folder: Path) -> bool:
    """Tell whether files can be written to `folder`, which may have to be made first."""
    for place in (folder, *folder.parents):
        if place.exists():
            return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    return False


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
