"""Big-endian numbers in bytes. `numbers.pxd` declares types for Cython; compiled, each byte is checked against the end.

A number is put together from variables of 64 bits: Cython computes an expression of single bytes in C `int`. Constants beyond 31
bits have names with a type: as literals they are objects.
"""

from __future__ import annotations

_SIGN, _SPAN = 1 << 31, 1 << 32


def int16(data: bytes, at: int) -> int:
    """The signed number in data[at : at + 2]."""
    first, second = data[at], data[at + 1]
    value = first << 8 | second
    return value if value < 0x8000 else value - 0x10000


def int32(data: bytes, at: int) -> int:
    """The signed number in data[at : at + 4]."""
    first, second, third, fourth = data[at], data[at + 1], data[at + 2], data[at + 3]
    value = first << 24 | second << 16 | third << 8 | fourth
    return value if value < _SIGN else value - _SPAN


def int64(data: bytes, at: int) -> int:
    """The signed number in data[at : at + 8]."""
    high, low = int32(data, at), int32(data, at + 4)
    return high * _SPAN + (low if low >= 0 else low + _SPAN)


def put32(data: bytearray, at: int, value: int) -> None:
    """Write the lower 32 bits of a number."""
    data[at] = value >> 24 & 0xFF
    data[at + 1] = value >> 16 & 0xFF
    data[at + 2] = value >> 8 & 0xFF
    data[at + 3] = value & 0xFF


def put64(data: bytearray, at: int, value: int) -> None:
    """Write the lower 64 bits of a number."""
    put32(data, at, value >> 32)
    put32(data, at + 4, value & 0xFFFFFFFF)
