"""The consumer: queues shared within a group, messages fetched ahead of the reader and committed once settled.

Delivery is at least once: a message that is not acknowledged is delivered again, after `ack_timeout`, a rebalance or a restart.

Differences from Apache RocketMQ: messages are handed to `async for` and `recv` and settled by the caller, instead of being pushed
to a listener thread pool; flow control counts unsettled messages.

Everything here runs on the client's event loop. Background tasks (rebalance, ack timeout, lock renewal) are started by `start` and
cancelled and awaited by `stop`.

Requirements: CA-09, CC-04, API-04, API-15, API-17..API-20, API-23, API-24, API-26, TR-02.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar

from saturnmq.client.codecs import Codec
from saturnmq.client.connection.core import ClientState, Core, check_state, now_ms
from saturnmq.client.consumer.assigned_queue import RETRY_LATER_S, AssignedQueue, mark_delivered
from saturnmq.client.consumer.batch import Batch
from saturnmq.client.consumer.callbacks import notify
from saturnmq.client.consumer.consume_stats import ConsumerStats
from saturnmq.client.consumer.inbox import Inbox
from saturnmq.client.consumer.offsets import note_failure
from saturnmq.client.consumer.ordered_queue import OrderedQueue
from saturnmq.client.consumer.positions import Positioned
from saturnmq.client.consumer.running_info import answer_broker
from saturnmq.client.consumer.settings import ConsumerSettings
from saturnmq.client.hooks import (
    ConsumeHook,
    contexts_of,
    processing,
    run_consume_hooks,
    with_installed,
)
from saturnmq.client.message import Message, ReceivedMessage, next_attempt
from saturnmq.client.tracing import CONSUME, Tracer, TraceStats, trace_topic
from saturnmq.errors import Closed, RouteNotFound
from saturnmq.net import Reply
from saturnmq.protocol.bodies import MessageQueue
from saturnmq.protocol.errors import SaturnError
from saturnmq.protocol.frames.command import Command
from saturnmq.protocol.offsets import QueueOffset
from saturnmq.tasks import one_round

logger = logging.getLogger(__name__)

T = TypeVar("T")
TAKEN_AT_ONCE: Final = 32  # messages that a reader takes before other tasks run


class Consumer(Positioned, Generic[T]):
    """A member of a consumer group. Create it with `Client.consumer`; use it in `async with`, or call `start` and `stop`.

    Receive with `async for`, `recv` or `batches`, and settle every message with `ack`, `retry` or `reject`; with auto_commit=False
    also with `commit` or `rollback`. Delivery is at least
    once: an unsettled message is delivered again after `ack_timeout` seconds, a rebalance or a restart. Only the contiguous
    settled head of a queue is committed. Pulling pauses while too many messages are unsettled (`prefetch`, `prefetch_bytes`).

    Not thread-safe: all calls belong to the event loop of the client. Threads use `saturnmq.sync`.

        async with Client.from_url("rmq://127.0.0.1:9876") as client:
            async with client.consumer("billing", start="first") as consumer:
                await consumer.subscribe("orders", tag("paid || refunded"))
                async for message in consumer:
                    try:
                        await bill(message.value)
                    except Busy as error:
                        await message.retry(timedelta(seconds=30), reason=str(error))
                    else:
                        await message.ack()
    """

    def __init__(self, core: Core, group: str, codec: Codec[T], settings: ConsumerSettings) -> None:
        super().__init__(core, group, codec, settings)
        self.hooks: Sequence[ConsumeHook] = with_installed(settings.hooks, ConsumeHook)
        self.feeds_listener = False
        self._tracer: Tracer | None = None
        self._inbox: Inbox[Message[T]] = Inbox(mark_delivered)
        self._tasks: list[asyncio.Task[Any]] = []
        self._reads = 0  # messages taken since the reader has waited
        self._starved = False
        self._warned = False  # that nothing can be received: one warning for all readers
        self._lock = asyncio.Lock()
        self._stopping: asyncio.Task[None] | None = None

    # lifecycle

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Join the group. Idempotent; concurrent calls share one attempt, and a failed start leaves nothing running.

        Returns once the positions in the queues of the subscribed topics are fixed, as `subscribe` does.

        Subscribed topics that do not exist are logged as a warning. Raises Closed after `stop`, NoNameServer, and GroupInUse if
        this client already has a running consumer of the group.
        """
        # `start` and `stop` exclude each other.
        async with self._lock:
            if self.state is ClientState.RUNNING:
                return
            if self.state is ClientState.STOPPED:
                check_state("consumer", self.state)
            self.core.check_running()
            self.core.add_consumer(self)
            self._since_ms = dict.fromkeys(self._subscriptions, now_ms())
            try:
                await self._load_offsets()
                await self._announce(self._topics())
            except BaseException:
                # A failed start leaves nothing; a heartbeat may have announced the group already.
                self.core.consumers.pop(self.group, None)
                if self._announced:
                    self._announced = {}
                    self.core.spawn(f"leave {self.group}", self.core.unregister_consumer(self.group), vital=False)
                raise
            self.state = ClientState.RUNNING
            self.started_ms = now_ms()
            tracing_topic = trace_topic(self.settings.trace, self.core.settings.trace)
            if tracing_topic is not None and self.core.tracing is not None:
                self._tracer = self.core.tracing.open(self.group, CONSUME, tracing_topic)
                self.hooks = (*self.hooks, self._tracer.consume_hook)
            loops = {"rebalance": self._rebalance_loop, "ack timeout": self._ack_timeout_loop}
            if self._locks is not None:
                loops["locks"] = self._lock_loop
            self._tasks = [self.core.spawn(f"{name} {self.group}", loop(), vital=False) for name, loop in loops.items()]
            for task in self._tasks:
                task.add_done_callback(self.task_ended)
            self.wake_rebalance()
        if self._subscriptions.keys() - {self._retry_topic}:
            try:
                await self._fix_positions()
            except BaseException:
                await self.stop()
                raise

    async def stop(self) -> None:
        """Leave the group: stop pulling, store offsets, release queue locks, unregister from the brokers, flush traces. Idempotent.

        Unsettled messages are delivered again to the next owner of their queue. Cancelling the caller does not interrupt the
        shutdown.
        """
        if self.state is ClientState.RUNNING and self.core.forked:
            self.state = ClientState.STOPPED  # a forked child: tasks and group membership belong to the parent
            return
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(), name=f"saturnmq stop {self.group}")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        async with self._lock:
            running = self.state is ClientState.RUNNING
            self.state = ClientState.STOPPED
            # Wakes `subscribe` calls that wait for a round.
            self._round_done.set()
            self._inbox.clear()
            self._inbox.close(lambda: Closed("The consumer service state not OK, SHUTDOWN_ALREADY."))
            if not running:
                return
            for task in self._tasks:
                task.cancel()
            # Before the queues are dropped: the application may still settle messages.
            await notify(self.settings.on_revoked, self.group, self._named(self._assigned.keys() - self._revoked))
            assigned = list(self._assigned.values())
            for assignment in assigned:
                assignment.drop()
            # Their loops may still use the assignments.
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for assignment in assigned:
                await assignment.join()
            if self.core.state is ClientState.RUNNING:
                await self._leave()
            self._assigned.clear()
            if self._tracer is not None:
                await self._tracer.close()

    async def _leave(self) -> None:
        """Store offsets, then release the locks, then unregister.

        The order matters: the next owner of a queue reads its offset at once, so each of these stores is confirmed by the broker.
        """

        async def store(queue: MessageQueue) -> None:
            try:
                await self.offsets.persist(queue, confirmed=True)
            except SaturnError as error:
                logger.warning("offset not stored group=%s queue=%s error=%s", self.group, queue, error)

        owned_queues = set(self._assigned)
        if self._locks is not None:
            owned_queues |= self._locks.possibly_locked()  # includes queues in the middle of being acquired or released
        await asyncio.gather(*(store(queue) for queue in owned_queues))
        if self._locks is not None:
            await self._locks.unlock(owned_queues)
        await self.offsets.persist_all()
        await self.core.remove_consumer(self.group)

    def task_ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    def fail(self, cause: BaseException) -> None:
        """Fail all readers with ConsumerStopped: a background task of this consumer or its client died (API-26)."""
        self._inbox.close(lambda: self._stopped(cause))

    def _new_assignment(self, queue: MessageQueue, offset: QueueOffset) -> AssignedQueue:
        if self.settings.ordered:
            settings = self.settings
            return OrderedQueue(self, queue, offset, self._locks, settings.suspend, auto_commit=settings.auto_commit)
        return AssignedQueue(self, queue, offset)

    @property
    def trace_stats(self) -> TraceStats:
        """Numbers of message-trace records that were created, sent and dropped; all 0 when tracing is off."""
        return TraceStats() if self._tracer is None else replace(self._tracer.stats)

    @property
    def stats(self) -> ConsumerStats:
        """What the consumer holds now, and its rates over the last minute."""
        generations = [assignment.generation for assignment in self._assigned.values()]
        handed_out = sum(len(generation.delivered) for generation in generations)
        rates = self.counters.status()
        return ConsumerStats(
            queues=len(self.assigned),
            waiting=sum(len(generation.process_queue) for generation in generations) - handed_out,
            handed_out=handed_out,
            unsettled_bytes=sum(generation.process_queue.body_bytes for generation in generations),
            pull_ms=rates.pull_rt,
            settle_ms=rates.consume_rt,
            received_per_s=rates.pull_tps,
            acknowledged_per_s=rates.consume_ok_tps,
            failed_per_s=rates.consume_failed_tps,
            failed_last_hour=rates.consume_failed_msgs,
        )

    # receiving

    def __aiter__(self) -> AsyncIterator[Message[T]]:
        return self

    async def __anext__(self) -> Message[T]:
        try:
            return await (self.recv() if self.hooks else self._next())
        except Closed:
            raise StopAsyncIteration from None

    async def recv(self, timeout: float | None = None) -> Message[T]:
        """Return the next message, waiting for it at most `timeout` seconds (None: without limit).

        Raises TimeoutError when no message arrives in time, Closed after `stop`, ConsumerStopped when a background task died. With
        nothing subscribed, or when none of the subscribed topics exists, a warning is logged at once, and ClientError or
        RouteNotFound is raised after the option `route_timeout`. Any number of tasks may wait concurrently.
        A cancelled call takes no message.

            message = await consumer.recv(timeout=10)
            await message.ack()
        """
        if not self.hooks:
            return await self._next(timeout)
        started = time.monotonic()
        message = await self._next(timeout)
        self._report_received([message], started)
        return message

    async def _next(self, timeout: float | None = None) -> Message[T]:
        """As `recv`, without hooks."""
        self._check()
        self._reads += 1
        if self._reads >= TAKEN_AT_ONCE:  # lets the pull loops and other tasks run while messages wait
            self._reads = 0
            await asyncio.sleep(0)
        message = self._inbox.take()
        if message is not None:
            return message
        self._reads = 0
        if timeout is None:
            return await self._wait_for_message()
        try:
            async with asyncio.timeout(timeout):
                return await self._wait_for_message()
        except TimeoutError:
            raise TimeoutError(f"no message for group {self.group} within {timeout:g} s") from None

    def _report_received(self, messages: Sequence[Message[T]], started: float) -> None:
        run_consume_hooks(self.hooks, "received", contexts_of(messages), started)

    def processing(self, *messages: ReceivedMessage[Any]) -> AbstractContextManager[None]:
        """A block that processes these messages, several of a batch, as hooks see it. For a listener it is its handler.

        A hook such as that of `saturnmq.opentelemetry` then measures the block, and what it calls is part of the message's trace.

        Example:
            async for message in consumer:
                with consumer.processing(message):
                    await bill(message.value)
                await message.ack()
        """
        return processing(self.hooks, messages) if self.hooks else nullcontext()

    async def _wait_for_message(self) -> Message[T]:
        """Wait for the next message; raise an error if none can arrive for `route_timeout` seconds."""
        problem = self._nothing_to_read()
        if problem is not None:
            if not self._warned and not isinstance(problem, RouteNotFound):  # `subscribe` has logged that already
                self._warned = True
                logger.warning("consumer has nothing to receive group=%s error=%s", self.group, problem)
            try:
                async with asyncio.timeout(self.settings.route_timeout):
                    return await self._inbox.receive()
            except TimeoutError:
                await self._refresh_routes()  # the last lookup may be 20 s old
                if (problem := self._nothing_to_read()) is not None:
                    raise problem from None
        self._warned = False
        return await self._inbox.receive()

    async def batches(self, max_count: int, wait: float = 1.0) -> AsyncGenerator[Batch[T], None]:
        """Iterate over batches of 1 to `max_count` messages: those that arrive within `wait` seconds of the first one.

        Ends after `stop`; otherwise raises what `recv` raises.

            async for batch in consumer.batches(100, wait=1.0):
                await store([message.value for message in batch])
                await batch.ack()
        """
        while True:
            started = time.monotonic()
            try:
                batch = Batch([await self._next()])
            except Closed:
                return
            deadline = time.monotonic() + wait
            try:
                while len(batch) < max_count:
                    remaining_s = deadline - time.monotonic()
                    message = self._inbox.take()
                    if message is None:
                        if remaining_s <= 0:
                            break
                        message = await self._next(remaining_s)
                    batch.append(message)
            except (TimeoutError, Closed):
                pass
            # Taken but not returned: back to the front, in order.
            except asyncio.CancelledError:
                self._inbox.prepend(batch)
                raise
            if self.hooks and not self.feeds_listener:
                self._report_received(batch, started)
            yield batch

    def deliver(self, messages: list[Message[Any]]) -> None:
        """Queue pulled messages for readers; called by the pull loops."""
        self._inbox.put(messages)

    def deliver_first(self, messages: list[Message[Any]]) -> None:
        """Queue messages ahead of all others, in order."""
        self._inbox.prepend(messages)

    def withdraw(self, message: Message[Any]) -> None:
        """Take back a message that no reader has taken yet."""
        self._inbox.remove(message)

    def redeliver_later(self, message: Message[T], after: float = RETRY_LATER_S) -> None:
        """Deliver a message again from this process after `after` seconds, because it cannot be sent back (CC-04).

        The attempt count is increased, except on an ordered consumer.
        """
        if not self.settings.ordered:
            message = next_attempt(message)

        async def wait_and_put() -> None:
            await asyncio.sleep(after)
            self._inbox.put([message])

        self.core.spawn(f"redeliver {self.group}", wait_and_put(), vital=False)

    # flow control across all queues

    def bytes_left(self) -> bool:
        """Whether the body bytes of all unsettled messages are below `prefetch_bytes`; if not, note that a pull loop waits.

        The limit is checked before a pull, so the first message always fits, however large it is.
        """
        open_bytes = sum(item.generation.process_queue.body_bytes for item in self._assigned.values())
        if open_bytes >= self.settings.prefetch_bytes:
            self._starved = True
            return False
        return True

    def room_made(self) -> None:
        """Wake pull loops that wait for bytes once the total has dropped to half of `prefetch_bytes`.

        Called after every settled message.
        """
        if self._starved:
            open_bytes = sum(item.generation.process_queue.body_bytes for item in self._assigned.values())
            if open_bytes <= self.settings.prefetch_bytes // 2:
                self._starved = False
                for assignment in self._assigned.values():
                    assignment.check_capacity()

    # messages not settled in time

    async def _ack_timeout_loop(self) -> None:
        timeout_s = self.settings.ack_timeout
        while True:
            await asyncio.sleep(max(timeout_s / 15, 0.01))
            before = time.monotonic() - timeout_s
            await one_round(f"ack timeout of {self.group}", partial(self._expire, before))

    async def _expire(self, before: float) -> None:
        # Assignments may change while a message is sent back.
        for assignment in list(self._assigned.values()):
            for generation, message in assignment.expired(before):
                try:
                    await generation.expire(message)
                except SaturnError as error:
                    note_failure(self.core.outages, "return of expired messages", self.group, assignment.queue, error)
                else:
                    self.core.outages.succeeded("return of expired messages", (self.group, assignment.queue))

    # requests from brokers

    def handle(self, command: Command) -> Reply:
        """Answer a request from a broker (codes 40, 220, 221, 307, 309); any other code gets REQUEST_CODE_NOT_SUPPORTED."""
        return answer_broker(self, command)
