"""Message ids: the offset id (where a message is stored) and the unique id (assigned by the client that created it).

Requirements: MSG-04, MSG-05.
"""

# Offset id, upper-case hex (MSG-04).
#    0  4|16  store host IP
#    .  i32   port
#    .  i64   physical offset, bytes
#
# Unique id, upper-case hex (docs/spec/00 section 4.3).
#    0  4|16  IP of the client
#    .  u16   process id, low 16 bits
#    .  u32   salt, unique in the process
#    .  u32   ms since the first day of the current month, 00:00 local time
#    .  u16   counter, wraps

from __future__ import annotations

import ipaddress
import struct
from typing import Final

from saturnmq.protocol.errors import MessageError
from saturnmq.protocol.message import Host, pack_host
from saturnmq.protocol.offsets import PhysicalOffset

_OFFSET: Final = struct.Struct(">q")
_UNIQUE_TAIL: Final = struct.Struct(">IH")


def offset_message_id(host: tuple[str, int], physical_offset: PhysicalOffset) -> str:
    """The offset message id: 32 hex digits for an IPv4 store host, 56 for IPv6 (MSG-04)."""
    return (pack_host(host) + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_message_id(message_id: str) -> tuple[Host, PhysicalOffset]:
    """Store host and physical offset of an offset id. Raises MessageError that describes the expected format."""
    try:
        raw = bytes.fromhex(message_id)
    except ValueError:
        raw = b""
    if len(raw) not in (16, 28):
        raise MessageError(f"{message_id[:80]!r} is not an offset message id: 32 hex digits (IPv4) or 56 (IPv6)")
    ip, port = raw[:-12], int.from_bytes(raw[-12:-8], "big", signed=True)
    return Host(str(ipaddress.ip_address(ip)), port), PhysicalOffset(int.from_bytes(raw[-8:], "big", signed=True))


class UniqueIds:
    """Generator of the unique ids of one process. Time and salt are arguments: this package reads no clock and no random source.

    month_start_ms: Unix ms of the first day of the current month, 00:00 local time; the caller refreshes it.
    """

    __slots__ = ("_count", "_month_start_ms", "_prefix")

    def __init__(self, ip: str, pid: int, salt: int, month_start_ms: int) -> None:
        packed = ipaddress.ip_address(ip).packed
        self._prefix = (
            (packed + (pid & 0xFFFF).to_bytes(2, "big") + (salt & 0xFFFFFFFF).to_bytes(4, "big")).hex().upper()
        )
        self._month_start_ms = month_start_ms
        self._count = 0

    def set_month_start(self, month_start_ms: int) -> None:
        """Set the start of the current month, from which the time part of new ids counts."""
        self._month_start_ms = month_start_ms

    def next(self, now_ms: int) -> str:
        """The next id; a time before the start of the month counts as the start."""
        self._count = (self._count + 1) & 0xFFFF
        since = max(now_ms - self._month_start_ms, 0) & 0xFFFFFFFF
        return self._prefix + _UNIQUE_TAIL.pack(since, self._count).hex().upper()

    def take(self, now_ms: int, count: int) -> tuple[str, int]:
        """Reserve that many ids: the digits that they share, and the counter of the first, which are the other 4."""
        first = (self._count + 1) & 0xFFFF
        self._count = (self._count + count) & 0xFFFF
        since = max(now_ms - self._month_start_ms, 0) & 0xFFFFFFFF
        return f"{self._prefix}{since:08X}", first
