"""Parses numbers and booleans from property texts exactly as Java does. Each function returns the value or raises PropertyError.

Integers: optional sign, decimal digits of any script within the first 65,536 code points, no blanks, in range.
Doubles: surrounding blanks allowed; decimal or hexadecimal, optional suffix f, F, d or D; NaN and Infinity with optional sign.
The tests of this package compare the results with Apache RocketMQ.

Requirements: FIL-10, FIL-11.
"""

from __future__ import annotations

import math
import re
import struct
from enum import Enum
from typing import Final

from saturnmq.filter.errors import PropertyError, shown

INT32_MAX: Final = 0x7FFFFFFF
INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF
_DIGITS_MAX: Final = 40  # more digits, after leading zeros, cannot fit 64 bits
_BLANKS: Final = "".join(map(chr, range(0x21)))
_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NAMED: Final = {
    sign + name: value if sign != "-" else -value
    for name, value in (("NaN", math.nan), ("Infinity", math.inf))
    for sign in ("", "+", "-")
}


class ValueKind(Enum):
    """The static type of a value, derived from the expression alone. Properties are TEXT."""

    INT32 = "a 32-bit integer"
    INT64 = "a 64-bit integer"
    DOUBLE = "a number"
    TEXT = "text"
    BOOLEAN = "true or false"
    NOTHING = "nothing"

    @property
    def is_number(self) -> bool:
        return self in (ValueKind.INT32, ValueKind.INT64, ValueKind.DOUBLE)


def int32_of(text: str) -> int:
    """Parse a 32-bit integer."""
    if len(text) < 10 and text.isascii() and text.isdigit():
        return int(text)
    return _integer(text, INT32_MAX, ValueKind.INT32)


def int64_of(text: str) -> int:
    """Parse a 64-bit integer."""
    if len(text) < 19 and text.isascii() and text.isdigit():
        return int(text)
    return _integer(text, INT64_MAX, ValueKind.INT64)


def double_of(text: str) -> float:
    """Parse a double."""
    stripped = text.strip(_BLANKS)
    match = _DECIMAL.fullmatch(stripped)
    if match is not None:
        return float(match.group(1))
    if stripped in _NAMED:
        return _NAMED[stripped]
    match = _HEXADECIMAL.fullmatch(stripped)
    if match is None:
        raise _unusable(text, ValueKind.DOUBLE)
    try:
        return float.fromhex(match.group(1))
    except OverflowError:
        return -math.inf if stripped.startswith("-") else math.inf


def boolean_of(text: str) -> bool:
    """Parse a boolean: "true" in any case is true, every other text is false."""
    return text.lower() == "true"


def compare_doubles(lhs: float, rhs: float) -> int:
    """Negative, 0 or positive, in Java's total order: NaN is greatest and equal to itself, -0.0 is below 0.0."""
    if lhs < rhs:
        return -1
    if lhs > rhs:
        return 1
    first, second = _order(lhs), _order(rhs)
    return (first > second) - (first < second)


def _order(value: float) -> int:
    bits: int = struct.unpack(">q", struct.pack(">d", math.nan if math.isnan(value) else value))[0]
    return bits


def _integer(text: str, most: int, kind: ValueKind) -> int:
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isdecimal() or not (digits.isascii() or max(digits) <= "\uffff"):
        raise _unusable(text, kind)
    if len(digits) > _DIGITS_MAX:
        digits = "".join(str(int(digit)) for digit in digits).lstrip("0") or "0"
        if len(digits) > _DIGITS_MAX:
            raise _unusable(text, kind)
    value = -int(digits) if text[0] == "-" else int(digits)
    if not -most - 1 <= value <= most:
        raise _unusable(text, kind)
    return value


def _unusable(text: str, kind: ValueKind) -> PropertyError:
    return PropertyError(f"property value {shown(text)} is not {kind.value}")
