"""Importance files ("imatrix"): how much each input feature of a weight matters to a quantizer.

As GGUF, `general.type` is `imatrix`, and each weight NAME has two F32 tensors::

    NAME.in_sum2   [matrices, K]   sums of squared activations; one matrix an expert
    NAME.counts    [matrices, 1]   how many rows of activations each sum is over

The older format has no magic; all numbers are little-endian::

    number of entries        i32, 1 or more
    entries                  each: name length i32 | name | calls i32 | values i32 | f32 * values
    calls in all             i32, which may be missing
    name of the data set     length i32 | text, which may be missing

Its values are sums over `calls`, of all experts one after another; an expert that never ran is
written as `calls` in every place. Sources: llama.cpp tools/imatrix/imatrix.cpp (050fc7f),
tools/quantize/quantize.cpp (03161a4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qassay.containers.defects import HEADER_BROKEN, DefectLog, HeaderError
from qassay.containers.ggml_types import ggml_type
from qassay.containers.header_reader import HeaderReader
from qassay.core.container import Container, Skipped, StoredTensor
from qassay.core.source import Source
from qassay.core.text import safe

LEGACY = "imatrix"
"""The format of a container of the older kind."""
SUMS, COUNTS = ".in_sum2", ".counts"
_LONGEST_NAME = 1024
_MOST_ENTRIES = 1 << 20
_SMALLEST_ENTRY = 4 + 1 + 4 + 4 + 4
_F32 = 0

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Importance:
    """What a file says of one weight.

    Attributes:
        name: The weight's.
        sums: Where the sums are; None where a GGUF file has none.
        counts: Where the counts are; None where there are none, as in the older format.
        calls: Of the older format: what the sums are over.
    """

    name: str
    sums: StoredTensor | None
    counts: StoredTensor | None = None
    calls: int | None = None

    @property
    def whole(self) -> bool:
        """Whether sums and counts are there, can be read, and fit each other."""
        parts = [self.sums] if self.calls is not None else [self.sums, self.counts]
        if not all(_is_f32(part) for part in parts) or self.sums is None or not self.sums.size:
            return False
        return self.counts is None or (
            self.counts.size > 0 and self.sums.size % self.counts.size == 0
        )

    def read(self, matrices: int = 1) -> tuple[Floats, npt.NDArray[np.float64]]:
        """Return sums `[matrices, K]` and counts `[matrices]`; only if `whole`.

        Args:
            matrices: Number of experts of the weight, which only the older format does not say;
                where it does not fit, all values are taken as one matrix.
        """
        assert self.sums is not None  # noqa: S101
        sums = self.sums.raw().view("<f4")
        if self.counts is None:
            matrices = matrices if matrices and sums.size % matrices == 0 else 1
            return sums.reshape(matrices, -1), np.full(matrices, self.calls or 0, np.float64)
        counts = self.counts.raw().view("<f4").astype(np.float64)
        return sums.reshape(counts.size, -1), counts

    def values(self, matrices: int = 1) -> Floats:
        """Return what llama-quantize makes of it: mean squares `[matrices, K]`, 1 without counts.

        Args:
            matrices: See `read`.
        """
        sums, counts = self.read(matrices)
        with np.errstate(all="ignore"):
            divisor = counts.astype(np.float32)[:, None]
            if self.counts is None:
                return np.asarray(np.where(divisor > 0, sums / divisor, sums), np.float32)
            return np.asarray(np.where(divisor > 0, sums / divisor, np.float32(1)), np.float32)


def _is_f32(part: StoredTensor | None) -> bool:
    return part is not None and part.readable and part.type.label == _F32


def is_importance(container: Container) -> bool:
    """Tell whether an open container is an importance file."""
    if container.format == LEGACY:
        return True
    return container.format == "gguf" and container.metadata.get("general.type") == "imatrix"


def entries_of(container: Container) -> dict[str, Importance]:
    """Return the entries of an importance file by the name of the weight, in file order."""
    if container.format == LEGACY:
        calls: Mapping[str, int] = container.extra["calls"]
        return {
            tensor.name: Importance(tensor.name, tensor, calls=calls[tensor.name])
            for tensor in reversed(container.tensors)
        }
    sums: dict[str, StoredTensor] = {}
    counts: dict[str, StoredTensor] = {}
    names: dict[str, None] = {}
    for tensor in container.tensors:
        for suffix, found in ((SUMS, sums), (COUNTS, counts)):
            if tensor.name.endswith(suffix):
                name = tensor.name.removesuffix(suffix)
                found.setdefault(name, tensor)
                names[name] = None
    return {name: Importance(name, sums.get(name), counts.get(name)) for name in names}


def looks_like_legacy(head: bytes, size: int) -> bool:
    """Tell whether a file of `size` bytes that begins with `head` may be of the older format."""
    if len(head) < _SMALLEST_ENTRY:
        return False
    entries, length = (int.from_bytes(head[at : at + 4], "little") for at in (0, 4))
    if not 1 <= entries <= _MOST_ENTRIES or not 1 <= length <= min(_LONGEST_NAME, len(head) - 8):
        return False
    if entries * _SMALLEST_ENTRY > size:
        return False
    name = head[8 : 8 + length]
    # Names of weights are plain text; binary files that begin with two small numbers are not.
    return b"." in name and name.isascii() and name.decode("ascii").isprintable()


@dataclass(slots=True)
class _Legacy:
    """One pass over a file of the older format."""

    source: Source
    path: str
    log: DefectLog
    reader: HeaderReader
    tensors: list[StoredTensor]
    calls: dict[str, int]
    metadata: dict[str, object]


def read_legacy(source: Source, path: str) -> Container:
    """Read a file of the older format; its entries are F32 tensors of one axis.

    Args:
        source: The file; it stays open for the values.
        path: How reports name it.

    Returns:
        What could be read and every defect; `extra["calls"]` by name.
    """
    reading = _Legacy(source, path, DefectLog(path), HeaderReader(source), [], {}, {})
    skipped = []
    try:
        _read_entries(reading)
    except HeaderError as error:
        reading.log.add_error(error)
        skipped.append(Skipped(path, HEADER_BROKEN))
    else:
        _read_end(reading)
    return Container(
        path=path,
        format=LEGACY,
        metadata=reading.metadata,
        tensors=reading.tensors,
        defects=reading.log.finish(),
        skipped=skipped,
        sources=[source],
        extra={"calls": reading.calls},
    )


def _read_entries(reading: _Legacy) -> None:
    reader = reading.reader
    entries = reader.u32("the number of entries")
    possible = min(reader.rest // _SMALLEST_ENTRY, _MOST_ENTRIES)
    if not 1 <= entries <= possible:
        raise HeaderError(
            "Q003",
            f"the file promises {entries} entries, and it cannot hold them",
            0,
            expected=f"1 to {possible}",
            found=entries,
            fix="make the importance file again: it is cut short, or this field is damaged",
        )
    for index in range(entries):
        _read_entry(reading, index)


def _read_entry(reading: _Legacy, index: int) -> None:
    reader, log = reading.reader, reading.log
    at = reader.pos
    length = reader.u32(f"the length of name {index}")
    if not 1 <= length <= _LONGEST_NAME:
        raise HeaderError(
            "Q003",
            f"the name of entry {index} claims {length} bytes",
            at,
            expected=f"1 to {_LONGEST_NAME}",
            found=length,
        )
    name = reader.take(length, f"name {index}").decode("utf-8", "surrogateescape")
    shown = safe(name)
    calls = _signed(reader.u32(f"the calls of '{shown}'"))
    at_values = reader.pos
    values = _signed(reader.u32(f"the number of values of '{shown}'"))
    if values < 1:
        raise HeaderError(
            "Q003",
            f"entry '{shown}' claims {values} values",
            at_values,
            expected="1 or more",
            found=values,
        )
    start = reader.pos
    reader.skip(4 * values, f"the values of '{shown}'", field=at_values)
    if name in reading.calls:
        log.add(
            "Q007",
            f"entry '{shown}' appears twice",
            tensor=name,
            at=at,
            expected="every name once",
            found="again",
        )
    reading.calls.setdefault(name, calls)
    reading.tensors.append(
        StoredTensor(
            name, ggml_type(_F32), (values,), reading.source, start, 4 * values, reading.path
        )
    )


def _read_end(reading: _Legacy) -> None:
    """Read what may follow the entries; older files end with them."""
    reader = reading.reader
    if reader.rest >= 4:
        reading.metadata["imatrix.chunk_count"] = _signed(reader.u32("the calls"))
    if reader.rest >= 4:
        at = reader.pos
        length = reader.u32("the length of the data set's name")
        if length > reader.rest:
            reading.log.add(
                "Q003",
                f"the name of the data set claims {length} bytes",
                at=at,
                expected=f"at most {reader.rest}",
                found=length,
                minor=True,
            )
            return
        text = reader.take(length, "the name of the data set")
        reading.metadata["imatrix.datasets"] = [text.decode("utf-8", "surrogateescape")]
    if reader.rest:
        reading.log.add(
            "Q008",
            f"{reader.rest} bytes follow the end of the importance file",
            at=reader.pos,
            expected="the end of the file",
            found=f"{reader.rest} bytes",
        )


def _signed(number: int) -> int:
    return number - (1 << 32) if number >> 31 else number
