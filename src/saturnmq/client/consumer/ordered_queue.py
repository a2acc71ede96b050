"""Ordered consumption of one queue: one message at a time; a failed one blocks the queue; protected by a broker-side lock.

With auto_commit=False an acknowledged message is held: its offset stays open, so nothing behind it is committed, until `commit`
closes all held ones or `rollback` puts them back.

Invariants: a message is handed out only after the one before it is settled (API-17); never without a lock that is certainly held
(OR-05, OR-06); never from an offset that another member has passed while the lock was lost (OR-04).

Requirements: OR-03..OR-08, PL-12, PL-13, API-17.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from datetime import timedelta
from typing import Any, Final, cast

from saturnmq.client.consumer.assigned_queue import TIMED_OUT, AssignedQueue, QueueGeneration, QueueOwner, check_same
from saturnmq.client.consumer.queue_locks import MemberLocks
from saturnmq.client.message import Ack, Message, next_attempt, same_attempt
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.offsets import QueueOffset

logger = logging.getLogger(__name__)

SUSPEND_S: Final = (0.01, 30.0)  # OR-07: range of the time for which a failed message blocks its queue


class OrderedGeneration(QueueGeneration):
    """The messages of one period of ownership of an ordered queue.

    waiting: pulled, not yet offered to readers. done: by offset and attempt, the delivery that was settled and its verdict. held:
    acknowledged and not committed, in rising offset order; empty with auto_commit.
    """

    __slots__ = ("held", "settled_attempts", "waiting")

    assignment: OrderedQueue

    def __init__(self, assignment: OrderedQueue, start_offset: QueueOffset) -> None:
        super().__init__(assignment, start_offset)
        self.waiting: deque[Message[Any]] = deque()
        self.settled_attempts: dict[tuple[int, int], tuple[Message[Any], Ack]] = {}
        self.held: list[Message[Any]] = []

    def is_settled(self, message: Message[Any]) -> bool:
        """Whether this delivery of the message already has a verdict."""
        return self._verdict_on(message) is not None

    def _verdict_on(self, message: Message[Any]) -> Ack | None:
        delivery, verdict = self.settled_attempts.get((message.offset, message.attempt), (None, None))
        return verdict if delivery is message else None

    def hand_out(self, message: Message[Any], now: float) -> bool:
        """Record that a reader takes the message; False unless it is the head of the queue."""
        assignment = self.assignment
        # What was offered before a seek is not the head any more.
        if assignment.head is not message or not super().hand_out(message, now):
            return False
        assignment.handed, assignment.handed_at = message, now
        return True

    async def settle(
        self, message: Message[Any], verdict: Ack, *, after: timedelta | None = None, reason: str = ""
    ) -> None:
        """Settle a message: success moves on to the next one, retry repeats this one later, reject makes it a dead letter.

        With auto_commit, commit and rollback count as success, with a warning (OR-07). A retry beyond max_times also makes it a
        dead letter; while that send fails, the queue waits (OR-08).
        """
        previous = self._verdict_on(message)
        if previous is not None:
            check_same(message, previous, verdict)
            return
        assignment = self.assignment
        # A verdict from before a seek or a reassignment changes nothing.
        if self.process_queue.dropped or assignment.head is not message:
            assignment.give_back(message)
            return
        # The attempt is part of the key: each delivery of a message is settled for itself.
        key = (message.offset, message.attempt)
        self.settled_attempts[key] = (message, verdict)
        if assignment.auto_commit and verdict in (Ack.COMMIT, Ack.ROLLBACK):
            logger.warning(
                "verdict counts as an acknowledgement group=%s message=%r verdict=%s hint='needs auto_commit=False'",
                assignment.host.group, message, verdict.value,
            )  # fmt: skip
            verdict = Ack.SUCCESS
        finished = verdict in (Ack.SUCCESS, Ack.COMMIT)
        if verdict in (Ack.RETRY, Ack.REJECT):
            try:
                finished = await self._dead_letter(message, verdict, reason)
            # Not settled: the application may settle it again.
            except BaseException:
                self.settled_attempts.pop(key, None)
                raise
        self.report(message, verdict, reason, timed_out=reason == TIMED_OUT)
        # Its ack timeout ends here.
        self.delivered.pop(message.offset, None)
        if finished:
            self._finish(message, verdict)
            if assignment.head is message:
                assignment.head = None
        elif assignment.head is message:
            # The offset stays open and blocks the queue.
            again = self._roll_back(message) if verdict is Ack.ROLLBACK else [next_attempt(message)]
            assignment.repeat_later(self, again, after)
        assignment.give_back(message)
        # Offsets below this one are settled for good.
        if len(self.settled_attempts) > 4096:
            self.settled_attempts = {
                key: value for key, value in self.settled_attempts.items() if key[0] >= message.offset
            }

    def _finish(self, message: Message[Any], verdict: Ack) -> None:
        """Close the offset of a finished message, or hold it until a commit. A dead letter is never held."""
        assignment = self.assignment
        if verdict is Ack.SUCCESS and not assignment.auto_commit:
            self.held.append(message)
            assignment.warn_if_filled(len(self.held))
            # Its offset stays open until the commit.
            return
        # In order: the held ones precede it.
        if verdict is Ack.COMMIT:
            self.commit_held()
        self.close(message.offset)

    def commit_held(self) -> None:
        """Commit all held messages."""
        held, self.held = self.held, []
        for message in held:
            self.close(message.offset)

    def _roll_back(self, message: Message[Any]) -> list[Message[Any]]:
        """New deliveries of all held messages and this one, in order."""
        held, self.held = self.held, []
        return [same_attempt(delivery) for delivery in (*held, message)]

    async def _dead_letter(self, message: Message[Any], verdict: Ack, reason: str) -> bool:
        """Whether the message is finished: it is in the dead-letter queue, or was dropped by a member that does not send back."""
        host = self.assignment.host
        spent = message.record.reconsume_times >= host.send_back.max_times
        if verdict is Ack.RETRY and not spent:
            return False
        # Broadcast members and those with fixed queues do not read the retry topic.
        if not host.sends_back:
            logger.warning("message dropped group=%s message=%r verdict=%s", host.group, message, verdict.value)
            return True
        try:
            with self.settling(message, verdict, reason):
                await host.send_back.dead_letter(message, reason)
        except SaturnError as error:
            # The application has asked for it, and gets the error; a used-up retry repeats instead.
            if verdict is Ack.REJECT:
                raise
            logger.warning(
                "dead letter not sent, queue suspended group=%s message=%r error=%s", host.group, message, error
            )
            return False
        return True

    async def expire(self, message: Message[Any]) -> None:
        """Count the message as failed, because it was not settled in time."""
        await self.settle(message, Ack.RETRY, reason=TIMED_OUT)


class OrderedQueue(AssignedQueue):
    """An ordered queue and the task that pulls it.

    head: the message to be settled next, or the first one that is delivered after a suspension. handed: the message that a reader
    holds unsettled, possibly from before a seek. locks: None in broadcast mode, where no lock is needed. leaving: the queue is
    reassigned as soon as `handed` is settled.
    """

    span_limited = False  # OR-04

    def __init__(
        self,
        host: QueueOwner,
        queue: MessageQueue,
        start_offset: QueueOffset,
        locks: MemberLocks | None,
        suspend_s: float,
        *,
        auto_commit: bool,
    ) -> None:
        self.auto_commit = auto_commit
        self.head: Message[Any] | None = None
        self.handed: Message[Any] | None = None
        self.handed_at = 0.0
        self.leaving = False
        self._locks = locks
        # False between a lost lock and the check of the stored offset.
        self._trusted = True
        self._suspend_s = suspend_s
        super().__init__(host, queue, start_offset)

    def _new_generation(self, start_offset: QueueOffset) -> QueueGeneration:
        self.head = None
        return OrderedGeneration(self, start_offset)

    @property
    def _now(self) -> OrderedGeneration:
        return cast("OrderedGeneration", self.generation)

    @property
    def uncommitted_offsets(self) -> list[QueueOffset]:
        """Offsets of the messages that readers hold or have acknowledged without a commit."""
        generation = self._now
        handed = [message for _, message in generation.delivered.values()]
        return sorted({message.offset for message in (*generation.held, *handed)})

    def warn_if_filled(self, held: int) -> None:
        """Log that no further message can be pulled before a commit."""
        if self._full and held == len(self.generation.process_queue):
            logger.warning(
                "queue waits for a commit group=%s queue=%s uncommitted=%d prefetch=%d hint='await consumer.commit()'",
                self.host.group, self.queue, held, self.host.prefetch_of(self.queue.topic),
            )  # fmt: skip

    @property
    def locked(self) -> bool:
        """Whether this member certainly holds the lock and no other member has had the queue in between."""
        return self._locks is None or (self._trusted and self._locks.valid(self.queue))

    @property
    def may_hand_out(self) -> bool:
        """Whether readers may get messages now: not paused, not leaving, and the lock is held."""
        return not self.paused and not self.leaving and self.locked

    @property
    def position(self) -> QueueOffset:
        """The offset of the next message that a reader gets."""
        generation = self._now
        # A head that no reader has taken is the next one; a head in a reader's hands is not.
        if self.head is not None and self.head is not self.handed:
            return self.head.offset
        return generation.waiting[0].offset if generation.waiting else self.next_offset

    def _offer(self, messages: list[Message[Any]]) -> None:
        self._now.waiting.extend(messages)
        self.offer_next()

    def offer_next(self) -> None:
        """Offer the next message to readers once the previous one is settled."""
        generation = self._now
        # A reader may hold a message from before a seek: one at a time holds across the seek.
        if self.head is None and self.handed is None and generation.waiting:
            self.head = generation.waiting.popleft()
            self.host.deliver([self.head])

    def give_back(self, message: Message[Any]) -> None:
        """Record that the reader has settled or abandoned a message; offers the next one."""
        if self.handed is message:
            self.handed = None
            if self.leaving:
                self.host.wake_rebalance()
        self.offer_next()

    def repeat_later(self, generation: OrderedGeneration, again: list[Message[Any]], after: timedelta | None) -> None:
        """Suspend the queue, then offer these deliveries ahead of what waits (OR-07)."""
        # OR-07: between 10 ms and 30 s, as in Java.
        least, most = SUSPEND_S
        pause_s = min(max(self._suspend_s if after is None else after.total_seconds(), least), most)
        # Reserved: nothing else is offered while the queue is suspended.
        self.head = again[0]

        async def wait() -> None:
            await asyncio.sleep(pause_s)
            # A seek or a reassignment during the pause has replaced the head.
            if not generation.process_queue.dropped and self.head is again[0]:
                self.head = None
                generation.waiting.extendleft(reversed(again))
                self.offer_next()

        self.host.core.spawn(f"suspend {self.queue.topic} {self.queue.queue_id}", wait(), vital=False)

    def expired(self, before: float) -> list[tuple[QueueGeneration, Message[Any]]]:
        """As in the base class; first lets go of a message that a reader holds since before a seek."""
        handed = self.handed
        if handed is not None and handed is not self.head and self.handed_at <= before:
            self.give_back(handed)  # from before a seek: its verdict is irrelevant, but the queue waits for it
        return super().expired(before)

    # locks

    def stay(self) -> None:
        """Cancel `leaving`: the queue stays assigned here."""
        if self.leaving:
            self.leaving = False
            self.resume_handing_out()

    def resume_handing_out(self) -> None:
        """Offer parked and waiting messages and wake the pull loop."""
        self.unpark()
        self.check_capacity()
        self.offer_next()

    async def lock_answered(self, *, granted: bool, was_valid: bool) -> None:
        """Process the result of a lock renewal.

        After a lost lock another member may have consumed the queue: continue at the group's stored offset (OR-04). Raises the
        error of the broker if that offset cannot be read; the queue then stays halted.
        """
        if not granted:
            if self._trusted:
                logger.warning("lock lost group=%s queue=%s", self.host.group, self.queue)
            self._trusted = False
            return
        # The lock was held all the time: no other member can have had the queue.
        if self._trusted and was_valid:
            return
        self._trusted = False
        stored = await self.host.offsets.read(self.queue)
        # Never back: what is settled here but not yet stored is not consumed again.
        if stored is not None and stored > self.generation.process_queue.commit_offset:
            logger.info("queue was consumed elsewhere group=%s queue=%s offset=%d", self.host.group, self.queue, stored)
            self.reset(stored)
        self.suspect()  # a broker takes the locks of a topic that is deleted
        self._trusted = True
        logger.info("lock regained group=%s queue=%s", self.host.group, self.queue)
        self.resume_handing_out()
