"""Errors of the filter package: an invalid expression, and a message that an expression cannot be applied to."""

from __future__ import annotations

from typing import Final

from saturnmq.protocol.codes import ResponseCode
from saturnmq.protocol.errors import ResponseError, SaturnError

_SHOWN_MAX: Final = 60


class FilterError(ResponseError):
    """The text is not a valid filter expression: SUBSCRIPTION_PARSE_FAILED (23), raised for every text that does not compile.

    A request handler may let it propagate: its remark is that of the response.
    reason: what is wrong, without the position. position: character offset in the text, from 0; None if the text as a whole is
    wrong. line, column: the same, from 1. expected: what is allowed there, if something else was found.
    """

    response_code = ResponseCode.SUBSCRIPTION_PARSE_FAILED

    def __init__(self, kind: str, text: str, reason: str, position: int | None, expected: tuple[str, ...] = ()) -> None:
        self.kind = kind
        self.text = text
        self.reason = reason
        self.position = position
        self.expected = expected
        where = ""
        self.line = self.column = None
        if position is not None:
            self.line, self.column = _line_and_column(text, position)
            where = f", line {self.line}, column {self.column}"
        expected_text = f"; expected {_any_of(expected)}" if expected else ""
        super().__init__(f"{kind} filter{where}: {reason}{expected_text}")

    line: int | None
    column: int | None

    def without_traceback(self) -> FilterError:
        """A copy of the error without the traceback of an earlier raise."""
        return FilterError(self.kind, self.text, self.reason, self.position, self.expected)


class PropertyError(SaturnError):
    """A property value cannot be compared as the expression demands: the message does not match (FIL-10, FIL-11)."""


class Mistake(Exception):
    """Internal to this package: an error at an offset of the parsed text. Converted to FilterError at the package boundary."""

    def __init__(self, reason: str, position: int | None, expected: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.position = position
        self.expected = expected


def shown(text: str) -> str:
    """Quote a part of the user's text, truncated to fit a remark."""
    return repr(text) if len(text) <= _SHOWN_MAX else repr(text[:_SHOWN_MAX]) + "..."


def _line_and_column(text: str, position: int) -> tuple[int, int]:
    before = text[:position]
    return before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1


def _any_of(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
