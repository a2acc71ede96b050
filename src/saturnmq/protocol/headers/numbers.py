"""Parses integers from extFields, with the range check of the field's width.

`int32` and its like are for code that reads extFields directly instead of a decoded header.

Requirements: REM-08, REM-09.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from saturnmq.protocol.errors import HeaderError

_SHORT: Final = 10  # fewer decimal digits than this fit an int32
_DECIMAL: Final = re.compile(r"[+-]?\d{1,20}")


def int32(ext: Mapping[str, str], name: str) -> int:
    """The int32 value of a field. Raises KeyError if it is absent, HeaderError if it is not an integer or out of range."""
    text = ext[name]
    return int(text) if len(text) < _SHORT and text.isdecimal() else checked_integer(name, text, 31)


def int64(ext: Mapping[str, str], name: str) -> int:
    """The int64 value of a field; errors as `int32`."""
    text = ext[name]
    return int(text) if len(text) < _SHORT and text.isdecimal() else checked_integer(name, text, 63)


def int32_or(ext: Mapping[str, str], name: str, default: int) -> int:
    """As `int32`, with a default for a field that is absent or empty."""
    return int32(ext, name) if ext.get(name) else default


def int64_or(ext: Mapping[str, str], name: str, default: int) -> int:
    """As `int64`, with a default for a field that is absent or empty."""
    return int64(ext, name) if ext.get(name) else default


def checked_integer(name: str, value: Any, bits: int) -> int:
    """The number, given as text or as a JSON number. Raises HeaderError with field, value and range."""
    limit = 1 << bits
    number = int(value) if type(value) is str and _DECIMAL.fullmatch(value) else value
    if type(number) is not int or not -limit <= number < limit:
        raise HeaderError(f"header field {name} is {value!r:.40}, must be an integer in {-limit}..{limit - 1}")
    return number
