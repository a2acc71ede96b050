"""Read positions of a consumer: seek, pause, resume, position, committed, lag, and resets by an operator.

Requirements: CA-08, CA-12, OF-06, API-18.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, TypeAlias

from saturnmq.client import namespaces
from saturnmq.client.connection.core import ClientState
from saturnmq.client.consumer.assigned_queue import AssignedQueue
from saturnmq.client.consumer.member import ConsumerMember
from saturnmq.errors import ClientError, OffsetOutOfRange
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.errors import ConfigError
from saturnmq.protocol.offsets import QueueOffset

logger = logging.getLogger(__name__)

# A queue, a topic, several queues; None: all assigned queues.
Where: TypeAlias = "MessageQueue | str | Iterable[MessageQueue] | None"
SeekTarget: TypeAlias = Literal["first", "last"] | int | datetime
_NAMED_TARGETS: Final = ("first", "last")


class Positioned(ConsumerMember):
    """A group member whose position in each queue can be read and moved.

    Queues in the public interface carry topic names without the namespace.
    """

    @property
    def assigned(self) -> list[MessageQueue]:
        """The queues assigned to this consumer now, without those of the retry topic."""
        return self._named(self._assigned)

    async def wait_assigned(self, timeout: float = 10.0) -> list[MessageQueue]:
        """Wait until a rebalance has assigned queues, and return them. Raises TimeoutError after `timeout` seconds."""
        async with asyncio.timeout(timeout):
            # A rebalance in progress may not have assigned all queues yet.
            while not (self.assigned and self._round_done.is_set()):
                self._check()
                # Only rounds that end from here on wake this call.
                self._round_done.clear()
                await self._round_done.wait()
        return self.assigned

    def _chosen(self, where: Where) -> list[AssignedQueue]:
        """The assignments that `where` selects. Raises ClientError for a queue or topic of which nothing is assigned here."""
        namespace = self.core.settings.namespace
        if where is None or isinstance(where, str):
            topic = None if where is None else namespaces.wrap(namespace, where)
            assignments = [
                item
                for queue, item in sorted(self._assigned.items(), key=lambda pair: pair[0])
                # Without a choice the retry topic is left alone: its positions are the group's, not the application's.
                if (queue.topic == topic if topic is not None else queue.topic != self._retry_topic)
            ]
            if not assignments:
                raise ClientError(f"no queue of {where or 'any topic'} is owned by this consumer",
                                  hint="Wait for queues: await consumer.wait_assigned().")  # fmt: skip
            return assignments
        chosen = []
        for queue in [where] if isinstance(where, MessageQueue) else where:
            assignment = self._assigned.get(namespaces.wrap_queue(namespace, queue))
            if assignment is None:
                raise ClientError(
                    f"queue {queue.broker_name}/{queue.queue_id} of {queue.topic} is not owned by this consumer"
                )
            chosen.append(assignment)
        return chosen

    # inspection

    def position(self, where: Where = None) -> dict[MessageQueue, QueueOffset]:
        """Return, by queue, the offset of the next message that a reader gets."""
        self._check()
        return {item.user_queue: item.position for item in self._chosen(where)}

    def committed(self, where: Where = None) -> dict[MessageQueue, QueueOffset]:
        """Return, by queue, the offset that would be committed now: the first one that is not settled.

        where: a queue, several queues, a topic, or None for all. Queues without a known offset are omitted.
        """
        namespace = self.core.settings.namespace
        # Queues carry the namespace inside only.
        offsets = {namespaces.strip_queue(namespace, queue): n for queue, n in self.offsets.snapshot().items()}
        if where is None:
            return offsets
        if isinstance(where, str):
            return {queue: n for queue, n in offsets.items() if queue.topic == where}
        selected = {where} if isinstance(where, MessageQueue) else set(where)
        return {queue: n for queue, n in offsets.items() if queue in selected}

    async def lag(self, where: Where = None) -> dict[MessageQueue, int]:
        """Return, by queue, how many stored messages lie behind the commit offset, including those that a filter hides."""
        self._check()
        items = self._chosen(where)
        ends = await asyncio.gather(*(self._query_offset(RequestCode.GET_MAX_OFFSET, item.queue) for item in items))
        return {
            # A queue that was made again may end before the commit offset.
            item.user_queue: max(end - item.generation.process_queue.commit_offset, 0)
            for item, end in zip(items, ends, strict=True)
        }

    async def commit(self) -> None:
        """Store offsets now instead of at the next timer. With auto_commit=False, first commit all acknowledged messages.

        await database.commit()
        await consumer.commit()
        """
        self._check()
        # Held messages first: their offsets are part of what is stored.
        for assignment in self._assigned.values():
            assignment.generation.commit_held()
        await self.offsets.persist_all()

    async def persist_offsets(self) -> None:
        """Store offsets if running; called by the client's timer."""
        if self.state is ClientState.RUNNING:
            await self.offsets.persist_all()

    # seek, pause, reset

    async def seek(self, place: SeekTarget, where: Where = None) -> dict[MessageQueue, QueueOffset]:
        """Continue at "first", "last", an offset, or the first message stored at or after an aware datetime.

        where: a queue, several queues, a topic, or None for all. Returns the new offsets by queue; they are stored. Messages
        pulled before and not settled are discarded here. For a time after the last message, brokers return the offset of that
        message. Raises OffsetOutOfRange for an offset that the broker does not have; then no queue is moved.

            await consumer.seek("first")
            await consumer.seek(datetime(2026, 1, 1, tzinfo=UTC), "orders")
        """
        self._check()
        # True would pass as offset 1.
        if isinstance(place, bool) or not (isinstance(place, int | datetime) or place in _NAMED_TARGETS):
            raise ConfigError(f"cannot seek {place!r:.60}, must be 'first', 'last', an offset or an aware datetime")
        if isinstance(place, datetime) and place.tzinfo is None:
            raise ConfigError("cannot seek a datetime without time zone")
        items = self._chosen(where)
        # All positions before the first move: an offset out of range moves no queue.
        offsets = await asyncio.gather(*(self._target_offset(place, item.queue) for item in items))
        moved: dict[MessageQueue, QueueOffset] = {}
        for item, offset in zip(items, offsets, strict=True):
            if self._assigned.get(item.queue) is item:  # still assigned to this consumer
                item.reset(offset)
                moved[item.user_queue] = offset
        await self.offsets.persist_all()
        return moved

    async def _target_offset(self, target: SeekTarget, queue: MessageQueue) -> QueueOffset:
        if isinstance(target, datetime):
            stamp = str(int(target.timestamp() * 1000))
            offset = await self._query_offset(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue, timestamp=stamp)
            # A negative answer is no offset.
            return max(offset, QueueOffset(0))
        if target == "first":
            return await self._query_offset(RequestCode.GET_MIN_OFFSET, queue)
        if target == "last":
            return await self._query_offset(RequestCode.GET_MAX_OFFSET, queue)
        assert isinstance(target, int)
        low = await self._query_offset(RequestCode.GET_MIN_OFFSET, queue)
        high = await self._query_offset(RequestCode.GET_MAX_OFFSET, queue)
        if not low <= target <= high:
            raise OffsetOutOfRange(
                f"offset {target} is outside of {low}..{high} of queue {queue.broker_name}/{queue.queue_id} of {queue.topic}"
            )
        return QueueOffset(target)

    def pause(self, where: Where = None) -> None:
        """Stop pulling and handing out messages of these queues until `resume`. Without `where`, also suspend rebalancing."""
        self._check()
        if where is None:
            # Queues that a rebalance assigns meanwhile start paused too.
            self._suspended = True
            for item in self._assigned.values():
                item.pause()
            return
        for item in self._chosen(where):
            item.pause()

    def resume(self, where: Where = None) -> None:
        """Continue after `pause`. Without `where`, also rebalance at once."""
        self._check()
        if where is None:
            self._suspended = False
            # Resuming may change the assignments.
            for item in list(self._assigned.values()):
                item.resume()
            self.wake_rebalance()
            return
        for item in self._chosen(where):
            item.resume()

    @property
    def paused(self) -> list[MessageQueue]:
        """The queues that `pause` has stopped."""
        return [queue for queue in self.assigned if self._chosen(queue)[0].paused]

    def reset_offsets(self, table: dict[MessageQueue, QueueOffset]) -> None:
        """Continue at these offsets at once: an operator has reset the group (OF-06). Queues carry namespaced topic names."""
        for queue, offset in table.items():
            assignment = self._assigned.get(queue)
            if assignment is not None:
                logger.info("offset reset group=%s queue=%s offset=%d", self.group, queue, offset)
                assignment.reset(offset)
        # One store at a time.
        if self._resetting is None or self._resetting.done():  # otherwise the timer stores what came meanwhile
            self._resetting = self.core.spawn(f"reset {self.group}", self.offsets.persist_all(), vital=False)
