"""Dispatch on a slave: consume queues and index are filled from the records that the master sent.

A record becomes visible once it is received completely, with SYNC_FLUSH once it is durable, too.

Requirements: RP-02, RP-08, RP-10, HA-05, HA-17, DUR-12.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

from saturnmq.protocol.errors import MessageError, StoreError
from saturnmq.protocol.message import Message
from saturnmq.protocol.offsets import PhysicalOffset
from saturnmq.replication.masterslave.log import SlaveLog
from saturnmq.replication.records import check_place, queue_for
from saturnmq.store import MessageStore

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 0.01
_RECORDS_PER_LOOK: Final = 16
_PENDING_BYTES_MAX: Final = 8 << 20
_HINT: Final = "Stop this slave, remove its store and start it again: it then copies its master's log."
_MESSAGE_BYTES: Final = 500  # memory of a message besides its properties


def _ignored(topic: str, queue_id: int) -> None:
    """Until a listener is set."""


class DispatchStep(Enum):
    """Result of a step: everything is done, there is more, or the next step has to wait for the disk."""

    FINISHED = 0
    MORE = 1
    BLOCKED = 2


class SlaveDispatch:
    """Dispatches what one slave's log receives.

    on_durable: called when more of the log became durable. on_message: called with topic and queue of each message dispatched.
    """

    def __init__(self, log: SlaveLog, store: MessageStore) -> None:
        self.log = log
        self.store = store
        self.on_durable: Callable[[], object] = int
        self.on_message: Callable[[str, int], object] = _ignored
        self._pending: deque[Message] = deque()  # received completely, but not durable yet
        self._pending_bytes = 0
        log.listen(self._durable, store.stop_writing)

    @property
    def stored(self) -> PhysicalOffset:
        """The offset to report: with SYNC_FLUSH only what is durable (DUR-12)."""
        # Recovery may have confirmed more than is a whole record.
        return self.log.end if self.store.confirms_at_once else min(self.log.confirmed_end, self.log.end)

    def begin_at(self, offset: PhysicalOffset) -> None:
        """Let an empty log begin where the master's first frame does. Raises OSError, StoreError."""
        self.log.begin_at(offset)
        self.store.skip_to(offset)

    def discard_rest(self) -> None:
        """Forget bytes that are no whole record; without any record also where the log begins, which one frame decided.

        Raises OSError.
        """
        self.log.discard_rest()
        # The begin came from one frame of a connection that has ended: the next one may begin elsewhere.
        if not self.log.has_record:
            self.begin_at(PhysicalOffset(0))

    def step(self) -> DispatchStep:
        """Dispatch what is received completely, for STEP_SECONDS. Raises StoreError, MessageError for what is no record."""
        until = time.monotonic() + STEP_SECONDS
        while not self._blocked:
            # The clock is looked at once per 16 records.
            for _ in range(_RECORDS_PER_LOOK):
                message = self.log.take()
                if message is None:
                    if self._pending:
                        # Otherwise what is left would wait for the periodic flush.
                        self.log.start_flush()
                    return DispatchStep.FINISHED
                self._add(message)
            if time.monotonic() >= until:
                return DispatchStep.MORE
        self.log.start_flush()
        return DispatchStep.BLOCKED

    @property
    def _blocked(self) -> bool:
        index = self.store.index_queue
        # The disk rejects the index: receive no more until it takes entries again.
        return self._pending_bytes > _PENDING_BYTES_MAX or (index is not None and bool(index.refusal))

    def _add(self, message: Message) -> None:
        # In order: after the first that waits, all wait.
        if self.store.confirms_at_once and not self._pending:
            self._dispatch(message)
            return
        # Memory: up to 8 MiB of records wait, and only their properties are needed.
        message.body = b""  # it is in the log
        self._pending.append(message)
        self._pending_bytes += _MESSAGE_BYTES + len(message.properties_raw)

    def _durable(self, end: PhysicalOffset) -> None:
        """Listener of the log: everything before `end` is durable."""
        pending = self._pending
        while pending and pending[0].physical_offset + pending[0].store_bytes <= end:
            message = pending.popleft()
            self._pending_bytes -= _MESSAGE_BYTES + len(message.properties_raw)
            self._dispatch(message)
        self.on_durable()

    def _dispatch(self, message: Message) -> None:
        store = self.store
        try:
            queue = queue_for(store.queues, message)
            check_place(queue, message)
        except (StoreError, MessageError) as error:
            failure = StoreError(
                f"the record at offset {message.physical_offset} cannot be dispatched: {error}", hint=_HINT
            )
            # The log of the master cannot be changed here: going on would leave a gap.
            store.stop_writing(failure)
            raise failure from error
        store.dispatch(queue, message)
        self.on_message(message.topic, message.queue_id)
