"""Outcomes of put, get and query.

Requirements: ST-15, BP-02..BP-05.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Protocol, TypeAlias

from saturnmq.protocol.ids import offset_message_id
from saturnmq.protocol.offsets import NO_PHYSICAL_OFFSET, NO_QUEUE_OFFSET, PhysicalOffset, QueueOffset


class PutStatus(Enum):
    """Outcome of a put; the broker maps it to a response code."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPEDFILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGECACHE_BUSY"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


Confirmed: TypeAlias = Callable[[PutStatus, str], object]
"""Receives the outcome of a wait, PUT_OK if the position is confirmed, and the reason if it is not."""


class Answer(Protocol):
    """The answer of a group to one append.

    A position does not identify an append there: the entry of a deposed leader can be replaced by another one at the same offset,
    and only the first is the one that was asked about.
    """

    def then(self, callback: Confirmed) -> None:
        """Run the callback once with the outcome, at once if it is there already."""


@dataclass(slots=True)
class PutResult:
    """Status of a put and, for stored messages, their positions; offsets of the first one, size of all in bytes.

    A flush that reaches end_offset covers them. answer: of the group that confirms them, if there is one.
    """

    status: PutStatus
    physical_offset: PhysicalOffset = NO_PHYSICAL_OFFSET
    size: int = 0
    queue_offset: QueueOffset = NO_QUEUE_OFFSET
    store_timestamp_ms: int = 0
    physical_offsets: tuple[PhysicalOffset, ...] = ()
    store_host: tuple[str, int] = ("0.0.0.0", 0)  # noqa: S104 - a value in a record, nothing is bound to it
    end_offset: PhysicalOffset = PhysicalOffset(0)
    reason: str = ""
    answer: Answer | None = field(default=None, compare=False)

    @property
    def message_ids(self) -> list[str]:
        """Offset message ids, one per message."""
        return [offset_message_id(self.store_host, offset) for offset in self.physical_offsets]


class GetStatus(StrEnum):
    """Outcome of reading a queue; as text, the response's remark, as of Apache RocketMQ (BP-05)."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class GetResult:
    """Records found in a queue and the offset of the next pull.

    buffers are slices of the mapped log, valid only until the next event-loop iteration. behind_memory: the records may
    no longer be in the page cache, so the broker may suggest reading from a slave (BP-06).
    """

    status: GetStatus
    next_offset: QueueOffset = QueueOffset(0)
    min_offset: QueueOffset = QueueOffset(0)
    max_offset: QueueOffset = QueueOffset(0)
    buffers: list[memoryview] = field(default_factory=list)
    total_bytes: int = 0
    count: int = 0
    behind_memory: bool = False


@dataclass(slots=True)
class QueryResult:
    """Records found by key, ascending by offset; store time and offset of the last indexed message (request code 12)."""

    records: list[bytes] = field(default_factory=list)
    last_update_ms: int = 0
    last_update_offset: PhysicalOffset = PhysicalOffset(0)
