"""The exceptions qassay raises: each says where, what was expected, what was found, what to do."""

from __future__ import annotations


class QassayError(Exception):
    """Base of every exception that qassay raises on purpose.

    Args:
        message: One sentence naming the defect.
        path: The file or folder concerned, as the user named it.
        offset: Byte offset in that file.
        expected: What a sound input holds there.
        found: What this input holds there.
        hint: What the user can do.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        expected: str | None = None,
        found: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found
        self.hint = hint

    @property
    def reason(self) -> str:
        """What is wrong, and what to do, without where."""
        reason = self.message
        if self.expected is not None:
            reason += f"; expected {self.expected}"
        if self.found is not None:
            reason += f"; found {self.found}"
        return f"{reason}. Fix: {self.hint}" if self.hint else reason

    def __str__(self) -> str:
        where = self.path or ""
        if self.offset is not None:
            where += f" at byte {self.offset}"
        return f"{where}: {self.reason}" if where else self.reason

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments do not survive the default pickling of exceptions,
        # and errors have to cross process pools.
        return (_rebuild, (type(self), self.__dict__.copy()))


def _rebuild(kind: type[QassayError], state: dict[str, object]) -> QassayError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    error.args = (state["message"],)
    return error


class InputError(QassayError):
    """The input cannot be read at all: missing, not a model file, or an unreadable kind of one."""


class UsageError(QassayError):
    """The command line, the API call or the configuration asks for something that is not there."""


class DeclarationError(QassayError):
    """An encoding or a rule declares itself incompletely, or under a name that is taken."""


class NotDecodableError(QassayError):
    """A tensor was asked for values that cannot be given: unknown encoding, or bytes missing."""
