"""Compares the end of a slave's log with what its master sends, at the beginning of every connection.

An old master can have messages that the new one does not have, and a master that lost power can come back with less than its
slave has; it then uses the same offsets for other messages, and the stream says nothing about it. A slave therefore asks for a
part that it has, and continues only if the master sends the same bytes: an equal record at the same offset comes from the same
log, and so does everything before it.

Requirements: HA-04, HA-16.
"""

from __future__ import annotations

from typing import Final

from saturnmq.protocol.errors import RemoteProtocolError
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.replication.masterslave.log import SlaveLog

COMPARED_BYTES: Final = (4 << 20) + (128 << 10)  # more than the largest message: one record begins in it
EQUAL_BYTES_MIN: Final = 64 << 10
WIDER: Final = 16  # how much more is compared if the logs differ already where the comparison begins


class Diverged(RemoteProtocolError):
    """The master's log differs from this one. at: the first byte that differs, or where the master's log ends."""

    def __init__(self, at: PhysicalOffset, reason: str) -> None:
        super().__init__(reason)
        self.at = at


class TailCheck:
    """The comparison of one connection. at: everything before this offset is equal, as far as it was compared.

    compared_bytes: how much of the log's end is compared, at first only in its last file: the master may have deleted others.
    """

    def __init__(self, log: SlaveLog, compared_bytes: int) -> None:
        self._log = log
        self._end = log.end
        self.diverged: Diverged | None = None
        # An offset of 0 is the report of an empty slave.
        first = max(log.first_position, 1)
        begin = max(first, log.end - compared_bytes)
        file = log.file_at(PhysicalOffset(log.end - 1)) if log.end else None
        # In the last file only: the master may have deleted earlier ones.
        if file is not None and compared_bytes <= COMPARED_BYTES:
            begin = max(begin, file.start)
        self.first = self.at = PhysicalOffset(begin if log.end else log.end)
        self._whole = self.first == first

    @property
    def is_complete(self) -> bool:
        """Whether this log continues the master's."""
        return self.at >= self._end

    def received(self, data: bytes) -> bytes:
        """Compare the next bytes; returns those that follow this log. Raises Diverged."""
        # Compared completely: from here on everything is new.
        if self.is_complete:
            return data
        if not data:  # a heartbeat: there is nothing to send
            raise self._differs(self.at, f"the master's log ends at offset {self.at}, this one at {self._end}")
        size = min(len(data), self._end - self.at)
        local_bytes = self._log.view(self.at, size)
        if local_bytes is not None and local_bytes == memoryview(data)[:size]:
            self.at = PhysicalOffset(self.at + size)
            return data[size:]
        low, high = 0, size  # the first `low` bytes are equal, the first `high` ones are not
        # By halving: the data is compared in few steps even for megabytes.
        while local_bytes is not None and high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if local_bytes[low:middle] == data[low:middle] else (low, middle)
        at = PhysicalOffset(self.at + low)
        raise self._differs(at, f"this log differs from its master's from offset {at} on")

    def _differs(self, at: PhysicalOffset, reason: str) -> Diverged:
        self.diverged = Diverged(at, reason)
        return self.diverged

    def is_certain(self, at: PhysicalOffset) -> bool:
        """Whether so many bytes before a difference are equal that the logs are the same up to it."""
        # The whole log was compared, or enough before the difference.
        return self._whole or at - self.first >= EQUAL_BYTES_MIN
