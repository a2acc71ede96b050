"""Text from the network in log lines: one event is one line, whatever a peer sent.

A peer chooses topic names, header keys, remarks and property values. `OneLine` is the formatter of every SaturnMQ process: it
escapes control characters of a message and indents its traceback, so no text can look like a line of its own. `quoted` is for a
value within a line, where a blank would already forge a `key=value` pair.

Requirements: SEC-20.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Final

_UNSAFE: Final = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_PLAIN: Final = re.compile(r"[\w.:;,/@%|+*()\[\]-]+", re.ASCII)
_TEXT_MAX: Final = 200


def escaped(text: str) -> str:
    """The text with line ends, other control characters and directional marks as `\\xNN` or `\\uNNNN`."""
    return _UNSAFE.sub(lambda found: _escape(ord(found[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def quoted(text: str, characters_max: int = _TEXT_MAX) -> str:
    """The text as a value of a `key=value` log line: plain if it is one word, otherwise a JSON string of ASCII characters."""
    if len(text) > characters_max:
        text = text[:characters_max] + "..."
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


class OneLine(logging.Formatter):
    """A formatter that escapes control characters in messages and indents tracebacks."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line of the record, without its traceback."""
        return escaped(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        """The traceback, each line indented."""
        return _indented(super().formatException(ei))  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:
        """The stack, each line indented."""
        return _indented(super().formatStack(stack_info))


def _indented(text: str) -> str:
    return "\n".join("    " + escaped(line) for line in text.split("\n"))
