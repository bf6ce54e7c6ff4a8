"""Where tensors lie in a file: overlaps, gaps, padding and what comes after the last one.

Every byte of a sound file belongs to the header, to one tensor, or to padding. A shape, a type or
an offset that is wrong by itself nearly always breaks that, and this is where it shows::

    | header | pad | tensor A | pad | tensor B | pad |
                   ^ first                 reach ^   ^ size
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qassay.containers.defects import DefectLog
from qassay.core.source import Source
from qassay.core.text import safe

_LISTED_OVERLAPS = 16
_LONGEST_PAD = 1 << 20


@dataclass(frozen=True, slots=True)
class Span:
    """The bytes of one tensor.

    Attributes:
        name: The tensor's.
        start: Absolute byte offset of its first byte.
        end: Absolute byte offset after its last; None when its size is not known.
        broken: Its shape is unusable, and reported as such: no overlap is judged by it.
    """

    name: str
    start: int
    end: int | None
    broken: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """How a format lays tensors out.

    Attributes:
        source: The file.
        first: Absolute byte offset where tensor data begins.
        alignment: Tensors begin at multiples of this many bytes; 1 for no padding at all.
        check_padding: Whether to read padding and report bytes that are not zero.
    """

    source: Source
    first: int
    alignment: int = 1
    check_padding: bool = True

    def align(self, offset: int) -> int:
        """Return the first multiple of the alignment at or after `offset`."""
        return -(-offset // self.alignment) * self.alignment


def check_spans(
    spans: Iterable[Span], layout: Layout, log: DefectLog, *, gaps: bool = True
) -> None:
    """Report overlaps (Q002) and, with `gaps`, bytes that belong to no tensor (Q008) of one file.

    Spans that begin at or after the end of the file are ignored: they are Q001, and their offset
    says nothing about the others. Nothing is said about the bytes after a tensor of unknown size.
    """
    size = layout.source.size
    inside = [span for span in spans if span.start < size and span.end != span.start]
    inside.sort(key=lambda span: (span.start, span.start if span.end is None else span.end))
    # The file is owned up to `reach`, by `holder` last; `known` is False after an unknown size.
    reach, holder, known, overlaps = layout.first, None, True, 0
    for span in inside:
        if span.start < reach and holder is not None:
            overlaps += not span.broken
            if not span.broken and overlaps <= _LISTED_OVERLAPS:
                _overlap(holder, reach, span, log)
        elif known and gaps:
            _between(holder, reach, span, layout, log)
        known = span.end is not None
        end = span.start + (not span.broken) if span.end is None else span.end
        if end >= reach:
            _more_overlaps(holder, overlaps, log)
            reach, holder, overlaps = end, span, 0
    _more_overlaps(holder, overlaps, log)
    if known and gaps:
        _after(holder, reach, layout, log)


def _more_overlaps(holder: Span | None, overlaps: int, log: DefectLog) -> None:
    """Count what is not listed: one shape that is far too large overlaps all that follow."""
    more = overlaps - _LISTED_OVERLAPS
    if holder is not None and more > 0:
        log.add(
            "Q002",
            f"{more} more tensors begin inside tensor '{safe(holder.name)}'",
            tensor=holder.name,
            at=holder.start,
            count=more,
        )


def _overlap(holder: Span, reach: int, span: Span, log: DefectLog) -> None:
    shared = (reach if span.end is None else min(reach, span.end)) - span.start
    known = f"{shared} bytes are" if holder.end is not None else "bytes are"
    log.add(
        "Q002",
        f"tensor '{safe(span.name)}' begins inside tensor '{safe(holder.name)}': {known} shared",
        tensor=span.name,
        at=span.start,
        expected=f"an offset of {reach} or more",
        found=span.start,
        other=holder.name,
        bytes=shared,
    )


def _between(holder: Span | None, reach: int, span: Span, layout: Layout, log: DefectLog) -> None:
    """Judge the bytes between the end of `holder` (or of the header) and `span`."""
    before = "the header" if holder is None else f"tensor '{safe(holder.name)}'"
    after = f"tensor '{safe(span.name)}'"
    if span.start > layout.align(reach):
        log.add(
            "Q008",
            f"{span.start - reach} bytes between {before} and {after} belong to no tensor",
            tensor=span.name if holder is None else holder.name,
            at=reach,
            expected=f"{after} at byte {layout.align(reach)}",
            found=f"{after} at byte {span.start}",
            fix="check shape and type of the tensor before the gap and the offset of the one after "
            "it: one of them is wrong, or a tensor was removed; write the file again",
            bytes=span.start - reach,
            before=None if holder is None else holder.name,
            after=span.name,
        )
    elif holder is not None:
        check_padding(
            reach, span.start, f"between {before} and {after}", layout, log, tensor=holder.name
        )


def _after(holder: Span | None, reach: int, layout: Layout, log: DefectLog) -> None:
    size = layout.source.size
    before = "the header" if holder is None else f"tensor '{safe(holder.name)}'"
    name = None if holder is None else holder.name
    if size > layout.align(reach):
        log.add(
            "Q008",
            f"{size - reach} bytes after {before} belong to no tensor",
            tensor=name,
            at=reach,
            expected=f"a file of {reach} to {layout.align(reach)} bytes"
            if layout.alignment > 1
            else f"a file of {reach} bytes",
            found=f"{size} bytes",
            bytes=size - reach,
        )
    elif size > reach:
        check_padding(reach, size, f"after {before}", layout, log, tensor=name)


def check_padding(
    start: int, end: int, where: str, layout: Layout, log: DefectLog, *, tensor: str | None = None
) -> None:
    """Report the first byte in `[start, end)` that is not zero (Q008); at most 1 MiB is read."""
    end = min(end, layout.source.size, start + _LONGEST_PAD)
    if not layout.check_padding or start >= end:
        return
    pad = layout.source.read(start, end - start)
    if not pad.any():
        return
    index = int((pad != 0).argmax())
    log.add(
        "Q008",
        f"padding {where} is not zero: weights may lie there that the shape leaves out",
        tensor=tensor,
        at=start + index,
        expected="0x00",
        found=f"0x{int(pad[index]):02x}",
        fix="check the shape and type of the tensor before it; if they are right, write the file "
        "again with zero padding",
    )
