"""`gguf.GGUFWriter`, guarded: it refuses tensors that are broken, or would break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter

from qassay.containers.ggml_types import ggml_type
from qassay.core.finding import Finding, Severity
from qassay.core.text import safe
from qassay.guards.arrays import DamagedError, check_array, encoding_called
from qassay.guards.audited import container_of
from qassay.run.check import check
from qassay.run.options import CheckOptions
from qassay.runtimes.targets import fitting

_FLOATS = {
    "float16": GGMLQuantizationType.F16,
    "float32": GGMLQuantizationType.F32,
    "float64": GGMLQuantizationType.F64,
}


class GuardedGGUFWriter(GGUFWriter):
    """A `gguf.GGUFWriter` whose `add_tensor` raises `DamagedError` for tensors that are not sound.

    Every tensor is audited as it will lie in the file: NaN and infinities in floats, scales that
    are not finite in quantized blocks. With `to`, float tensors of two axes and more are also
    checked for what quantizing them to that type later would do, or to the type that llama-quantize
    takes where rows are no whole number of its blocks.

    Args:
        args: As `GGUFWriter` takes them.
        to: The type that float tensors are meant for: `Q8_0`; `UsageError` if there is none.
        fail_on: The least severity that is refused: `error` or `warning`.
        kwargs: As `GGUFWriter` takes them.
    """

    def __init__(
        self, *args: Any, to: str | None = None, fail_on: str = "error", **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._to = None if to is None else encoding_called(to)
        self._fail_on = fail_on

    def add_tensor(
        self,
        name: str,
        tensor: npt.NDArray[Any],
        raw_shape: Sequence[int] | None = None,
        raw_dtype: GGMLQuantizationType | None = None,
        tensor_endianess: GGUFEndian | None = None,
    ) -> None:
        """Add a tensor as `GGUFWriter.add_tensor` does, unless it is not sound.

        Raises:
            DamagedError: It is not; nothing of it was added.
        """
        array = np.asarray(tensor)  # a lazy tensor of a converter is computed here
        found = self._stored(name, array, raw_shape, raw_dtype)
        bad = [one for one in found if one.severity >= Severity.parse(self._fail_on)]
        if bad:
            raise DamagedError(bad[0].message, found, path=safe(name), hint=bad[0].help)
        if self._to is not None and array.ndim > 1 and array.dtype.kind == "f":
            # Where rows do not fit its blocks, what llama-quantize takes instead counts.
            choice = fitting(self._to.id, self._to, array.shape)
            meant = self._to if choice.encoding is None else choice.encoding
            check_array(array, to=meant.id, name=name, fail_on=self._fail_on)
        super().add_tensor(name, tensor, raw_shape, raw_dtype, tensor_endianess)

    def _stored(
        self,
        name: str,
        array: npt.NDArray[Any],
        raw_shape: Sequence[int] | None,
        raw_dtype: GGMLQuantizationType | None,
    ) -> list[Finding]:
        """Return what an audit of the tensor's bytes finds."""
        kind = raw_dtype if raw_dtype is not None else _FLOATS.get(array.dtype.name)
        if kind is None:  # integers
            return []
        stored = ggml_type(int(kind))
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        raw = np.ascontiguousarray(little).reshape(-1).view(np.uint8)
        shape = tuple(raw_shape if raw_shape is not None else array.shape)
        if stored.block and array.dtype == np.uint8 and shape:
            # As gguf takes it: the shape of quantized bytes is that of bytes.
            shape = (*shape[:-1], shape[-1] // stored.block_bytes * stored.block)
        container = container_of(stored, shape, raw, safe(name))
        size = container.tensors[0].size
        if not stored.block or size // stored.block * stored.block_bytes != raw.size:
            return []  # gguf itself has something to say about that
        options = CheckOptions(select=("Q2", "Q4"), jobs=1)
        found = check(container, options).findings
        return [replace(finding, tensor=name) for finding in found]
