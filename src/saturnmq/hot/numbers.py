"""Big-endian numbers in bytes. `numbers.pxd` declares types for Cython; compiled, each byte is checked against the end.

A number is put together from variables of 64 bits: Cython computes an expression of single bytes in C `int`.
"""

from __future__ import annotations


def int16(data: bytes, at: int) -> int:
    """The signed number in data[at : at + 2]."""
    first, second = data[at], data[at + 1]
    value = first << 8 | second
    return value if value < 0x8000 else value - 0x10000


def int32(data: bytes, at: int) -> int:
    """The signed number in data[at : at + 4]."""
    first, second, third, fourth = data[at], data[at + 1], data[at + 2], data[at + 3]
    value = first << 24 | second << 16 | third << 8 | fourth
    return value if value < 0x80000000 else value - 0x100000000


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
