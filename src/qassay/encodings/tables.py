"""Lookup tables, kept as files with a checksum so that no table is ever retyped into code."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from qassay.core.errors import DeclarationError


@cache
def table(name: str) -> npt.NDArray[np.float32]:
    """Return the values of `data/<name>.txt` as float32 `[n]`.

    Raises:
        DeclarationError: The file's SHA-256 is not the one recorded in `data/SHA256SUMS`.
    """
    import hashlib  # noqa: PLC0415 - most models need no table, and importing these takes time
    from importlib.resources import files  # noqa: PLC0415

    folder = files("qassay.encodings") / "data"
    text = (folder / f"{name}.txt").read_bytes()
    sums: dict[str, str] = {}
    for line in (folder / "SHA256SUMS").read_text("ascii").splitlines():
        digest, file = line.split()
        sums[file] = digest
    found = hashlib.sha256(text).hexdigest()
    if found != sums.get(f"{name}.txt"):
        raise DeclarationError(
            f"lookup table {name} was altered",
            expected=sums.get(f"{name}.txt"),
            found=found,
            hint="reinstall qassay",
        )
    values = np.array(text.split(), np.float32)
    values.flags.writeable = False
    return values
