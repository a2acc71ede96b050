"""Messages of one queue that were pulled and are not settled yet. Pure.

Requirements: PL-07, PL-10, PL-11, CC-05.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from saturnmq.protocol.offsets import QueueOffset


class ProcessQueue:
    """The offsets of a queue in order, and which of them are still open. Only the contiguous settled head may be committed.

    dropped: the queue is no longer assigned here; late settlements are ignored.
    Invariant: the order is empty or its first entry is open.
    """

    __slots__ = ("_bytes", "_next", "_open", "_order", "dropped", "max_offset")

    def __init__(self, start_offset: QueueOffset) -> None:
        self._open: dict[QueueOffset, int] = {}
        self._order: deque[QueueOffset] = deque()
        self._next = start_offset
        self._bytes = 0
        self.max_offset = QueueOffset(start_offset - 1)
        self.dropped = False

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[QueueOffset]:
        return iter(self._open)

    def is_open(self, offset: QueueOffset) -> bool:
        """Whether the offset is not settled yet."""
        return offset in self._open

    @property
    def body_bytes(self) -> int:
        """Total body size of the open messages."""
        return self._bytes

    @property
    def commit_offset(self) -> QueueOffset:
        """The smallest offset that is not settled, where a restart must begin."""
        return self._order[0] if self._order else self._next

    @property
    def span(self) -> int:
        """Distance from the first open offset to the last one added."""
        return self.max_offset - self._order[0] if self._order else 0

    def put(self, messages: Iterable[tuple[QueueOffset, int]]) -> int:
        """Add (offset, body bytes) pairs in rising offset order; offsets already seen are skipped. Returns how many were added."""
        added, most, total = 0, self.max_offset, 0
        for offset, body_bytes in messages:
            # A broker that was reset, or a second pull of the same range.
            if offset <= most:
                continue
            self._open[offset] = body_bytes
            self._order.append(offset)
            total += body_bytes
            most = offset
            added += 1
        # Attributes once per batch: this loop runs for every message.
        self.max_offset = most
        self._bytes += total
        if self.max_offset >= self._next:
            self._next = QueueOffset(self.max_offset + 1)
        return added

    def skip_to(self, next_offset: QueueOffset) -> None:
        """Record that no other message below next_offset will be delivered.

        With nothing open, the commit offset advances to next_offset (PL-07).
        """
        # Only forward: the answer to an earlier pull may arrive later.
        if next_offset > self._next:
            self._next = next_offset

    def settle(self, offset: QueueOffset) -> QueueOffset | None:
        """Close one offset. Returns the offset to commit, None if the offset was not open (already settled, or never added)."""
        body_bytes = self._open.pop(offset, None)
        if body_bytes is None:
            return None
        self._bytes -= body_bytes
        order = self._order
        # Offsets after an open one wait for it.
        while order and order[0] not in self._open:
            order.popleft()
        return order[0] if order else self._next
