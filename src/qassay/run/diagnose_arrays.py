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


def read_arrays(path: Path) -> dict[str, Array]:
    """Return the arrays of a file or folder by name; bf16 as float32, all else as stored.

    Raises:
        InputError: It cannot be read, or is not what it says.
    """
    dump = open_dump(path)
    try:
        return {name: dump.read(name) for name in dump.names()}
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
