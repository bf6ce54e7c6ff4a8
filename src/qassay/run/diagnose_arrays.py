"""The arrays that `qassay diagnose` takes as inputs and outputs of one Linear."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.errors import UsageError
from qassay.run.dumps import open_dump
from qassay.runtimes.sophgo.bfloat16 import of_bf16

Array = npt.NDArray[Any]


MOST_BYTES = 1 << 31
"""Bytes that the inputs or outputs of one Linear may have."""


def read_arrays(path: Path, only: str | None = None) -> dict[str, Array]:
    """Return the arrays of a file or folder by name; bf16 as float32, all else as stored.

    Args:
        path: The file.
        only: Of several arrays, the one to be read, where it is there.

    Raises:
        InputError: It cannot be read, or is not what it says.
        UsageError: It holds more than the inputs or outputs of one Linear.
    """
    dump = open_dump(path)
    try:
        names = [only] if only in dump.names() and only is not None else dump.names()
        size = sum(map(dump.nbytes, names))
        if size > MOST_BYTES:
            raise UsageError(
                "these are more than the inputs or outputs of one Linear",
                path=dump.path,
                expected=f"at most {MOST_BYTES:,} bytes",
                found=f"{size:,} bytes in {len(names):,} arrays",
                hint="name one with --input-name or --output-name; dumps of a whole model are"
                " compared with --float and --device alone",
            )
        found = {name: dump.read(name) for name in names}
        # What is mapped may change, and is read more than once.
        return {name: np.array(one) if not one.flags.writeable else one
                for name, one in found.items()}  # fmt: skip
    finally:
        dump.close()


def as_floats(array: Array, what: str) -> npt.NDArray[np.float32]:
    """Return numbers as float32; uint16 as bf16 bit patterns, which is how tpu-mlir stores them.

    Raises:
        UsageError: They are no numbers of a kind that is known.
    """
    if array.dtype == np.uint16:
        return of_bf16(np.ascontiguousarray(array))
    if array.dtype.kind not in "fiu":
        raise UsageError(f"{what} holds no numbers", expected="floats", found=str(array.dtype))
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, np.float32)
