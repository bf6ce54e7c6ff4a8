"""A model as Python code sees it: names to tensors, each of which can be decoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from qassay.core.container import Container, StoredTensor
from qassay.core.errors import NotDecodableError
from qassay.core.source import Bytes
from qassay.encodings.registry import for_stored_type, open_with_encodings
from qassay.kernels.select import dequantize


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight.

    Attributes:
        stored: The tensor as its container lists it (file, offset, label).
    """

    stored: StoredTensor

    @property
    def name(self) -> str:
        """As in the file."""
        return self.stored.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape, slowest axis first: `[N, K]` for a Linear, `[experts, N, K]` for a MoE."""
        return self.stored.shape

    @property
    def encoding(self) -> str:
        """Id of the encoding (`ggml.q8_0`, `bf16`); of an unknown one, the container's label."""
        known = for_stored_type(self.stored.type)
        if known is not None:
            return known.id
        return f"{self.stored.type.family}.{self.stored.type.name}".lower()

    @property
    def nbytes(self) -> int | None:
        """Stored bytes; None when the type, and so the size, is unknown."""
        return self.stored.nbytes

    def raw(self) -> Bytes:
        """Return the stored bytes, read-only uint8 `[nbytes]`; local files are mapped, not copied.

        Raises:
            NotDecodableError: The bytes do not lie in the file, or their number is unknown.
        """
        if not self.stored.readable or self.stored.nbytes is None:
            raise NotDecodableError(
                f"tensor {self.name!r} cannot be read: its shape or place in the file is not sound",
                path=self.stored.path,
                offset=self.stored.offset,
                hint="run `qassay check` to see what is wrong with the file",
            )
        return self.stored.raw()

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the weights as float32 of shape `shape`, row-major.

        Equal to what the format's own reference decoder gives, bit for bit; F64 and integers
        are rounded to float32.

        Raises:
            NotDecodableError: As `raw`, or the encoding is not one that qassay reads, or no array
                can have this shape.
        """
        encoding = for_stored_type(self.stored.type)
        if encoding is None:
            raise NotDecodableError(
                f"tensor {self.name!r} has an encoding that is not read: {self.stored.type.name}",
                path=self.stored.path,
                offset=self.stored.offset,
                expected="one of `qassay encodings`",
                found=self.stored.type.name,
                hint=self.stored.type.note or None,
            )
        values = dequantize(self.raw(), encoding)
        try:
            return values.reshape(self.shape)
        except ValueError as error:  # an axis of length 0, and others too long for any array
            raise NotDecodableError(
                f"tensor {self.name!r} has a shape that NumPy cannot hold: {list(self.shape)}",
                path=self.stored.path,
                offset=self.stored.offset,
            ) from error

    def __repr__(self) -> str:
        return f"<Tensor {self.name!r} {list(self.shape)} {self.encoding}>"


class _Tensors(Mapping[str, Tensor]):
    """Tensors by name, in file order; of names that repeat, the first."""

    def __init__(self, container: Container) -> None:
        self._by_name: dict[str, Tensor] = {}
        for stored in container.tensors:
            self._by_name.setdefault(stored.name, Tensor(stored))

    def __getitem__(self, name: str) -> Tensor:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


class Model:
    """An open file or folder. Use it as a context manager, or call `close`.

    Attributes:
        container: Everything that reading the headers gave, structural defects included.
        tensors: Name to `Tensor`, in file order.
    """

    def __init__(self, container: Container) -> None:
        self.container = container
        self.tensors: Mapping[str, Tensor] = _Tensors(container)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Model:
        """Open a GGUF or safetensors file, or a folder of shards; reads headers only.

        Raises:
            InputError: It is missing, or no model file at all. A damaged model file opens:
                `qassay.check` says what is wrong with it.
        """
        return cls(open_with_encodings(path))

    @property
    def path(self) -> str:
        """As reports name it: never an absolute path."""
        return self.container.path

    @property
    def format(self) -> str:
        """`gguf`, `safetensors` or `folder`."""
        return self.container.format

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Keys and values of the header."""
        return self.container.metadata

    def close(self) -> None:
        """Let go of the files. Arrays that were handed out stay valid."""
        self.container.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Model {self.path!r} {self.format}, {len(self.tensors)} tensors>"
