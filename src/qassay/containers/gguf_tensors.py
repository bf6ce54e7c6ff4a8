"""Where the tensors of a GGUF file lie, and what each entry says against the format.

The axes of an entry stand fastest first (`[K, N]`); shapes here are row-major (`[N, K]`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from qassay.containers.defects import DefectLog
from qassay.containers.ggml_types import ggml_type
from qassay.containers.spans import Layout, Span, check_padding, check_spans
from qassay.core.container import StoredTensor, StoredType
from qassay.core.text import safe

MOST_AXES = 4
"""ggml's GGML_MAX_DIMS."""
_MOST_WEIGHTS = 1 << 63


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor entry as it stands in the header, and where its fields do.

    Attributes:
        name: Decoded with surrogate escapes.
        axes: Fastest first.
        type_number: ggml's.
        offset: Of the data, counted from where data begins.
        at: Byte offset of the entry in the file; `at_axes`, `at_type`, `at_offset`: of its fields.
    """

    name: str
    axes: tuple[int, ...]
    type_number: int
    offset: int
    at: int
    at_axes: int
    at_type: int
    at_offset: int


def place_tensors(
    entries: Sequence[Entry], layout: Layout, log: DefectLog, *, header_end: int | None
) -> list[StoredTensor]:
    """Locate the tensors, and judge each entry by itself and against the others.

    Args:
        entries: As the header lists them.
        layout: Where data begins, the alignment, and the file.
        log: Takes the defects.
        header_end: Byte offset after the last entry; None when the header broke off before it, so
            that nobody knows where data begins: all tensors are unreadable then, at offset 0.
    """
    tensors: list[StoredTensor] = []
    spans: list[Span] = []
    first_at: dict[str, int] = {}
    for entry in entries:
        kind = ggml_type(entry.type_number)
        if first_at.setdefault(entry.name, entry.at) != entry.at:
            log.add(
                "Q007",
                f"tensor name '{safe(entry.name)}' appears twice",
                tensor=entry.name,
                at=entry.at,
                expected="every name once",
                found=f"again at byte {entry.at}, first at byte {first_at[entry.name]}",
            )
        sound = _check_shape(entry, kind, log)
        nbytes = _bytes_of(entry.axes, kind) if sound else None
        start = 0 if header_end is None else layout.first + entry.offset
        inside = header_end is not None and _check_extent(entry, start, nbytes, layout, log)
        tensors.append(
            StoredTensor(
                name=entry.name,
                type=kind,
                shape=entry.axes[::-1],
                source=layout.source,
                offset=start,
                nbytes=nbytes,
                path=log.path,
                readable=sound and inside,
            )
        )
        end = None if nbytes is None else start + nbytes
        spans.append(Span(entry.name, start, end, broken=not sound))
    if header_end is not None:
        _check_order(entries, log)
        _check_file(spans, layout, log, header_end)
    return tensors


def _check_file(spans: list[Span], layout: Layout, log: DefectLog, header_end: int) -> None:
    if spans:
        check_padding(header_end, layout.first, "after the header", layout, log)
        check_spans(spans, layout, log)
    else:
        # A file of metadata alone may end right there, unpadded.
        bare = Layout(layout.source, header_end, layout.alignment, layout.check_padding)
        check_spans(spans, bare, log)


def _bytes_of(axes: tuple[int, ...], kind: StoredType) -> int | None:
    if kind.block == 0:
        return None
    count = 1
    for axis in axes:
        count *= axis
    return count // kind.block * kind.block_bytes


def _check_shape(entry: Entry, kind: StoredType, log: DefectLog) -> bool:
    """Return whether the shape can be used; report why not."""
    shown = safe(entry.name)
    count = 1
    for place, axis in enumerate(entry.axes):
        count *= axis
        if 0 < count < _MOST_WEIGHTS:
            continue
        log.add(
            "Q003",
            f"tensor '{shown}' has an axis of length 0"
            if axis == 0
            else f"tensor '{shown}' claims more weights than 63 bits can count",
            tensor=entry.name,
            at=entry.at_axes + 8 * place,
            expected=f"1 to {_MOST_WEIGHTS - 1} weights",
            found=f"axes {list(entry.axes)}",
        )
        return False
    row = entry.axes[0] if entry.axes else 1
    if kind.block and row % kind.block:
        log.add(
            "Q003",
            f"rows of tensor '{shown}' hold {row} weights, no whole number of {kind.name} blocks",
            tensor=entry.name,
            at=entry.at_axes,
            expected=f"a multiple of {kind.block}",
            found=row,
        )
        return False
    return True


def _check_extent(
    entry: Entry, start: int, nbytes: int | None, layout: Layout, log: DefectLog
) -> bool:
    """Return whether the data lies in the file; report an offset or an end that does not fit."""
    size = layout.source.size
    shown = safe(entry.name)
    if entry.offset % layout.alignment:
        log.add(
            "Q004",
            f"the offset of tensor '{shown}' is no multiple of the alignment {layout.alignment}",
            tensor=entry.name,
            at=entry.at_offset,
            expected=f"a multiple of {layout.alignment}",
            found=entry.offset,
        )
    end = start + (1 if nbytes is None else nbytes)
    if end <= size:
        return True
    missing = end - max(size, start)
    share = "its data begins" if nbytes is None else f"{missing} of its {nbytes} bytes lie"
    log.add(
        "Q001",
        f"tensor '{shown}' is cut: {share} past the end of the file",
        tensor=entry.name,
        at=start,
        expected=f"a file of at least {end} bytes",
        found=f"{size} bytes",
        missing_bytes=None if nbytes is None else missing,
    )
    return False


def _check_order(entries: Sequence[Entry], log: DefectLog) -> None:
    """Report once when data does not lie in the order of the entries.

    The format allows it, llama.cpp does not (gguf.cpp compares every offset with the running sum),
    and two offsets that were swapped show in nothing else.
    """
    for before, entry in itertools.pairwise(entries):
        if entry.offset < before.offset:
            log.add(
                "Q003",
                f"tensor '{safe(entry.name)}' lies before '{safe(before.name)}', which is listed "
                "before it; llama.cpp refuses such a file",
                tensor=entry.name,
                at=entry.at_offset,
                expected=f"an offset above {before.offset}",
                found=entry.offset,
                fix="write the file again with its tensors in the order in which they are listed",
                minor=True,
            )
            return
