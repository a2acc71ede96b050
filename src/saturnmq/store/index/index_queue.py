"""Records waiting for the message index, which adds hundreds at once for half the cost of adding them one by one.

Waiting records are already in the log, so a crash loses nothing. They are added before a query, before a flush, and when
WAITING_MAX of them have collected. If the disk rejects them they keep waiting (IX-09).

Requirements: IX-09.
"""

from __future__ import annotations

import logging
from typing import Final

from saturnmq.protocol.errors import StoreError
from saturnmq.store.index.message_index import MessageIndex, Record

log = logging.getLogger(__name__)

WAITING_MAX: Final = 256


class IndexQueue:
    """Batches records for one index. refusal: why the index cannot take them, "" if it can."""

    def __init__(self, index: MessageIndex) -> None:
        self.refusal = ""
        self._index = index
        self._waiting: list[Record] = []

    def add(self, record: Record) -> bool:
        """Queue a record, in log order; False if the waiting records cannot be added to the index."""
        self._waiting.append(record)
        return len(self._waiting) < WAITING_MAX or self.put_in()

    def add_all(self, records: list[Record]) -> bool:
        """As `add`, for several records."""
        self._waiting += records
        return len(self._waiting) < WAITING_MAX or self.put_in()

    def put_in(self) -> bool:
        """Add all waiting records to the index; on failure they keep waiting, and the result is False."""
        if not self._waiting:
            return True
        try:
            self._index.put_many(self._waiting)
        except (StoreError, OSError) as error:
            if not self.refusal:
                log.error("index append failed, messages rejected until it succeeds reason=%s", error)
            self.refusal = f"the message index cannot grow: {error}"
            return False
        self._waiting = []
        self.refusal = ""
        return True

    def covered(self, dispatched: int) -> int:
        """Physical offset up to which every record is in the index, given that the log is dispatched up to `dispatched`."""
        return min(dispatched, self._waiting[0][2]) if self._waiting else dispatched
