"""Reading little-endian header fields in order, through a window that grows as it goes.

A mapped file hands out windows for free; a remote one fetches each as a range. Nothing is ever
allocated from a number in the file: a length is compared with the file's size first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from qassay.containers.defects import HeaderError
from qassay.core.source import Source

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_FIRST_WINDOW = 1 << 20
_LARGEST_WINDOW = 1 << 26
MOST_WORK = 1 << 23
"""Steps that one header may cost. Sparse files hold any number of entries in no space at all."""
ABSURD_LENGTH = 1 << 48
"""A length no file can have: such a field is a lie, not the sign of a cut file."""


class HeaderReader:
    """A position in a source, and the fields from there on.

    Args:
        source: The file.
        pos: Where to begin, in bytes.

    Every method raises `HeaderError` when the field does not lie inside the file: Q001, or Q003
    where the length itself is impossible.
    """

    def __init__(self, source: Source, pos: int = 0) -> None:
        self.pos = pos
        self.size = source.size
        self.work = 0
        self._source = source
        self._window = memoryview(b"")
        self._base = 0
        self._step = _FIRST_WINDOW

    def spend(self, steps: int, what: str, at: int) -> None:
        """Count work that is about to be done; raise Q003 when a header asks for too much of it.

        Args:
            steps: About 100 ns each: a string of an array is one.
            what: For people.
            at: Byte offset of the field that asks for it.
        """
        self.work += steps
        if self.work > MOST_WORK:
            raise HeaderError(
                "Q003",
                f"the header is too large to be one: {what} is more than is read",
                at,
                expected=f"at most {MOST_WORK} entries, all in all",
                found="more",
            )

    @property
    def rest(self) -> int:
        """Bytes from here to the end of the file."""
        return self.size - self.pos

    def _view(self, length: int, what: str) -> int:
        """Have `length` bytes from here in the window; return where in it they begin."""
        if length > self.rest:
            raise self.past_end(self.pos, length, what)
        at = self.pos - self._base
        if at < 0 or at + length > len(self._window):
            step = min(self.rest, max(length, self._step))
            self._step = min(2 * self._step, _LARGEST_WINDOW)
            self._window = self._source.read(self.pos, step).data
            self._base = self.pos
            at = 0
        return at

    def past_end(
        self, offset: int, length: int, what: str, *, field: int | None = None
    ) -> HeaderError:
        """Return the error for `length` bytes of `what` at `offset` that the file does not hold.

        Args:
            offset: Where `what` begins.
            length: Its bytes.
            what: For people.
            field: Byte offset of the header field that states the length, if one does.
        """
        left = max(0, self.size - offset)
        at = offset if field is None else field
        if length >= ABSURD_LENGTH:
            return HeaderError(
                "Q003",
                f"{what} claims {length} bytes, which no file can hold",
                at,
                expected=f"at most {left} bytes",
                found=f"{length} bytes",
            )
        return HeaderError(
            "Q001",
            f"the header is cut: {what} at byte {offset} runs {length - left} bytes past the end",
            at,
            expected=f"{length} bytes",
            found=f"{left} bytes",
        )

    def number(self, layout: struct.Struct, what: str) -> int | float | bool:
        """Return the next number, laid out as `layout`, and step over it."""
        value: int | float | bool = layout.unpack_from(self._window_for(layout.size, what), 0)[0]
        return value

    def _window_for(self, length: int, what: str) -> memoryview:
        at = self._view(length, what)
        self.pos += length
        return self._window[at : at + length]

    def u32(self, what: str) -> int:
        """Return the next 32-bit unsigned number and step over it."""
        return int(_U32.unpack(self._window_for(4, what))[0])

    def u64(self, what: str) -> int:
        """Return the next 64-bit unsigned number and step over it."""
        return int(_U64.unpack(self._window_for(8, what))[0])

    def take(self, length: int, what: str) -> bytes:
        """Return a copy of the next `length` bytes and step over them."""
        return bytes(self._window_for(length, what))

    def skip(self, length: int, what: str, *, field: int | None = None) -> None:
        """Step over `length` bytes, a number that stands at `field`, without reading them."""
        self.need(length, what, field=field)
        self.pos += length

    def need(self, length: int, what: str, *, field: int | None = None) -> None:
        """Raise unless the file has `length` more bytes, a number that stands at `field`."""
        if length > self.rest:
            raise self.past_end(self.pos, length, what, field=field)

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings, each a 64-bit length and that many bytes."""
        # A vocabulary has a quarter of a million of these, so the loop does nothing else: it runs
        # until the window ends or a length leads out of it, and looks only then at what happened.
        unpack = _U64.unpack_from
        done = 0
        start = self.pos
        while done < count:
            if self.rest < 8:
                raise self._lying_string(start, count, what)
            at = self._view(8, what)
            window = self._window
            index = done
            try:
                for index in range(done, count):  # noqa: B007
                    at += 8 + unpack(window, at)[0]
                done = count
            except (struct.error, OverflowError):
                done = index
            self.pos = self._base + at
        if self.pos > self.size:
            raise self._lying_string(start, count, what)

    def _lying_string(self, start: int, count: int, what: str) -> HeaderError:
        """Walk again, slowly, to the string whose length leads out of the file."""
        self.pos = start
        for index in range(count):
            at = self.pos
            length = self.u64(f"{what}, length of string {index},")
            if length > self.rest:
                return self.past_end(self.pos, length, f"{what}, string {index},", field=at)
            self.pos += length
        return self.past_end(self.pos, 8, what)

    def strings(self, count: int) -> Iterator[tuple[int, str]]:
        """Yield the byte offset and text of `count` strings that are known to lie in the file."""
        unpack = _U64.unpack_from
        for _ in range(count):
            at = self._view(8, "a string length")
            length = unpack(self._window, at)[0]
            start = self.pos
            at = self._view(8 + length, "a string")
            self.pos += 8 + length
            raw = self._window[at + 8 : at + 8 + length]
            yield start, str(raw, "utf-8", "surrogateescape")
