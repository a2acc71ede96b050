"""Whether a queue is still the one that a consumer has read, or was deleted and created again under the same name.

An answer "topic not exist" proves nothing by itself: a broker that restarts, a new leader and a slave may give it before they have
the topic. What cannot be mistaken is the log: a queue that was created again has only records that were stored after all records of
the old one. The consumer therefore remembers the last record it has seen, and compares it with the first record of the queue once
the broker has the queue again. Only the master is asked, because a slave may be behind.

Requirements: PL-08, RB-05.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

from saturnmq.client.connection.core import Core
from saturnmq.client.puller.puller import PullResult, PullStatus, pull_command, pull_result
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import PullSysFlag, ResponseCode
from saturnmq.protocol.errors import MessageError, SaturnError
from saturnmq.protocol.message import Message, decode_record
from saturnmq.protocol.offsets import QueueOffset

_ILLEGAL_QUEUE: Final = "queueId["  # begins the text of code 1 for a queue that the topic does not have
_FIRST: Final = QueueOffset(0)


class Mark(NamedTuple):
    """A record of a queue: its offset there, its physical offset in the log, and when it was stored, in Unix ms."""

    offset: QueueOffset
    physical_offset: int
    store_ms: int


def mark_of(record: Message) -> Mark:
    """The mark of a stored record."""
    return Mark(record.queue_offset, record.physical_offset, record.store_timestamp_ms)


def is_missing(error: SaturnError) -> bool:
    """Whether a broker says that it does not have the topic or the queue."""
    if error.code == ResponseCode.TOPIC_NOT_EXIST:
        return True
    # Apache's brokers have no code of their own for a queue id that the topic does not have.
    return error.code == ResponseCode.SYSTEM_ERROR and error.message.startswith(_ILLEGAL_QUEUE)


class Undecided(SaturnError):
    """The broker has the queue, but its answer does not show whether it is the same one; ask again later."""


class Reader(Protocol):
    """The consumer that reads a queue."""

    core: Core
    group: str


class QueueIdentity:
    """Records by which a consumer recognizes one queue. `queue` carries the namespaced topic name.

    mark: the last record seen, None if none was seen.
    """

    def __init__(self, reader: Reader, queue: MessageQueue) -> None:
        self._reader = reader
        self._queue = queue
        self.mark: Mark | None = None

    def saw(self, record: Message) -> None:
        """Remember the record if it is the last one so far."""
        if self.mark is None or record.queue_offset > self.mark.offset:
            self.mark = mark_of(record)

    async def learn(self, offset: QueueOffset) -> None:
        """Remember the record at this offset, if the broker still has it. Raises the error of the broker."""
        result = await self._pull(offset, wait_ms=0)
        # The broker moves an offset that it does not have: then it is another record.
        if result is not None and (mark := _first_of(result)) is not None and mark.offset == offset:
            self.mark = mark

    async def new_start(self, mark: Mark | None, *, wait_ms: int = 0) -> QueueOffset | None:
        """The first offset of the queue if it was created again since the mark was in it, None if it is the same queue.

        Without a mark, or if the records up to the mark have expired, it counts as the same. wait_ms: how long the broker may wait
        for a first record. Raises the error of the broker, also if it does not have the queue, and Undecided if the answer does not
        show it.
        """
        # Nothing was read yet: nothing can be lost.
        if mark is None:
            return None
        result = await self._pull(_FIRST, wait_ms=wait_ms)
        # Offset 0 has expired: the first record is where the broker points.
        if result is not None and result.status is PullStatus.OFFSET_ILLEGAL and result.next_offset <= mark.offset:
            result = await self._pull(result.next_offset, wait_ms=wait_ms)
        if result is None:
            raise self._not_served()
        # All records up to the mark have expired, which a new queue cannot show.
        if result.min_offset > mark.offset:
            return None
        first = _first_of(result)
        if first is None:
            raise Undecided(f"queue {self._queue} has no record yet")
        # In the same log, the first record of the old queue cannot lie after the mark.
        if first.physical_offset > mark.physical_offset or await self._is_other_log(first, mark):
            self.mark = first
            return first.offset
        return None

    async def _is_other_log(self, first: Mark, mark: Mark) -> bool:
        """Whether the queue begins with a newer record in a new log, because the old log was deleted."""
        # A new log counts physical offsets from 0, so that only the time and the marked record itself decide.
        if first.store_ms <= mark.store_ms:
            return False
        result = await self._pull(mark.offset, wait_ms=0)
        if result is None:
            raise self._not_served()
        # The same record at the same place: the same queue, and the clock went back.
        return _first_of(result) != mark

    def _not_served(self) -> Undecided:
        return Undecided(f"the master of {self._queue.broker_name} does not serve {self._queue.topic} yet")

    async def _pull(self, offset: QueueOffset, *, wait_ms: int) -> PullResult | None:
        """Pull one record at offset from the master; None if the answer says that the broker does not lead any more."""
        core, group, queue = self._reader.core, self._reader.group, self._queue
        address = await core.master_address(queue.topic, queue.broker_name)
        command = pull_command(
            queue,
            group=group,
            offset=offset,
            max_count=1,
            sys_flag=int(PullSysFlag.SUBSCRIPTION) | (int(PullSysFlag.SUSPEND) if wait_ms else 0),
            suspend_ms=wait_ms,
            expression="*",
        )
        # The wait on top of the time for an answer.
        answer = await core.remote.call(address, command, core.settings.api_timeout_ms + 2 * wait_ms)
        result = pull_result(answer, queue)
        if result is None:
            raise core.answer_error(answer, f"{queue.broker_name}@{address}", topic=queue.topic, group=group)
        return None if result.status is PullStatus.NO_MATCHED_MESSAGE else result


def _first_of(result: PullResult) -> Mark | None:
    try:
        return mark_of(decode_record(result.body)) if result.body else None
    except MessageError:
        return None
