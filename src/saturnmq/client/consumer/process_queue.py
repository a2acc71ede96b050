"""Messages of one queue that were pulled and are not settled yet. Pure. Source: spec 03 PL-10, PL-11, CC-05."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator


class ProcessQueue:
    """Offsets in order, and which of them are still open. Only the contiguous settled head may be committed.

    dropped: the queue belongs to somebody else now; whatever comes late is ignored.
    Invariant: the first entry of the order is open, or there is none.
    """

    __slots__ = ("_bytes", "_next", "_open", "_order", "dropped", "max_offset")

    def __init__(self, start_offset: int) -> None:
        self._open: dict[int, int] = {}
        self._order: deque[int] = deque()
        self._next = start_offset
        self._bytes = 0
        self.max_offset = start_offset - 1
        self.dropped = False

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[int]:
        return iter(self._open)

    def is_open(self, offset: int) -> bool:
        """Whether the offset is not settled yet."""
        return offset in self._open

    @property
    def body_bytes(self) -> int:
        """Body bytes of the open messages."""
        return self._bytes

    @property
    def commit_offset(self) -> int:
        """The smallest offset that is not settled; what a restart must begin with."""
        return self._order[0] if self._order else self._next

    @property
    def span(self) -> int:
        """Distance of the first open offset to the last one put."""
        return self.max_offset - self._order[0] if self._order else 0

    def put(self, messages: Iterable[tuple[int, int]]) -> int:
        """Add (offset, body bytes), offsets rising; a known offset is not counted again. Returns how many were new."""
        added = 0
        for offset, body_bytes in messages:
            if offset <= self.max_offset:
                continue
            self._open[offset] = body_bytes
            self._order.append(offset)
            self._bytes += body_bytes
            self.max_offset = offset
            added += 1
        if self.max_offset >= self._next:
            self._next = self.max_offset + 1
        return added

    def skip_to(self, next_offset: int) -> None:
        """Nothing up to next_offset is for us: with nothing open the commit offset follows (PL-07)."""
        if next_offset > self._next:
            self._next = next_offset

    def settle(self, offset: int) -> int | None:
        """Close one offset. Returns the offset to commit, None when it was not open (settled before, or moved)."""
        body_bytes = self._open.pop(offset, None)
        if body_bytes is None:
            return None
        self._bytes -= body_bytes
        order = self._order
        while order and order[0] not in self._open:
            order.popleft()
        return self.commit_offset
