"""The queue of messages that wait for a reader; cancelling a reader loses no message.

Requirements: API-15, API-24.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """A FIFO queue for any number of readers. Unbounded by itself: the consumer's flow control limits what is put.

    accept: called when an item is handed out; False discards the item. Invariant: an item is removed in the same step in which its
    reader returns, so cancellation cannot lose it.
    """

    def __init__(self, accept: Callable[[T], bool]) -> None:
        self._accept = accept
        self._items: deque[T] = deque()
        self._readers: deque[asyncio.Future[None]] = deque()
        self._end: Callable[[], BaseException] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, items: Iterable[T]) -> None:
        """Append items and wake as many readers."""
        self._items.extend(items)
        self._wake(len(self._items))

    def prepend(self, items: list[T]) -> None:
        """Insert items at the front, keeping their order."""
        # `extendleft` reverses the order.
        self._items.extendleft(reversed(items))
        self._wake(len(items))

    def remove(self, item: T) -> None:
        """Discard an item if it is still here."""
        with contextlib.suppress(ValueError):
            self._items.remove(item)

    def clear(self) -> None:
        """Discard all items."""
        self._items.clear()

    def close(self, end: Callable[[], BaseException]) -> None:
        """Let readers take the remaining items; after that `receive` raises `end()`."""
        self._end = end
        self._wake(len(self._readers))

    def take(self) -> T | None:
        """The next accepted item, None if there is none."""
        items = self._items
        while items:
            item = items.popleft()
            # False: settled, reassigned or parked meanwhile.
            if self._accept(item):
                return item
        return None

    async def receive(self) -> T:
        """Wait for the next accepted item."""
        while True:
            item = self.take()
            if item is not None:
                return item
            # Only after the remaining items.
            if self._end is not None:
                raise self._end()
            reader: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._readers.append(reader)
            try:
                await reader
            except asyncio.CancelledError:
                if reader.done() and not reader.cancelled():
                    self._wake(1)  # pass the wake-up on to another reader
                elif reader in self._readers:
                    self._readers.remove(reader)
                raise

    def _wake(self, count: int) -> None:
        readers: deque[asyncio.Future[Any]] = self._readers
        while readers and count > 0:
            reader = readers.popleft()
            # A cancelled reader may still be in the queue.
            if not reader.done():
                reader.set_result(None)
                count -= 1
