"""Records on their way into the message index, which takes hundreds at once for half the work of one by one.

What waits is in the log already. It is put in before a query, before a flush, and when there is much of it; what the disk
refused waits until it can be put in (IX-09).
"""

from __future__ import annotations

import logging
from typing import Final

from saturnmq.protocol.errors import StoreError
from saturnmq.store.index.message_index import MessageIndex, Record

log = logging.getLogger(__name__)

WAITING_MAX: Final = 256


class IndexQueue:
    """refusal: why the index cannot take what waits; "" when it can."""

    def __init__(self, index: MessageIndex) -> None:
        self.refusal = ""
        self._index = index
        self._waiting: list[Record] = []

    def add(self, record: Record) -> bool:
        """Have a record indexed, in the order of the log; False when the index cannot take what waits."""
        self._waiting.append(record)
        return len(self._waiting) < WAITING_MAX or self.put_in()

    def add_all(self, records: list[Record]) -> bool:
        """As `add`, for several."""
        self._waiting += records
        return len(self._waiting) < WAITING_MAX or self.put_in()

    def put_in(self) -> bool:
        """Put in all that waits; False when it cannot be done, and then it goes on waiting."""
        if not self._waiting:
            return True
        try:
            self._index.put_many(self._waiting)
        except (StoreError, OSError) as error:
            if not self.refusal:
                log.error("index cannot grow: %s; no messages are taken until it can", error)
            self.refusal = f"the message index cannot grow: {error}"
            return False
        self._waiting = []
        self.refusal = ""
        return True

    def covered(self, dispatched: int) -> int:
        """Up to which physical offset every record is in the index, when the log is dispatched up to `dispatched`."""
        return min(dispatched, self._waiting[0][2]) if self._waiting else dispatched
